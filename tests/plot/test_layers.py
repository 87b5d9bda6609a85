"""The heat map of all layers: its cells, its order, its marks and its labels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import LogNorm

from tdcore.errors import ConfigError, InvalidWorker
from tdcore.rules import run as run_rules
from tdcore.trial import create_trial
from tests.plot.runs import gradient, layered, part, texts
from tests.trial.writer import RunWriter


def test_each_cell_is_the_statistic_of_its_tensor_at_its_step(tmp_path: Path) -> None:
    figure = layered(tmp_path).plot.layers("^gradient/")
    axes = figure.axes[0]
    mesh = part(axes, "means")
    expected = [[np.abs(gradient(layer, step)).mean() for step in range(0, 12, 2)] for layer in range(12)]
    np.testing.assert_allclose(mesh.get_array(), expected, rtol=1e-12)
    np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], [-0.5, 1, 3, 5, 7, 9, 11])
    assert isinstance(mesh.norm, LogNorm)
    assert (mesh.norm.vmin, mesh.norm.vmax) == pytest.approx((1e-6, 11e5))


def test_rows_are_labelled_in_the_order_of_the_model(tmp_path: Path) -> None:
    axes = layered(tmp_path).plot.layers("^gradient/").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"{at}.weight" for at in range(12)]
    assert axes.get_ylabel() == "gradient/layers.…"
    assert axes.get_xlabel() == "TRAIN step"


def test_statistics_equal_those_of_the_trial(tmp_path: Path) -> None:
    trial = layered(tmp_path)
    table = trial.stats("^gradient/").to_pylist()
    for statistic, column in (("l2", "l2"), ("std", "std"), ("max", "max"), ("mean", "mean")):
        mesh = part(trial.plot.layers("^gradient/", statistic=statistic).axes[0], "means")
        expected = np.zeros((12, 6))
        for row in table:
            expected[int(row["name"].split(".")[1]), row["step"] // 2] = row[column]
        np.testing.assert_allclose(mesh.get_array(), expected, rtol=1e-9, atol=1e-300)


def test_the_first_tensor_with_nan_is_marked_and_named(tmp_path: Path) -> None:
    figure = layered(tmp_path, bad=(7, 4)).plot.layers("^gradient/")
    axes = figure.axes[0]
    cells = part(axes, "nan").get_array()
    expected = np.zeros((12, 6), dtype=bool)
    expected[7, 2:] = True
    assert (~np.ma.getmaskarray(cells) == expected).all()
    marker = part(axes, "first_bad")
    assert (marker.get_xdata()[0], marker.get_ydata()[0]) == (4, 7)
    assert "first NaN or infinite element: gradient/layers.7.weight at step 4" in texts(figure)


def test_findings_are_outlined_from_their_first_to_their_last_step(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(4):
        run.add("gradient/a.weight", np.full(3, 1e-9 if step else 1.0), step=step, kind="gradient")
        run.add("gradient/b.weight", np.ones(3), step=step, kind="gradient")
    run.flush()
    run.end()
    run_rules(tmp_path, ["vanishing_gradient"])
    axes = create_trial(tmp_path).plot.layers("^gradient/").axes[0]
    (path,) = part(axes, "findings").get_paths()
    row = 1  # without weights, the last gradient of the backward pass is that of the first layer
    assert path.get_extents().bounds == pytest.approx((0.5, row - 0.5, 3.0, 1.0))


def test_zeros_have_the_darkest_colour_and_missing_values_none(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(3):
        run.add("a_output_0", np.full(3, 0.0 if step == 1 else 2.0), step=step, kind="output")
    run.add("b_output_0", np.ones(3), step=0, kind="output")
    run.flush()
    mesh = part(create_trial(tmp_path).plot.layers("output").axes[0], "means")
    rgba = mesh.to_rgba(mesh.get_array())
    assert rgba[0, 1].tolist() == mesh.cmap.get_under().tolist()
    assert np.ma.getmaskarray(mesh.get_array()).tolist() == [[False, False, False], [False, True, True]]
    assert mesh.get_array()[0, 1] < mesh.norm.vmin


@pytest.mark.parametrize("layers", [1, 3, 40, 300])
def test_labels_do_not_overlap_and_stay_inside_the_figure(tmp_path: Path, layers: int) -> None:
    figure = layered(tmp_path, layers=layers, steps=3, bad=(0, 2)).plot.layers()
    check_labels(figure)


@pytest.mark.full
def test_three_thousand_layers_fit_into_one_picture(tmp_path: Path) -> None:
    figure = layered(tmp_path, layers=3000, steps=2).plot.layers()
    check_labels(figure)
    assert part(figure.axes[0], "means").get_array().shape == (3000, 2)


def check_labels(figure: object) -> None:
    figure._repr_png_()  # type: ignore[attr-defined]
    axes, inside = figure.axes[0], figure.bbox  # type: ignore[attr-defined]
    boxes = [label.get_window_extent() for label in axes.get_yticklabels() if label.get_text()]
    assert boxes
    ordered = sorted(boxes, key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 0.5 for low, high in pairwise(ordered))
    assert all(box.x0 >= inside.x0 - 1 and box.y1 <= inside.y1 + 1 for box in boxes)
    assert figure.get_figheight() <= 12  # type: ignore[attr-defined]


def test_modes_and_workers_can_be_chosen(tmp_path: Path) -> None:
    for worker, size in (("worker_0", 1.0), ("worker_1", 3.0)):
        run = RunWriter(tmp_path, worker=worker, world_size=2)
        run.add("a_output_0", np.full(2, size), step=0, kind="output")
        run.add("a_output_0", np.full(2, 5 * size), step=1, mode="EVAL", mode_step=0, kind="output")
        run.flush()
        run.end()
    plot = create_trial(tmp_path).plot
    values = {
        (mode, worker): part(plot.layers("a", mode=mode, worker=worker).axes[0], "means").get_array()[0, 0]
        for mode in ("TRAIN", "EVAL")
        for worker in ("worker_0", "worker_1", "")
    }
    assert values == pytest.approx(
        {
            ("TRAIN", "worker_0"): 1.0, ("TRAIN", "worker_1"): 3.0, ("TRAIN", ""): 2.0,
            ("EVAL", "worker_0"): 5.0, ("EVAL", "worker_1"): 15.0, ("EVAL", ""): 10.0,
        }
    )  # fmt: skip
    with pytest.raises(ConfigError, match="mode is 'PREDICT'; the tensors have rows in: TRAIN, EVAL"):
        plot.layers("a", mode="PREDICT")
    with pytest.raises(InvalidWorker, match="worker_9"):
        plot.layers("a", worker="worker_9")


def test_a_wrong_statistic_or_pattern_is_an_error_that_names_the_valid_ones(tmp_path: Path) -> None:
    plot = layered(tmp_path, layers=1, steps=1).plot
    with pytest.raises(ConfigError, match=r"statistic is 'absmean'; use abs_mean.*did you mean 'abs_mean'"):
        plot.layers(statistic="absmean")
    with pytest.raises(ConfigError, match="is not a regular expression"):
        plot.layers("(")


def test_a_pattern_without_tensors_gives_a_picture_with_the_reason(tmp_path: Path) -> None:
    assert "no tensor matches '^nothing'" in texts(
        layered(tmp_path, layers=1, steps=1).plot.layers("^nothing")
    )
