"""The numbers of the heat map, against NumPy on the tables of Trial.stats()."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tdcore.modes import ModeKeys
from tdcore.trial import Trial
from tdcore.view.answers import OpenRun, answer
from tdcore.view.answers.statistics import STATISTICS
from tests.trial.writer import RunWriter, place
from tests.view.contract import unpacked
from tests.view.some_runs import opened

Floats = npt.NDArray[np.float64]


def by_cell(
    trial: Trial, names: list[str], mode: ModeKeys, **filters: Any
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Rows with statistics by tensor and step of the mode."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in trial.stats(names, mode=mode, **filters).to_pylist():
        if row["count"] is not None:
            found.setdefault((row["name"], row["mode_step"]), []).append(row)
    return found


def independent(row: dict[str, Any], statistic: str) -> float:
    """A statistic of one row, by its definition."""
    bad = row["nan_count"] + row["pos_inf_count"] + row["neg_inf_count"]
    finite = row["count"] - bad
    if statistic in ("bad_count", "bad_share"):
        return float(bad) if statistic == "bad_count" else bad / row["count"] if row["count"] else math.nan
    if statistic == "zero_share":
        return row["zero_count"] / row["count"] if row["count"] else math.nan
    if not finite:
        return math.nan
    if statistic == "abs_mean":
        return float(row["abs_sum"] / finite)
    if statistic == "rms":
        return math.sqrt(row["square_sum"] / finite)
    return float(row[statistic])


@pytest.mark.parametrize("statistic", [name for name in STATISTICS if name != "update_ratio"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("healthy", "gradient"),
        ("healthy", "output"),
        ("sharded", "weight"),
        ("nan_everywhere", "weight"),
        ("four_ranks", "gradient"),
    ],
)
def test_each_cell_of_the_heat_map_is_the_statistic_of_its_rows(
    tmp_path: Path, name: str, kind: str, statistic: str
) -> None:
    with opened(tmp_path, name) as run:
        found = answer(run, "layers", {"kind": kind, "statistic": statistic})
        names = [row["name"] for row in found["rows"]]
        cells = by_cell(run.trial, names, ModeKeys.TRAIN, merged=len(run.trial.workers()) > 1)
    steps = unpacked(found["first_steps"]).astype(int).tolist()
    means = unpacked(found["mean"]).reshape(len(names), len(steps))
    for row, tensor in enumerate(names):
        for column, step in enumerate(steps):
            numbers = [independent(each, statistic) for each in cells.get((tensor, step), [])]
            expected = np.mean(numbers) if numbers else np.nan
            assert means[row, column] == pytest.approx(expected, rel=1e-6, nan_ok=True)


@settings(max_examples=30, deadline=None)
@example(columns=22, low=0, span=22)
@given(columns=st.integers(1, 40), low=st.integers(0, 29), span=st.integers(0, 29))
def test_a_range_of_steps_in_few_columns_has_the_extremes_of_all_of_its_rows(
    healthy: OpenRun, columns: int, low: int, span: int
) -> None:
    high = min(29, low + span)
    wanted = {"kind": "gradient", "columns": str(columns), "from": str(low), "to": str(high)}
    found = answer(healthy, "layers", wanted)
    names = [row["name"] for row in found["rows"]]
    first, last = (unpacked(found[each]).astype(int) for each in ("first_steps", "last_steps"))
    assert (first[0], last[-1]) == (low, high)
    assert len(first) == min(columns, high - low + 1)
    cells = by_cell(healthy.trial, names, ModeKeys.TRAIN, steps=range(low, high + 1))
    least, most = (unpacked(found[each]).reshape(len(names), len(first)) for each in ("min", "max"))
    for row, tensor in enumerate(names):
        for column in range(len(first)):
            steps = range(first[column], last[column] + 1)
            numbers = [independent(cells[tensor, step][0], "abs_mean") for step in steps]
            assert least[row, column] == pytest.approx(min(numbers), rel=1e-6)
            assert most[row, column] == pytest.approx(max(numbers), rel=1e-6)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRun]:
    """Return the run of RUNS of this name."""
    with opened(tmp_path_factory.mktemp("run"), "healthy") as run:
        yield run


@pytest.mark.parametrize("payload", [True, False], ids=["values", "statistics"])
def test_the_update_ratio_is_exact_with_values_and_else_a_lower_bound(tmp_path: Path, payload: bool) -> None:
    random = np.random.default_rng(5)
    run, weights, value = RunWriter(tmp_path), [], random.normal(size=20).astype(np.float32)
    steps = [0, 1, 4, 9]
    for step in steps:
        value = value + random.normal(size=20).astype(np.float32) * np.float32(0.1)
        weights.append(value.astype(np.float64))
        run.add("w", value, step=step, payload=payload)
    run.flush()
    run.end()
    with opened(tmp_path) as found:
        layers = answer(found, "layers", {"statistic": "update_ratio"})
    assert layers["statistic"]["label"].endswith(", at least") is not payload
    ratios = unpacked(layers["mean"])
    assert np.isnan(ratios[0])
    for at in range(1, 4):
        change = np.linalg.norm(weights[at] - weights[at - 1]) / np.linalg.norm(weights[at - 1])
        per_step = change / (steps[at] - steps[at - 1])
        if payload:
            assert ratios[at] == pytest.approx(per_step, rel=1e-6)
        else:
            assert 0 < ratios[at] <= per_step * (1 + 1e-6)


def test_the_range_of_colours_fits_the_scale_of_the_statistic(healthy: OpenRun) -> None:
    def range_of(statistic: str) -> tuple[list[float], Floats]:
        found = answer(healthy, "layers", {"kind": "gradient", "statistic": statistic})
        return found["range"], unpacked(found["mean"])

    limits, means = range_of("l2")
    assert limits == pytest.approx([means.min(), means.max()])
    limits, means = range_of("mean")
    assert limits == pytest.approx([-np.abs(means).max(), np.abs(means).max()])
    assert range_of("zero_share")[0] == [0.0, 1.0]
    assert range_of("bad_count")[0] is None  # a logarithmic scale without a number above 0


def test_the_first_bad_tensor_is_the_first_in_order_of_execution(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(4):
        bad = step >= 2
        run.add("z", np.array([1.0, np.nan if bad else 2.0]), step=step, kind="output")
        run.add("a", np.array([1.0, np.inf if bad else 2.0]), step=step, kind="output")
    run.flush()
    run.end()
    with opened(tmp_path) as found:
        layers = answer(found, "layers", {"kind": "output"})
    assert layers["first_bad"]["text"] == "z has 1 NaN at step 2"
    names = [row["name"] for row in layers["rows"]]
    assert names[layers["first_bad"]["row"]] == "z"
    flags = unpacked(layers["flags"]).reshape(2, 4)
    assert flags[names.index("z")].tolist() == [1, 1, 3, 3]
    assert flags[names.index("a")].tolist() == [1, 1, 5, 5]


def test_a_missing_part_is_marked_as_lost(tmp_path: Path) -> None:
    with opened(tmp_path, "sharded") as run:
        assert unpacked(answer(run, "layers", {})["flags"]).tolist() == [1, 1, 1, 1, 16]
        alone = answer(run, "layers", {"worker": "worker_3"})
    assert unpacked(alone["flags"]).tolist() == [1, 1, 1, 1]


def test_an_outline_covers_the_columns_of_its_finding(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(20):
        run.add("w", np.ones(3, np.float32), step=step)
    run.flush()
    run.end()
    line = {
        "rule": "R",
        "code": "X",
        "mode": "TRAIN",
        "tensor": "w",
        "step": 5,
        "mode_step": 5,
        "worker": "worker_0",
    }
    line |= {"why": "y", "do": "d", "count": 3, "last_step": 11, "last_mode_step": 11}
    run.write("findings/R.jsonl", (json.dumps(line) + "\n").encode())
    with opened(tmp_path) as found:
        (whole,) = answer(found, "layers", {})["outlines"]
        (coarse,) = answer(found, "layers", {"columns": "4"})["outlines"]
        outside = answer(found, "layers", {"from": "12"})["outlines"]
    assert (whole["row"], whole["first_column"], whole["last_column"]) == (0, 5, 11)
    assert (coarse["first_column"], coarse["last_column"]) == (1, 2)
    assert outside == []
    assert whole["finding"]["last"]["text"] == "step 11"


def test_a_merged_cell_of_workers_is_that_of_the_whole_tensor(tmp_path: Path) -> None:
    whole = np.random.default_rng(8).normal(size=(8, 3)).astype(np.float32)
    for rank in range(4):
        run = RunWriter(tmp_path, worker=f"worker_{rank}", world_size=4)
        run.add("w", whole[2 * rank : 2 * rank + 2], step=0, shard=place([8, 3], [2 * rank, 0]))
        run.flush()
        run.end()
    with opened(tmp_path) as found:
        layers = answer(found, "layers", {"statistic": "l2"})
        part = answer(found, "layers", {"statistic": "l2", "worker": "worker_1"})
    assert unpacked(layers["mean"]) == pytest.approx([np.linalg.norm(whole.astype(np.float64))], rel=1e-6)
    assert unpacked(part["mean"]) == pytest.approx([np.linalg.norm(whole[2:4].astype(np.float64))], rel=1e-6)
    assert layers["rows"][0]["shape"] == [8, 3]
