"""Trial.stats: one row per tensor, step, worker and call, correct for any number of parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tdcore import modes
from tdcore.errors import ConfigError, InvalidAttempt, InvalidWorker
from tdcore.trial import create_trial
from tests.trial.large_files import EVERY_FILE, NO_FILE, large_files
from tests.trial.writer import STATISTICS, RunWriter, statistics


def column(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table.column(name).to_pylist()
    return values


def fill(run: RunWriter) -> None:
    for step in range(4):
        mode = "EVAL" if step == 3 else "TRAIN"
        mode_step = 0 if step == 3 else step
        run.add("fc.weight", np.full(3, step, np.float32), step=step, mode=mode, mode_step=mode_step)
        run.add(
            "gradient/fc.weight",
            np.full(3, -step, np.float32),
            step=step,
            mode=mode,
            mode_step=mode_step,
            kind="gradient",
        )
    run.flush()
    run.end()


def test_rows_are_ordered_by_step_and_execution(run: RunWriter) -> None:
    fill(run)
    table = create_trial(run.root).stats()
    assert column(table, "step") == [0, 0, 1, 1, 2, 2, 3, 3]
    assert column(table, "name")[:2] == ["fc.weight", "gradient/fc.weight"]
    assert column(table, "mean") == [0, 0, 1, -1, 2, -2, 3, -3]


def test_filters_select_names_steps_modes_and_kinds(run: RunWriter) -> None:
    fill(run)
    trial = create_trial(run.root)
    assert set(column(trial.stats("^grad"), "name")) == {"gradient/fc.weight"}
    assert set(column(trial.stats("fc"), "name")) == {"fc.weight", "gradient/fc.weight"}
    assert set(column(trial.stats(["fc.weight", "none"]), "name")) == {"fc.weight"}
    assert set(column(trial.stats(kinds="gradient"), "kind")) == {"gradient"}
    assert set(column(trial.stats(kinds=["WEIGHT", "loss"]), "kind")) == {"weight"}
    assert set(column(trial.stats(steps=2), "step")) == {2}
    assert set(column(trial.stats(steps=range(0, 4, 2)), "step")) == {0, 2}
    assert set(column(trial.stats(steps=range(3, 0, -2)), "step")) == {1, 3}
    assert trial.stats(steps=range(0)).num_rows == 0
    assert set(column(trial.stats(steps=[1, 99]), "step")) == {1}
    assert set(column(trial.stats(mode=modes.EVAL), "step")) == {3}
    assert set(column(trial.stats(mode=modes.EVAL, steps=[0]), "step")) == {3}
    assert trial.stats(mode=modes.PREDICT).num_rows == 0
    assert trial.stats(workers="worker_0").num_rows == 8
    assert trial.stats(attempt=0).num_rows == 8
    assert trial.stats(columns=["step", "std"]).column_names == ["step", "std"]


def test_wrong_filters_say_what_there_is(run: RunWriter) -> None:
    fill(run)
    trial = create_trial(run.root)
    with pytest.raises(ConfigError, match="not a regular expression"):
        trial.stats("(")
    with pytest.raises(InvalidWorker, match="it has worker_0"):
        trial.stats(workers=["worker_7"])
    with pytest.raises(InvalidAttempt, match="it has 0"):
        trial.stats(attempt=4)
    with pytest.raises(ConfigError, match="steps must be"):
        trial.stats(steps=["x"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="not a column of stats"):
        trial.stats(columns=["colour"])


def test_derived_columns_follow_from_the_statistics(run: RunWriter) -> None:
    values = np.array([1.0, -2.0, 3.5, 0.0])
    run.add("x", values, step=0)
    run.add("y", None, step=0, status="absent")
    run.add("z", np.array([np.nan, np.inf, 2.0]), step=0)
    run.flush()
    x, y, z = create_trial(run.root).stats().to_pylist()
    assert x["sum"] == pytest.approx(values.sum())
    assert x["variance"] == pytest.approx(values.var())
    assert x["std"] == pytest.approx(values.std())
    assert x["l1"] == pytest.approx(np.abs(values).sum())
    assert x["l2"] == pytest.approx(np.linalg.norm(values))
    assert all(y[name] is None for name in (*STATISTICS, "sum", "variance", "std", "l1", "l2"))
    assert (z["sum"], z["l1"], z["std"], z["nan_count"], z["pos_inf_count"]) == (2.0, 2.0, 0.0, 1, 1)


_FLOATS = hnp.arrays(
    np.float64,
    st.integers(1, 40),
    elements=st.floats(-1e6, 1e6, width=32)
    | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e15, 1e15 + 1]),
)


@settings(max_examples=40, deadline=None)
@given(values=_FLOATS, parts=st.integers(2, 6))
def test_parts_merge_to_the_statistics_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray[Any, np.dtype[np.float64]], parts: int
) -> None:
    run = RunWriter(tmp_path_factory.mktemp("run"))
    run.add("x", values, step=0, parts=parts, payload=False)
    run.flush()
    (row,) = create_trial(run.root).stats().to_pylist()
    whole = statistics(values)
    for name, value in whole.items():
        if name == "m2":
            scale = whole["square_sum"] if math.isfinite(whole["square_sum"]) else 1.0
            assert row[name] == pytest.approx(value, rel=1e-9, abs=1e-12 * scale)
        elif name == "log2_first":
            assert row[name] == value or not whole["log2_counts"]
        else:
            assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-9, nan_ok=True), name
    assert row["elements"] == len(values)
    assert row["parts"] == parts


def test_parts_with_a_large_mean_keep_their_variance(run: RunWriter) -> None:
    values = 1e9 + np.arange(1000) % 7
    run.add("x", values, step=0, parts=5, payload=False)
    run.flush()
    (row,) = create_trial(run.root).stats().to_pylist()
    assert row["variance"] == pytest.approx(values.var(), rel=1e-9)


def test_saved_bytes_of_all_parts_are_added(run: RunWriter) -> None:
    run.add("x", np.arange(10.0), step=0, parts=3)
    run.add("y", np.arange(10.0), step=0, parts=3, payload=False)
    run.flush()
    assert column(create_trial(run.root).stats(), "nbytes") == [80, None]


def test_tensor_saved_twice_at_a_step_has_one_row(run: RunWriter) -> None:
    run.add("x", np.array([1.0]), step=0)
    run.add("x", np.array([2.0, 4.0]), step=0, parts=2)
    run.add("x", np.array([3.0]), step=1)
    run.flush()
    table = create_trial(run.root).stats()
    assert column(table, "mean") == [3.0, 3.0]


def test_calls_of_one_step_have_rows_of_their_own(run: RunWriter) -> None:
    for call in range(3):
        run.add("x", np.array([float(call)]), step=0, call=call)
    run.flush()
    assert column(create_trial(run.root).stats(), "call") == [0, 1, 2]


def test_keys_with_huge_numbers_do_not_collide(run: RunWriter) -> None:
    steps = [0, 1, 2**62, 2**62 + 1]
    for step in steps:
        for call in (0, 2**31 - 1):
            run.add("x", np.array([1.0]), step=step, mode_step=0, call=call)
            run.add("y", np.array([1.0]), step=step, mode_step=0, call=call)
    run.flush()
    table = create_trial(run.root).stats()
    assert table.num_rows == 16
    assert sorted(set(column(table, "step"))) == steps


def test_incomplete_tensor_has_a_row_without_statistics(run: RunWriter) -> None:
    run.add("x", np.arange(4.0), step=0, payload=False, parts=1)
    run.flush(parts=2)
    (row,) = create_trial(run.root).stats().to_pylist()
    assert (row["status"], row["reason"], row["count"], row["std"]) == ("lost", "incomplete", None, None)


def test_saved_reductions_are_not_listed_as_tensors(run: RunWriter) -> None:
    run.add("x", np.arange(1.0, 4.0), step=0)
    run.add("x/prod", np.array(6.0), step=0, kind="reduction")
    run.flush()
    trial = create_trial(run.root)
    assert trial.tensor_names() == ["x"]
    assert column(trial.stats(), "name") == ["x"]
    assert column(trial.stats(kinds="reduction"), "name") == ["x/prod"]
    assert trial.rows().num_rows == 2


def test_rows_are_the_index_itself(run: RunWriter) -> None:
    run.add("x", np.arange(6.0), step=0, parts=3)
    run.flush()
    trial = create_trial(run.root)
    assert trial.rows().schema.names == trial.index.poll().schema.names
    assert column(trial.rows(columns=["part"]), "part") == [0, 1, 2]


def test_next_complete_gives_every_row_of_complete_steps_once(run: RunWriter) -> None:
    trial = create_trial(run.root)
    assert trial.next_complete().num_rows == 0
    run.add("x", np.ones(2), step=0)
    run.flush()
    assert trial.next_complete().num_rows == 0  # step 0 may still grow
    run.add("y", np.ones(2), step=0)
    run.add("x", np.ones(2), step=1)
    run.flush()
    assert column(trial.next_complete(), "name") == ["x", "y"]
    assert trial.next_complete().num_rows == 0
    run.end()
    assert column(trial.next_complete(), "step") == [1]
    assert trial.next_complete().num_rows == 0


def test_statistics_of_an_empty_run_are_an_empty_table(run: RunWriter) -> None:
    table = create_trial(run.root).stats()
    assert table.num_rows == 0
    assert {"step", "name", "mean", "std"} <= set(table.column_names)
    assert pc.sum(table.column("mean")).as_py() is None


def test_workers_are_told_apart(tmp_path: Path) -> None:
    for rank in range(2):
        run = RunWriter(tmp_path, worker=f"worker_{rank}")
        run.add("x", np.full(2, rank), step=0)
        run.flush()
    trial = create_trial(tmp_path)
    assert column(trial.stats(), "worker") == ["worker_0", "worker_1"]
    assert column(trial.stats(workers="worker_1"), "mean") == [1.0]


@pytest.mark.parametrize("rows", [EVERY_FILE, NO_FILE])
def test_batches_have_the_rows_of_stats_also_while_the_run_grows(tmp_path: Path, rows: int) -> None:
    run = RunWriter(tmp_path)
    fill(run)
    run.flush()
    with large_files(rows):
        trial = create_trial(tmp_path)
        expected, found = trial.stats("weight", columns=["name", "step"]).to_pylist(), list[dict[str, Any]]()
        for batch in trial.stats_batches("weight", columns=["name", "step"], batch_rows=2):
            found += batch.to_pylist()
            run.add(f"new{len(found)}.weight", np.ones(2, np.float32), step=9 + len(found))
            run.flush()
            trial.refresh()
        assert found == expected
        assert len(trial.stats("new")) == len(expected) // 2
