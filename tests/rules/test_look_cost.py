"""The cost of a poll of a long run depends only on its new rows: counted in objects, bytes and rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tdcore.rules import (
    AbsentGradient,
    Engine,
    ExplodingTensor,
    LossNotDecreasing,
    RuleProtocol,
    VanishingGradient,
    WrongMode,
)
from tdcore.rules.diagnosis.histories import FactRows
from tdcore.rules.measures import first_facts
from tdcore.rules.run_source import RunSource
from tdcore.rules.trace import Trace
from tdcore.rules.window import Coverage
from tdcore.sinks import LocalSink
from tests.rules.judging import LookByLook
from tests.trial.writer import RunWriter


def test_rows_that_are_counted_only_cost_one_call_per_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    skip = Coverage.skip

    def counting(self: Coverage, *tensor: Any, **number: Any) -> None:
        calls.append(1)
        skip(self, *tensor, **number)

    monkeypatch.setattr(Coverage, "skip", counting)
    trace = Trace()
    for step in range(50):
        for layer in range(3):
            trace.add(step, f"gradient/{layer}", "gradient", [1e-9])
    engine = Engine(trace.source(), [VanishingGradient()], max_findings=6)
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert [(f.count, f.last_step, f.last_mode_step) for f in verdict.findings] == [(50, 49, 49)] * 3
    assert len(calls) == 3


@pytest.mark.parametrize("rule", [AbsentGradient(), WrongMode()])
def test_rules_that_need_no_values_look_at_each_tensor_of_the_first_steps_once(
    rule: RuleProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []

    class Counting(FactRows):
        def __init__(self, table: pa.Table) -> None:
            rows.append(table.num_rows)
            super().__init__(table)

    monkeypatch.setattr(first_facts, "FactRows", Counting)
    trace = Trace()
    for step in range(10):
        for layer in range(3):
            trace.add(step, f"gradient/Net_{layer}.weight", "gradient", [1.0])
    engine = Engine(LookByLook(trace), [rule])
    for _ in trace.rows:
        engine.step()
    assert sum(rows) == 3
    assert engine.verdicts(finished=True)[0].judged > 0


class CountingSink(LocalSink):
    """A sink that counts read operations."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.reads = 0
        self.bytes = 0
        self.written = 0

    def _count(self, data: Any) -> Any:
        self.reads += 1
        self.bytes += len(data)
        return data

    def get(self, key: str) -> bytes:
        return bytes(self._count(super().get(key)))

    def tail(self, key: str, length: int) -> bytes:
        return bytes(self._count(super().tail(key, length)))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Any:
        pieces = super().get_ranges(key, ranges)
        self._count(b"".join(pieces))
        return pieces

    def put(self, key: str, parts: Sequence[Any]) -> None:
        self.written += 1
        super().put(key, parts)


def written(place: Path, steps: int) -> RunWriter:
    """Write a run as a flusher leaves it: all rows merged, except the newest ones."""
    writer = RunWriter(place)
    for step in range(steps):
        add(writer, step)
    writer.flush()
    return writer


def add(writer: RunWriter, step: int) -> None:
    for tensor in range(4):
        writer.add(f"gradient/{tensor}", np.ones(2), step=step, kind="gradient", payload=False)
    writer.add("loss", 1.0 / (step + 1), step=step, kind="loss", payload=False)


def cost_of_a_look(place: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the cost of the fifth poll, each with one new step, on a run with this many steps before."""
    writer = written(place, steps)
    sink = CountingSink(str(place))
    source = RunSource(place, sink=sink, clock=lambda: 0.0)
    rules: list[RuleProtocol] = [ExplodingTensor(), VanishingGradient(), LossNotDecreasing()]
    engine = Engine(source, rules, sink=sink)
    engine.step()
    touched = [0]
    column = type(source._index).column

    def counted(index: Any, name: str) -> Any:
        return Counted(column(index, name), touched)

    for step in range(steps, steps + 5):
        add(writer, step)
        writer.flush()
        sink.reads = sink.bytes = sink.written = touched[0] = 0
        with monkeypatch.context() as patch:
            patch.setattr(type(source._index), "column", counted)
            engine.step()
    assert engine.rows == (steps + 4) * 5
    return {"reads": sink.reads, "written": sink.written, "touched": touched[0], "bytes": sink.bytes}


class Counted:
    """A column that counts the elements which are read from it."""

    def __init__(self, array: Any, touched: list[int]) -> None:
        self.array = array
        self.touched = touched

    def __getitem__(self, rows: Any) -> Any:
        found = self.array[rows]
        self.touched[0] += np.size(found)
        return found


def test_a_look_at_a_long_run_reads_and_touches_as_much_as_one_at_a_short_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = cost_of_a_look(tmp_path / "short", 20, monkeypatch)
    long = cost_of_a_look(tmp_path / "long", 2000, monkeypatch)
    assert 0 < short["touched"] < 50 * 5 * 2
    assert long["bytes"] == pytest.approx(short["bytes"], abs=64)  # numbers have more digits
    assert {**long, "bytes": 0} == {**short, "bytes": 0}


def test_a_look_at_which_nothing_came_reads_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = written(tmp_path, 50)
    sink = CountingSink(str(tmp_path))
    source = RunSource(tmp_path, sink=sink, clock=lambda: 0.0)
    engine = Engine(source, [ExplodingTensor()])
    engine.step()
    sink.reads = 0
    engine.step()
    engine.step()
    assert sink.reads == 0
    writer.end()
    engine.step()
    assert sink.reads == 1  # the end file
