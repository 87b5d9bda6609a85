"""Trial.compare_workers: comparison of each worker with the others, and its deviation from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.trial import create_trial
from tests.trial.sharding import add_part, rows, workers, write_parts
from tests.trial.writer import RunWriter, place


def write(root: Path, *sizes: float | None, name: str = "gradient/w", **options: Any) -> None:
    """Write a run in which rank i has a one-element gradient of the i-th size;

    None: the gradient is absent.
    """
    for run, size in zip(workers(root, len(sizes)), sizes, strict=True):
        values = None if size is None else np.full(1, size)
        run.add(
            name, values, step=0, kind="gradient", status="ok" if values is not None else "absent", **options
        )
        run.flush()
        run.end()


def compared(root: Path, *arguments: Any, **filters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = create_trial(root).compare_workers(*arguments, **filters).to_pylist()
    return found


def test_the_outlier_is_first_in_order(tmp_path: Path) -> None:
    write(tmp_path, 1.0, 1.1, 9.0, 0.9, 1.0)
    found = compared(tmp_path, "^gradient/")
    assert [row["worker"] for row in found] == [f"worker_{rank}" for rank in range(5)]
    assert [row["value"] for row in found] == [1.0, 1.1, 9.0, 0.9, 1.0]
    assert {row["median"] for row in found} == {1.0}
    assert {row["alike"] for row in found} == {5}
    assert [row["order"] for row in found] == [4, 2, 1, 3, 5]
    outlier = found[2]
    assert outlier["deviation"] == pytest.approx(8.0 / (1.4826 * 0.1))
    assert (outlier["step"], outlier["name"], outlier["kind"]) == (0, "gradient/w", "gradient")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 6).map(float) | st.none(), min_size=2, max_size=7))
def test_medians_and_deviations_are_those_of_numpy(
    sizes: list[float | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("run")
    write(root, *sizes)
    x = np.array([np.nan if size is None else size for size in sizes])
    found = compared(root)
    if np.isnan(x).all():
        assert {(row["value"], row["median"], row["deviation"]) for row in found} == {(None, None, None)}
        return
    median = np.nanmedian(x)
    spread = 1.4826 * np.nanmedian(np.abs(x - median))
    for row, value in zip(found, x, strict=True):
        assert row["median"] == median
        if np.isnan(value):
            assert (row["value"], row["deviation"]) == (None, None)
        elif value == median:
            assert row["deviation"] == 0.0
        else:
            with np.errstate(divide="ignore"):
                assert row["deviation"] == pytest.approx(np.divide(value - median, spread))
    by_order = sorted(found, key=lambda row: row["order"])
    assert [row["order"] for row in by_order] == list(range(1, len(sizes) + 1))
    sizes_of = [abs(row["deviation"]) if row["deviation"] is not None else -1.0 for row in by_order]
    assert sizes_of == sorted(sizes_of, reverse=True)


def test_tensors_and_steps_are_compared_apart(tmp_path: Path) -> None:
    for rank, run in enumerate(workers(tmp_path, 3)):
        for step in (0, 1):
            for name in ("a", "b"):
                run.add(name, np.full(2, 1.0 + (rank == step and name == "a")), step=step)
        run.flush()
        run.end()
    worst = [row for row in compared(tmp_path, column="mean") if row["deviation"]]
    assert [(row["step"], row["name"], row["worker"], row["order"]) for row in worst] == [
        (0, "a", "worker_0", 1),
        (1, "a", "worker_1", 1),
    ]


def test_any_number_of_a_row_can_be_compared(tmp_path: Path) -> None:
    write(tmp_path, 1.0, float("nan"), 2.0)
    assert [row["value"] for row in compared(tmp_path, column="nan_count")] == [0.0, 1.0, 0.0]
    assert compared(tmp_path, column="time_ns")[0]["alike"] == 3
    with pytest.raises(ConfigError, match="'shape' is not a column that can be compared"):
        compared(tmp_path, column="shape")


def test_different_parts_of_a_tensor_are_compared_only_when_asked(tmp_path: Path) -> None:
    write_parts(tmp_path, np.arange(8.0).reshape(4, 2), rows((4, 2), 4))
    found = compared(tmp_path, column="mean")
    assert {(row["deviation"], row["alike"]) for row in found} == {(None, 1)}
    across = compared(tmp_path, column="mean", across_shards=True)
    assert {(row["median"], row["alike"]) for row in across} == {(3.5, 4)}


def test_copies_of_a_part_are_compared_with_each_other(tmp_path: Path) -> None:
    values = np.ones((4, 2))
    for rank, run in enumerate(workers(tmp_path, 6)):
        add_part(run, "w", values * (1 + (rank == 3)), rows((4, 2), 2)[rank % 2])
        run.flush()
        run.end()
    found = compared(tmp_path, column="mean")
    assert [row["median"] for row in found] == [1.0] * 6
    assert [(row["worker"], row["order"]) for row in found if row["deviation"]] == [("worker_3", 1)]
    assert {row["alike"] for row in found} == {3}


def test_partial_summands_are_compared_with_each_other(tmp_path: Path) -> None:
    write(tmp_path, 1.0, 1.0, 5.0, shard=place([1], [0], "sum"))
    assert [row["deviation"] for row in compared(tmp_path)] == [0.0, 0.0, float("inf")]


def test_nothing_to_compare_is_an_empty_table(run: RunWriter) -> None:
    run.end()
    assert create_trial(run.root).compare_workers().num_rows == 0
