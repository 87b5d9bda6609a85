"""TDC211: the shares of modes and phases over a run. A summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.format.step_times import PHASES
from tdcore.rules.base import Finding, Summary
from tdcore.rules.measures.distribution import Distribution
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.step_times import STEP_VALUES
from tdcore.rules.window import Window

__all__ = ["OverallFrameworkMetrics"]

Ints = npt.NDArray[np.int64]

_TIMES = {"data": "data_waits", "checkpoint": "checkpoints", "compile": "compiles"}  # phase -> its count


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallFrameworkMetrics:
    """A summary of the time of the steps: shares of modes and phases. It never finds a fault.

    What it does:
        Computes for each mode the number of steps, their time, its share of the time of all steps, and the
        maximum, the 99 %, 95 % and 50 % percentiles and the minimum of the duration of a step. For each phase
        of a mode it computes the time, the share of the mode, and, if the run has it, the number of times
        that the steps entered the phase.

    Why it matters:
        The summary shows where the time goes, so that work on the speed begins with the longest phase.

    Decides by:
        The rule is a summary. It has no condition, and its verdict is never an issue. The summary is in the
        verdict. Steps and times are those of all workers together. A percentile is within 0.5 % of its value.

        The rule runs only if it is named, or as a part of ProfilerReport. "all" does not include it.

        smdebug also counts operators. `tdcore profile` records the operators of some steps.

    Parameters:

    False alarms:
        None, because the rule never fires.

    Do:
        Begin with the longest phase. InputBound, LoopOverhead, CheckpointStall and RecompileStorm judge the
        phases, and their findings contain advice.

    Source:
        The rule OverallFrameworkMetrics of smdebug.
    """

    code: ClassVar[str] = "TDC211"
    judged_by: ClassVar[JudgedBy] = "run"
    is_summary: ClassVar[bool] = True
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)

    def needs(self) -> Need:
        """Times of steps."""
        return Need(what="times of steps")

    def check(self, window: Window) -> Iterator[Finding]:
        """Add the steps to the sums. There are no findings."""
        if window.step_times is not None:
            for steps in window.step_times.steps(window.memory):
                sums = window.memory.setdefault(("mode", steps.place.mode), _Mode())
                sums.add(steps.values)
            window.judged(len(window.step_times))
        return iter(())

    def summary(self, memory: Mapping[Any, Any]) -> Summary:
        """A table of the modes, and for each mode a table of its phases."""
        modes = {mode: _Mode.joined(sums, newest) for mode, sums, newest in _modes(memory)}
        whole = sum(sums.total("duration_ns") for sums in modes.values())
        found: dict[str, dict[str, dict[str, float]]] = {"modes": {}}
        for mode, sums in modes.items():
            found["modes"][mode] = _mode_row(sums, max(1, whole))
            found[f"phases of {mode}"] = _phase_rows(sums)
        return found if modes else {}


@dataclass(slots=True, kw_only=True)
class _Mode:
    """Sums over the steps of a mode.

    Attributes:
        steps: Number of steps.
        sums: Sums of STEP_VALUES.
        durations: Distribution of the durations in milliseconds.
    """

    steps: int = 0
    sums: Ints = field(default_factory=lambda: np.zeros(len(STEP_VALUES), dtype=np.int64))
    durations: Distribution = field(default_factory=Distribution)

    def add(self, values: Ints) -> None:
        """Add whole steps, one row of STEP_VALUES per step."""
        self.steps += len(values)
        self.sums = self.sums + values.sum(axis=0)
        self.durations.add(values[:, STEP_VALUES.index("duration_ns")] / 1e6)

    def total(self, name: str) -> int:
        """Sum of one of STEP_VALUES."""
        return int(self.sums[STEP_VALUES.index(name)])

    @classmethod
    def joined(cls, sums: _Mode | None, newest: Ints) -> _Mode:
        """A copy with the newest step of each worker, which may continue."""
        found = cls()
        if sums is not None:
            found.steps, found.sums = sums.steps, sums.sums
            found.durations = Distribution(
                counts=dict(sums.durations.counts),
                smallest=sums.durations.smallest,
                largest=sums.durations.largest,
            )
        found.add(newest)
        return found


def _modes(memory: Mapping[Any, Any]) -> Iterator[tuple[str, _Mode | None, Ints]]:
    """Each mode, its sums, and the newest step of each worker, from the memory."""
    newest: dict[str, list[Ints]] = {}
    for (kind, *place), value in memory.items():
        if kind == "step":
            newest.setdefault(place[-1], []).append(value[-len(STEP_VALUES) :])
    for mode in sorted(newest):
        yield mode, memory.get(("mode", mode)), np.stack(newest[mode])


def _mode_row(sums: _Mode, whole: int) -> dict[str, float]:
    duration = max(1, sums.total("duration_ns"))
    gpu = {"gpu (%)": 100 * sums.total("gpu_ns") / duration} if sums.total("gpu_ns") else {}
    return {
        "steps": sums.steps,
        "seconds": duration / 1e9,
        "%": 100 * duration / whole,
        **{f"{name} (ms)": ms for name, ms in sums.durations.statistics().items()},
        **gpu,
    }


def _phase_rows(sums: _Mode) -> dict[str, dict[str, float]]:
    """The phases that took time, the longest first."""
    duration = max(1, sums.total("duration_ns"))
    phases = {phase: sums.total(f"{phase}_ns") for phase in PHASES}
    times = {phase: sums.total(column) for phase, column in _TIMES.items()}
    return {
        phase: {"%": 100 * ns / duration, "seconds": ns / 1e9}
        | ({"times": times[phase]} if times.get(phase) else {})
        for phase, ns in sorted(phases.items(), key=lambda pair: -pair[1])
        if ns
    }
