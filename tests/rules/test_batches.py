"""A long history is judged in batches of whole steps, with the findings of one batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.rules import RULES
from tdcore.rules.engine import Engine
from tdcore.rules.loading import load_rules
from tdcore.rules.run_source import RunSource
from tests.trial.writer import RunWriter


def _write(root: Path) -> None:
    """Two workers, 40 training steps and an evaluation; gradients vanish, and a loss becomes NaN."""
    random = np.random.default_rng(0)
    for rank in range(2):
        run = RunWriter(root, worker=f"worker_{rank}", world_size=2, workers=["worker_0", "worker_1"])
        for step in range(40):
            mode = "EVAL" if step % 10 == 9 else "TRAIN"
            scale = 1e-12 if step > 15 else 1.0
            run.add("loss", np.float32(np.nan if step > 30 else 1.0), step=step, mode=mode, kind="loss")
            for layer in range(3):
                values = random.standard_normal((4, 5)).astype(np.float32)
                run.add(f"layer{layer}.weight", values, step=step, mode=mode, payload=False)
                if mode == "TRAIN":
                    name = f"gradient/layer{layer}.weight"
                    run.add(name, values * scale, step=step, kind="gradient", payload=False)
            if step % 13 == 0:
                run.flush()
        run.flush()
        run.end()


def _judged(root: Path) -> tuple[list[Any], list[Any], int, list[int]]:
    """Findings, verdicts, number of rows, and the number of rows of each batch."""
    source, sizes = RunSource(root), list[int]()
    original = source.next

    def following(*args: Any, **kwargs: Any) -> Any:
        batch = original(*args, **kwargs)
        sizes.append(batch.table.num_rows)
        return batch

    source.next = following  # type: ignore[method-assign]
    engine = Engine(source, load_rules(list(RULES)), write_findings=False)
    found = engine.step(everything=True)
    verdicts = [_parts(repr(each)) for each in engine.verdicts(finished=True)]
    return sorted(map(repr, found)), verdicts, engine.rows, sizes


def _parts(verdict: str) -> list[str]:
    """The parts of the text of a verdict, whose reasons are in the order of their first occurrence."""
    return sorted(re.split(r"; |: |[().]", verdict))


@pytest.mark.parametrize("rows", [1, 10, 50])
def test_batches_have_the_findings_of_one_batch(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path)
    found, verdicts, number, sizes = _judged(tmp_path)
    assert found
    assert len(sizes) == 1
    monkeypatch.setattr("tdcore.rules.run_source._BATCH_ROWS", rows)
    in_batches = _judged(tmp_path)
    assert len(in_batches[3]) > 3
    assert in_batches[:3] == (found, verdicts, number)


def test_a_step_is_never_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path)
    monkeypatch.setattr("tdcore.rules.run_source._BATCH_ROWS", 1)
    source, steps, more = RunSource(tmp_path), list[set[int]](), True
    while more:
        batch = source.next(["step", "worker", "name"])
        steps.append(set(batch.table.column("step").to_pylist()))
        more = batch.more
    assert [len(each) for each in steps] == [1] * 40
    assert sorted(set().union(*steps)) == list(range(40))


def test_a_source_that_is_resumed_between_two_batches_returns_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path)
    monkeypatch.setattr("tdcore.rules.run_source._BATCH_ROWS", 30)
    columns = ["worker", "step", "name", "seq"]
    first, later = RunSource(tmp_path), RunSource(tmp_path)
    rows = first.next(columns).table.to_pylist() + first.next(columns).table.to_pylist()
    later.resume(first.position())
    more = True
    while more:
        batch = later.next(columns)
        rows += batch.table.to_pylist()
        more = batch.more
    wanted = RunSource(tmp_path)
    monkeypatch.setattr("tdcore.rules.run_source._BATCH_ROWS", 10**6)
    assert sorted(map(repr, rows)) == sorted(map(repr, wanted.next(columns).table.to_pylist()))
