"""Pictures of analysis show each number of their data, and are drawn from data at its limits."""

from __future__ import annotations

import numpy as np
import pytest

from tdcore.analysis import confusion
from tdcore.plot.confusion_matrix import confusion_matrix
from tdcore.plot.image_maps import image_maps
from tdcore.plot.point_clouds import point_clouds
from tdcore.plot.xy_curves import xy_curves
from tests.plot.runs import part, texts


def test_a_confusion_matrix_shows_its_counts_recall_and_precision() -> None:
    found = confusion.count([3, 3, 3, 5], [3, 3, 5, 5])
    figure = confusion_matrix(found, "$half_")
    shown = texts(figure)
    for text in ("$half_", "3\n67%", "5\n100%", "3\n100%", "5\n50%"):
        assert text in shown
    np.testing.assert_allclose(
        part(figure.axes[0], "shares").get_array(), np.array([[2 / 3, 1 / 3], [0.0, 1.0]])
    )


def test_matrices_without_pairs_and_of_many_classes_are_drawn() -> None:
    assert "0\nnone" in texts(confusion_matrix(confusion.count([], [], classes=[0, 1])))
    many = texts(confusion_matrix(confusion.count(np.arange(300), np.arange(300)))).splitlines()
    assert "7" in many
    assert "299" not in many
    assert "1" not in many  # the number in each cell


def test_each_row_of_maps_has_its_label_and_each_column_its_title() -> None:
    figure = image_maps({"image": np.ones((2, 4, 4)), "map": np.zeros((2, 3, 5))}, ["$a", "b"])
    assert len(figure.axes) == 4
    for text in ("image", "map", "$a", "b"):
        assert text in texts(figure)
    with pytest.raises(ValueError, match="same number of images"):
        image_maps({"image": np.ones((2, 4, 4)), "map": np.zeros((1, 4, 4))})


def test_curves_contain_their_points_and_the_limit() -> None:
    figure = xy_curves({"_one": ([1, 2], [3.0, 4.0]), "two": ([1], [5.0])}, x="size", y="$share", limit=3.5)
    (axes,) = figure.axes
    assert np.asarray(axes.lines[0].get_xydata()).tolist() == [[1, 3], [2, 4]]
    assert part(axes, "limit").get_ydata()[0] == 3.5
    for text in ("_one", "two", "size", "$share", "limit 3.5"):
        assert text in texts(figure)


def test_point_clouds_have_a_panel_per_step_and_a_colour_per_label() -> None:
    clouds = {
        "first": {"step 0": np.zeros((3, 2)), "step 4": np.ones((3, 2))},
        "second": {"step 0": np.ones((3, 2))},
    }
    figure = point_clouds(clouds, [7, 9, 7])
    assert len(figure.axes) == 4
    for text in ("first", "second", "step 4"):
        assert text in texts(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["7", "9"]
