"""Statistics of whole tensors, computed from those of the workers' parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError, TensorUnavailableForStep
from tdcore.trial import create_trial
from tests.trial.sharding import Box, add_part, partitions, rows, workers, write_parts
from tests.trial.writer import RunWriter, place, statistics

W = np.arange(24, dtype=np.float32).reshape(6, 4)
ROUNDED = {"mean", "m2", "abs_sum", "square_sum"}


def merged(root: Path, **filters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = create_trial(root).stats(merged=True, **filters).to_pylist()
    return found


def assert_same(row: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if name in ROUNDED and value is not None:
            scale = max(1.0, abs(wanted["abs_sum"]), wanted["square_sum"])
            assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-12 * scale, nan_ok=True), name
        elif isinstance(value, float) and math.isnan(value):
            assert math.isnan(row[name]), name
        elif name != "log2_first" or wanted["log2_counts"]:
            assert row[name] == value, name


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=partitions(), parts=st.integers(1, 2))
def test_parts_have_the_statistics_of_the_whole(
    case: tuple[npt.NDArray[Any], list[Box]], parts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values, boxes = case
    root = tmp_path_factory.mktemp("run")
    write_parts(root, values, boxes, parts=parts, payload=False)
    (row,) = merged(root)
    assert_same(row, statistics(values))
    assert (row["shape"], row["workers"]) == (list(values.shape), len(boxes))
    assert (row["elements"], row["status"], row["reason"]) == (values.size, "ok", None)
    x = values.astype(np.float64).ravel()
    finite = x[np.isfinite(x)]
    assert row["l1"] == pytest.approx(np.abs(finite).sum())
    assert row["l2"] == pytest.approx(np.sqrt(np.square(finite).sum()))
    assert row["sum"] == pytest.approx(finite.sum(), abs=1e-9 * max(1.0, np.abs(finite).sum()))
    if len(finite):
        assert row["std"] == pytest.approx(finite.std(), abs=1e-9 * max(1.0, np.abs(finite).max()))


def test_each_step_and_tensor_has_one_row(tmp_path: Path) -> None:
    for run, box in zip(workers(tmp_path, 3), rows(W.shape, 3), strict=True):
        for step in (0, 5):
            add_part(run, "b", W + step, box, step=step, kind="gradient")
            add_part(run, "a", W * 2, box, step=step)
        run.flush()
        run.end()
    found = merged(tmp_path)
    assert [(row["step"], row["name"], row["kind"], row["mean"]) for row in found] == [
        (0, "b", "gradient", 11.5),
        (0, "a", "weight", 23.0),
        (5, "b", "gradient", 16.5),
        (5, "a", "weight", 23.0),
    ]
    assert [row["name"] for row in merged(tmp_path, kinds="weight", steps=5)] == ["a"]
    one = create_trial(tmp_path).tensor("b").global_stats(steps=[5])
    assert one.column("max").to_pylist() == [28.0]
    assert create_trial(tmp_path).tensor("b").stats().num_rows == 6


def test_a_whole_of_one_worker_keeps_its_statistics(run: RunWriter) -> None:
    run.add("w", W, step=0)
    run.add("loss", 0.5, step=0, kind="loss")
    run.add("frozen", None, step=0, status="absent")
    run.flush()
    run.end()
    trial = create_trial(run.root)
    plain, whole = trial.stats(), trial.stats(merged=True)
    shared = [name for name in whole.column_names if name in plain.column_names]
    assert whole.select(shared).to_pylist() == plain.select(shared).to_pylist()
    assert whole.column("workers").to_pylist() == [1, 1, 0]


def test_tensors_that_each_worker_has_for_itself_are_laid_end_to_end(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(3, 1, (4, 10)).astype(np.float32)
    for rank, run in enumerate(workers(tmp_path, 4)):
        run.add("relu", values[rank] if rank < 3 else None, step=0, status="ok" if rank < 3 else "absent")
        run.flush()
        run.end()
    (row,) = merged(tmp_path)
    assert_same(row, statistics(values[:3]))
    assert (row["workers"], row["shape"], row["elements"]) == (3, None, 30)


def test_missing_part_leaves_no_statistics_and_is_told(tmp_path: Path) -> None:
    write_parts(tmp_path, W, rows(W.shape, 3)[:2])
    (row,) = merged(tmp_path)
    assert (row["status"], row["reason"], row["count"], row["l2"]) == ("lost", "incomplete", None, None)
    assert row["shape"] == [6, 4]


def test_part_without_statistics_leaves_none_for_the_whole(tmp_path: Path) -> None:
    for rank, (run, box) in enumerate(zip(workers(tmp_path, 2), rows(W.shape, 2), strict=True)):
        add_part(run, "w", W, box, stats=rank == 0)
        run.flush()
        run.end()
    (row,) = merged(tmp_path)
    assert (row["status"], row["count"], row["mean"]) == ("ok", None, None)
    tensor = create_trial(tmp_path).tensor("w")
    assert tensor.reduction_value(0, "mean") == 11.5  # computed from the values


def test_copy_with_statistics_stands_for_one_without(tmp_path: Path) -> None:
    for rank, run in enumerate(workers(tmp_path, 3)):
        add_part(run, "w", W, rows(W.shape, 1)[0], stats=rank == 2)
        run.flush()
        run.end()
    (row,) = merged(tmp_path)
    assert_same(row, statistics(W))


def test_copies_that_differ_are_told_and_the_first_counts(tmp_path: Path) -> None:
    for rank, run in enumerate(workers(tmp_path, 3)):
        add_part(run, "w", W + (rank == 2), rows(W.shape, 1)[0])
        run.flush()
        run.end()
    (row,) = merged(tmp_path)
    assert_same(row, statistics(W))
    assert (row["status"], row["reason"]) == ("ok", "copies_differ")
    with pytest.raises(TensorUnavailableForStep, match="the copies of the workers differ"):
        create_trial(tmp_path).tensor("w").reduction_value(0, "mean")


def test_sums_rounded_otherwise_do_not_make_copies_differ(tmp_path: Path) -> None:
    for rank, run in enumerate(workers(tmp_path, 2)):
        add_part(run, "w", W, rows(W.shape, 1)[0], abs_sum=276.0 * (1 + rank * 1e-13))
        run.flush()
        run.end()
    assert merged(tmp_path)[0]["reason"] is None


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (place([6, 4], [2, 0]), "overlap"),
        (place([7, 4], [3, 0]), "disagree"),
        (None, "disagree"),
        (place([6, 4], [3, 0], "sum"), "partial"),
    ],
)
def test_parts_that_do_not_fit_have_no_statistics(
    second: dict[str, Any] | None, reason: str, tmp_path: Path
) -> None:
    for run, shard in zip(workers(tmp_path, 2), (place([6, 4], [0, 0]), second), strict=True):
        run.add("w", W[:3] if reason != "overlap" or run.worker[-1] == "0" else W[:4], step=0, shard=shard)
        run.flush()
        run.end()
    (row,) = merged(tmp_path)
    assert (row["status"], row["reason"], row["count"]) == ("lost", reason, None)


def test_statistics_of_partial_values_are_refused_and_its_reductions_come_from_the_values(
    tmp_path: Path,
) -> None:
    for run in workers(tmp_path, 2):
        run.add("w", W, step=0, shard=place(W.shape, [0, 0], "sum"))
        run.flush()
        run.end()
    tensor = create_trial(tmp_path).tensor("w")
    with pytest.raises(TensorUnavailableForStep, match="cannot be computed from") as caught:
        tensor.global_stats()
    assert caught.value.reason == "partial"
    assert tensor.reduction_value(0, "max") == 46.0
    assert tensor.reduction_value(0, "max", worker="worker_1") == 23.0
    assert tensor.reduction_values(0) == {}


def test_gradient_that_no_worker_has_is_absent(tmp_path: Path) -> None:
    for run in workers(tmp_path, 2):
        run.add("g", None, step=0, kind="gradient", status="absent", shard=place([6, 4], [0, 0]))
        run.flush()
        run.end()
    (row,) = merged(tmp_path)
    assert (row["status"], row["reason"], row["count"], row["workers"]) == ("absent", None, None, 0)
    with pytest.raises(TensorUnavailableForStep) as caught:
        create_trial(tmp_path).tensor("g").value(0)
    assert caught.value.reason == "absent"


def test_reductions_are_those_of_the_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    write_parts(tmp_path, values, rows(values.shape, 4), payload=False)
    tensor = create_trial(tmp_path).tensor("w")
    x = values.astype(np.float64)
    assert tensor.reduction_value(0, "l2") == pytest.approx(np.linalg.norm(x))
    assert tensor.reduction_value(0, "std", abs=True) == pytest.approx(np.abs(x).std())
    assert tensor.reduction_value(0, "l2", worker="worker_1") == pytest.approx(np.linalg.norm(x[2:4]))
    assert tensor.reduction_values(0)["mean", False] == pytest.approx(x.mean())


def test_columns_are_chosen_by_name(tmp_path: Path) -> None:
    write_parts(tmp_path, W, rows(W.shape, 2))
    table: pa.Table = create_trial(tmp_path).stats(merged=True, columns=["l1", "step", "workers"])
    assert table.to_pylist() == [{"l1": 276.0, "step": 0, "workers": 2}]
    with pytest.raises(ConfigError, match="'worker' is not a column of merged statistics"):
        create_trial(tmp_path).stats(merged=True, columns=["worker"])


def test_merged_statistics_of_an_empty_run_are_an_empty_table(run: RunWriter) -> None:
    run.end()
    table = create_trial(run.root).stats(merged=True)
    assert table.num_rows == 0
    assert {"workers", "l2", "log2_counts"} <= set(table.column_names)


def test_each_column_alone_is_that_of_the_whole_table(tmp_path: Path) -> None:
    ranks = workers(tmp_path, 2)
    for run, offset in zip(ranks, (0, 3), strict=True):
        for step in range(3):
            run.add("w", W[offset : offset + 3] + step, step=step, shard=place(W.shape, [offset, 0]))
            run.add("b", W[0] + (step == 1) * offset, step=step, shard=place([4], [0]))
            run.add("a", W[offset], step=step, kind="output", stats=step != 2)
        run.flush()
        run.end()
    trial = create_trial(tmp_path)
    table = trial.stats(merged=True)
    for name in table.column_names:
        assert (
            trial.stats(merged=True, columns=[name]).column(name).to_pylist()
            == table.column(name).to_pylist()
        )
    reasons = {(row["name"], row["step"]): row["reason"] for row in table.to_pylist()}
    assert {key: reason for key, reason in reasons.items() if reason} == {("b", 1): "copies_differ"}
