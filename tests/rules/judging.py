"""Shared parts of the tests of rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import TensorUnavailableForStep
from tdcore.rules.base import Finding, Rule, Verdict
from tdcore.rules.engine import Engine
from tdcore.rules.safe_pickle import dump, load
from tdcore.rules.source import RowBatch
from tdcore.rules.table_source import TableSource
from tdcore.rules.trace import Trace

LOSS = "CrossEntropyLoss_output_0"
_WINDOWS = 40  # approximate maximum, so that a trace of hundreds of steps is not cut at each of them


def judge(rule: Rule, trace: Trace) -> tuple[list[Finding], Verdict]:
    """Return all findings of a rule over a finished trace, and its verdict."""
    engine = Engine(trace.source(), [rule])
    found = engine.step()
    return found, engine.verdicts(finished=True)[0]  # after it: the rules that a rule combines


def losses(values: list[float], *, every: int = 1, mode: str = "TRAIN") -> Trace:
    """Return a trace of a scalar loss at steps 0, every, 2 * every, ..."""
    trace = Trace()
    for at, value in enumerate(values):
        trace.add(at * every, LOSS, "loss", value, mode=mode)
    return trace


class CutSource(TableSource):
    """A source that returns a trace in several windows, cut between any two steps of a worker.

    The workers come in random order, but the steps of each worker in their order, as in a run that is
    followed.
    """

    def __init__(self, trace: Trace, random: np.random.Generator, *, chance: float = 0.5) -> None:
        super().__init__(trace.table(), samples=trace.sample_table(), step_times=trace.step_time_table())
        self._all, self._values = self._table, trace.payloads
        self._everyone = super().next([]).ended
        waiting: dict[tuple[int, str], dict[int, list[int]]] = {}
        for at, row in enumerate(trace.rows):
            steps = waiting.setdefault((row["attempt"], row["worker"]), {})
            steps.setdefault(row["step"], []).append(at)
        queues = {key: [steps[step] for step in sorted(steps)] for key, steps in waiting.items()}
        chance = min(chance, _WINDOWS / max(1, sum(map(len, queues.values()))))
        self._windows: list[list[int]] = [[]]
        while queues:
            key = list(queues)[int(random.integers(len(queues)))]
            self._windows[-1] += queues[key].pop(0)
            if not queues[key]:
                del queues[key]
            if random.random() < chance:
                self._windows.append([])

    @property
    def windows_left(self) -> int:
        return len(self._windows)

    def next(self, columns: Sequence[str], *, everything: bool = False) -> RowBatch:
        """Return the next window; the last one ends the run."""
        rows = self._windows.pop(0) if self._windows else []
        return RowBatch(
            table=self._all.take(pa.array(rows, pa.int64())).select(columns),
            payload=lambda row: self._value(rows[row]),
            ended=frozenset() if self._windows else self._everyone,
        )

    def _value(self, row: int) -> npt.NDArray[Any]:
        if row not in self._values:
            raise TensorUnavailableForStep(f"row {row} of the trace has no values")
        return self._values[row]


class RunningSource(TableSource):
    """A trace of a live run: no worker has ended."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.table(), payloads=trace.payloads)

    def next(self, columns: Sequence[str], *, everything: bool = False) -> RowBatch:
        """Return all rows at the first call."""
        return replace(super().next(columns), ended=frozenset())


class LookByLook(TableSource):
    """A trace of a live run that is returned one row at a time."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.table())
        self._left = self._table

    def next(self, columns: Sequence[str], *, everything: bool = False) -> RowBatch:
        """Return the next row."""
        self._table, self._left = self._left.slice(0, 1), self._left.slice(1)
        return replace(super().next(columns), ended=frozenset())


def judge_in_cuts(rule: Rule, trace: Trace, seed: int, *, chance: float = 0.5) -> list[Finding]:
    """Return all findings of a rule over a finished trace in random windows, sorted by their keys.

    Each window has its own engine with the state of the previous engine, as after a restart of a runner.
    """
    source = CutSource(trace, np.random.default_rng(seed), chance=chance)
    engine = Engine(source, [rule])
    found: list[Finding] = []
    while source.windows_left:
        found += engine.step()
        state = load(dump(engine.state()), {type(rule).__module__})
        engine = Engine(source, [rule])
        engine.restore(state)
    return by_key(found)


def judge_of(engine: Engine) -> Any:
    """Return the engine's state of its first rule."""
    return engine._runs[0]


def by_key(found: list[Finding]) -> list[Finding]:
    """Sort findings in an order that does not depend on the windows."""
    return sorted(found, key=lambda finding: finding.key)


def same_in_any_cuts(rule: Rule, trace: Trace, *, seeds: int = 6) -> list[Finding]:
    """Return the findings over the whole trace; assert that random windows give the same findings."""
    whole = by_key(judge(rule, trace)[0])
    for seed in range(seeds):
        chance = (1.0, 0.5, 0.2)[seed % 3]
        assert judge_in_cuts(rule, trace, seed, chance=chance) == whole
    return whole
