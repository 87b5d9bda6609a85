"""The pictures of losses, histograms, ranks, two runs, and step times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.errors import ConfigError, InvalidWorker, TensorUnavailable
from tdcore.format.step_times import PHASES
from tdcore.hooks.pytorch import Hook
from tdcore.trial import create_trial
from tests.plot.runs import part, texts
from tests.trial.writer import RunWriter


def losses(place: Path, values: list[float], name: str = "loss") -> td.Trial:
    run = RunWriter(place)
    for step, value in enumerate(values):
        run.add(name, value, step=step, kind="loss")
    run.flush()
    run.end()
    return create_trial(place)


def curve(axes: object, label: str) -> tuple[list[float], list[float]]:
    (line,) = [each for each in axes.get_lines() if each.get_label() == label]  # type: ignore[attr-defined]
    return list(line.get_xdata()), list(line.get_ydata())


# Losses. ----------------------------------------------------------------------------------------------------


def test_losses_of_all_modes_are_drawn_over_the_steps_of_their_mode(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "mine")
    step = 0
    for at in range(6):
        run.add("loss", 10.0 / 2**at, step=step, mode_step=at, kind="loss")
        step += 1
        if at % 3 == 2:
            run.add("loss", 7.0 + at, step=step, mode="EVAL", mode_step=at // 3, kind="loss")
            step += 1
    run.flush()
    figure = create_trial(tmp_path / "mine").plot.loss()
    train, evaluation = figure.axes
    assert curve(train, "loss") == ([0, 1, 2, 3, 4, 5], [10.0 / 2**at for at in range(6)])
    assert curve(evaluation, "loss") == ([0, 1], [9.0, 12.0])
    assert (train.get_yscale(), evaluation.get_yscale()) == ("log", "linear")
    assert (train.get_xlabel(), evaluation.get_xlabel()) == ("TRAIN step", "EVAL step")
    assert texts(figure).count("mine: loss by steps of TRAIN and EVAL") == 1


def test_a_loss_that_is_not_finite_is_a_gap_with_a_cross(tmp_path: Path) -> None:
    (axes,) = losses(tmp_path, [3.0, math.nan, math.inf, 2.0]).plot.loss().axes
    steps, values = curve(axes, "loss")
    assert steps == [0, 1, 2, 3]
    np.testing.assert_array_equal(values, [3.0, math.nan, math.nan, 2.0])
    assert list(part(axes, "bad").get_xdata()) == [1, 2]


def test_many_steps_are_reduced_to_means_and_keep_their_extremes(tmp_path: Path) -> None:
    values = [1.0 + (step % 7) for step in range(3000)]
    values[1234] = 500.0
    (axes,) = losses(tmp_path, values).plot.loss().axes
    steps, means = curve(axes, "loss")
    assert len(steps) <= 900
    assert max(means) < 500.0
    (area,) = axes.collections
    assert area.get_datalim(axes.transData).y1 == 500.0


# Histograms. ------------------------------------------------------------------------------------------------


def test_a_histogram_has_the_share_of_each_power_of_two(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("w", np.array([1.0, 1.5, 4.0, 0.0]), step=0)
    run.add("w", np.array([2.0, 2.0, 2.0, np.nan]), step=1)
    run.flush()
    figure = create_trial(tmp_path).plot.histogram("w")
    mesh = part(figure.axes[0], "shares")
    assert mesh.get_array().filled(0.0).tolist() == [[0.5, 0.0], [0.0, 0.75], [0.25, 0.0]]
    assert mesh.get_coordinates()[:, 0, 1].tolist() == [1.0, 2.0, 4.0, 8.0]
    assert figure.axes[0].get_yscale() == "log"
    assert curve(figure.axes[1], "zero") == ([0, 1], [0.25, 0.0])
    assert curve(figure.axes[1], "NaN or infinite") == ([0, 1], [0.0, 0.25])


def test_a_tensor_of_zeros_and_one_without_statistics_have_histograms(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("zeros", np.zeros(3), step=0)
    run.add("none", np.ones(3), step=0, stats=False)
    run.flush()
    plot = create_trial(tmp_path).plot
    assert curve(plot.histogram("zeros").axes[1], "zero") == ([0], [1.0])
    assert "no statistics in mode TRAIN" in texts(plot.histogram("none"))
    with pytest.raises(TensorUnavailable, match="no tensor 'other'"):
        plot.histogram("other")


# Ranks. -----------------------------------------------------------------------------------------------------


def ranks(place: Path, workers: int, odd: int | None = None) -> td.Trial:
    for rank in range(workers):
        run = RunWriter(place, worker=f"worker_{rank}", world_size=workers)
        for step in range(5):
            size = 1.0 + 0.001 * rank + (50.0 if rank == odd and step > 2 else 0.0)
            run.add("gradient/w", np.full(4, size), step=step, kind="gradient")
        run.flush()
        run.end()
    return create_trial(place)


def test_each_worker_has_a_curve_and_the_outlier_is_named(tmp_path: Path) -> None:
    figure = ranks(tmp_path, 5, odd=3).plot.ranks("gradient/w")
    (axes,) = figure.axes
    for rank in range(5):
        label = f"worker_{rank}{' (differs)' if rank == 3 else ''}"
        size = [2 * (1.0 + 0.001 * rank + (50.0 if rank == 3 and step > 2 else 0.0)) for step in range(5)]
        steps, values = curve(axes, label)
        assert steps == [0, 1, 2, 3, 4]
        assert values == pytest.approx(size)
    assert "differs from the median: worker_3" in texts(figure)


def test_equal_workers_have_no_outlier_and_one_worker_has_nothing_to_compare(tmp_path: Path) -> None:
    assert "no worker differs from the others" in texts(ranks(tmp_path / "a", 4).plot.ranks("gradient/w"))
    assert "only worker_0 has saved it" in texts(ranks(tmp_path / "b", 1).plot.ranks("gradient/w"))


@pytest.mark.parametrize("column", ["l2", "mean"])
def test_a_worker_with_nan_is_highlighted_and_its_nan_is_a_cross(tmp_path: Path, column: str) -> None:
    for rank in range(4):
        run = RunWriter(tmp_path, worker=f"worker_{rank}", world_size=4)
        for step in range(3):
            loss = np.float32("nan" if (rank, step) == (2, 1) else 1 + rank / 10)
            run.add("loss", loss, kind="loss", step=step)
        run.flush()
        run.end()
    figure = td.create_trial(tmp_path).plot.ranks("loss", column=column)
    assert "differs from the median: worker_2 (NaN or infinite elements)" in texts(figure)
    (cross,) = [each for each in figure.axes[0].lines if each.get_gid() == "bad"]
    assert np.asarray(cross.get_xdata()).tolist() == [1]


# Two runs. --------------------------------------------------------------------------------------------------


def test_two_runs_are_aligned_by_steps_and_the_step_where_they_part_is_marked(tmp_path: Path) -> None:
    one = losses(tmp_path / "one", [8.0, 4.0, 2.0, 1.0])
    other = losses(tmp_path / "other", [8.0, 4.0, 3.0, 3.0, 3.0])
    figure = one.plot.compare(other)
    (axes,) = figure.axes
    assert curve(axes, "one") == ([0, 1, 2, 3], [8.0, 4.0, 2.0, 1.0])
    assert curve(axes, "other") == ([0, 1, 2, 3, 4], [8.0, 4.0, 3.0, 3.0, 3.0])
    assert list(part(axes, "parting").get_xdata()) == [2, 2]
    assert "TRAIN: they differ from step 2" in texts(figure)
    assert "TRAIN: equal at all 4 common steps" in texts(one.plot.compare(one))


def test_runs_without_a_common_tensor_cannot_be_compared(tmp_path: Path) -> None:
    one, other = losses(tmp_path / "one", [1.0], "mine"), losses(tmp_path / "other", [1.0], "theirs")
    assert "no common loss" in texts(one.plot.compare(other))
    with pytest.raises(TensorUnavailable, match="no tensor 'mine'"):
        one.plot.compare(other, "mine")
    with pytest.raises(ConfigError, match="statistic is 'L2'"):
        one.plot.compare(one, "mine", statistic="L2")


# Times. -----------------------------------------------------------------------------------------------------


def test_the_phases_of_a_step_add_up_to_its_duration(tmp_path: Path) -> None:
    model, criterion = nn.Linear(3, 2), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Hook(tmp_path, flusher="thread") as hook:
        hook.register_module(model)
        for _ in range(20):
            optimizer.zero_grad()
            criterion(model(torch.randn(4, 3)), torch.tensor([0, 1, 1, 0])).backward()
            optimizer.step()
    trial = create_trial(tmp_path)
    (axes,) = trial.plot.time().axes
    table = trial.steps_time()
    phases: list[Any] = [each for each in axes.get_children() if each.get_gid() in PHASES]
    heights = np.sum([each.get_data().values - each.get_data().baseline for each in phases], axis=0)
    durations = table["duration_ns"].to_numpy() / 1e6
    assert len(heights) == len(durations)
    np.testing.assert_allclose(heights, durations, rtol=0.01)  # phases below 0.1 % have no colour
    with pytest.raises(InvalidWorker, match="it has worker_0"):
        trial.plot.time(worker="worker_7")
