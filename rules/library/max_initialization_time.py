"""TDC207: a training whose first step begins late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.scans import duration_text
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import Place, Samples, sample_finding
from tdcore.rules.step_times import StepPlace, StepTimes, step_finding
from tdcore.rules.window import Window

__all__ = ["MaxInitializationTime"]

_SLACK_SECONDS = 60.0  # a step that has begun is visible when it has ended and was written


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxInitializationTime:
    """A training that needs a long time from the start of its process to its first step.

    What it does:
        Computes the time from the start of the trainer's process to the start of the first step. The rule
        also fires while the training has no step yet.

    Why it matters:
        Machines with GPUs are paid for while a script downloads data, builds an index, or waits for other
        ranks. A process that waits for a download that never ends looks like a slow start.

    Decides by:
        The rule fires if the time is above `threshold` minutes, for each worker and each start of the
        training. The start of the process is known from the system samples. While there is no step, the rule
        fires one minute after the threshold, because a step is visible after its end.

    Parameters:
        threshold: longest time from the start of the process to the first step, in minutes.

    False alarms:
        - A script that trains several models in one process. If the hook is created for a later model, the
          time of the earlier trainings counts.
        - Work before the first step that is not recorded, such as an evaluation of a model without a hook.

    Do:
        Read the data as a stream in place of a download before the start. Store the prepared data. Load large
        files in one process per machine, and look for ranks that wait for others.

    Source:
        The rule MaxInitializationTime of smdebug, with the default that the service used.
    """

    code: ClassVar[str] = "TDC207"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("trainer_seconds",)
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)
    each_look: ClassVar[bool] = True

    threshold: float = 20.0

    def __post_init__(self) -> None:
        require(0 < self.threshold < np.inf, self, "threshold", self.threshold, "minutes, above 0")

    def needs(self) -> Need:
        """System samples of the trainer, and its first step."""
        return Need(what="the first step of an attempt, and a system sample of its trainer")

    def check(self, window: Window) -> Iterator[Finding]:
        """At most one finding about the wait, and one about the first step, per worker and attempt."""
        states = window.memory
        if window.samples is not None:
            self._add_samples(states, window.samples)
        if window.step_times is not None:
            _add_first_steps(states, window.step_times)
        for (attempt, worker), state in states.items():
            if window.samples is None and window.step_times is None and state.waiting:
                yield from self._judge_wait(window, Place(attempt, worker, state.host), state)
            if not state.is_judged and state.start_ns and state.first_ns:
                state.is_judged = True
                window.judged(1)
                yield from self._judge_first_step(StepPlace(attempt, worker, state.mode), state)

    def _add_samples(self, states: object, samples: Samples) -> None:
        age = samples.columns.floats("trainer_seconds")
        times = samples.columns.ints("time_ns")
        known = np.flatnonzero(np.isfinite(age))
        limit = 60 * self.threshold + _SLACK_SECONDS
        for attempt, worker, host, rows in groups(samples.columns, known, "attempt", "worker", "host"):
            state = states.setdefault((attempt, worker), _Start())  # type: ignore[attr-defined]
            if not state.start_ns:
                state.start_ns = int(times[rows[0]]) - round(1e9 * float(age[rows[0]]))
                state.host = host
            late = rows[age[rows] > limit]
            if late.size and not state.was_late:
                state.was_late = state.waiting = True
                state.late_sample = int(samples.columns.ints("sample")[late[0]])
                state.late_ns, state.late_seconds = int(times[late[0]]), float(age[late[0]])

    def _judge_wait(self, window: Window, place: Place, state: _Start) -> Iterator[Finding]:
        """Judge the first sample that is too late; called when all times of steps so far are known."""
        state.waiting = False
        if state.first_ns and state.first_ns <= state.late_ns:
            return
        window.judged(1)
        yield sample_finding(
            self,
            place,
            state.late_sample,
            numbers={
                "kind": "waiting",
                "seconds": state.late_seconds,
                "threshold_seconds": 60 * self.threshold,
                "time_ns": state.late_ns,
            },
            why=f"{duration_text(state.late_seconds)} after the start of its process, {place.worker} has no "
            f"step (limit {self.threshold:g} min)",
            do=_DO,
        )

    def _judge_first_step(self, place: StepPlace, state: _Start) -> Iterator[Finding]:
        seconds = (state.first_ns - state.start_ns) / 1e9
        if seconds <= 60 * self.threshold:
            return
        yield step_finding(
            self,
            place,
            state.step,
            state.mode_step,
            numbers={
                "kind": "first step",
                "seconds": seconds,
                "threshold_seconds": 60 * self.threshold,
                "time_ns": state.first_ns,
            },
            why=f"the first step began {duration_text(seconds)} after the start of the process (limit "
            f"{self.threshold:g} min)",
            do=_DO,
        )


_DO = (
    "read the data as a stream in place of a download before the start, store prepared data, and look for a "
    "download or a rank that the script waits for (py-spy dump shows the line)"
)


@dataclass(slots=True, kw_only=True)
class _Start:
    """The start of one worker's attempt.

    Attributes:
        start_ns: Start of the process; 0 if it is not known.
        host: Host of the worker.
        first_ns, step, mode_step, mode: The first step; 0 and "" if there is none.
        is_judged: Whether the first step was judged.
        was_late: Whether a sample was later than the limit.
        waiting: Whether that sample is not judged yet.
        late_sample, late_ns, late_seconds: Number and time of that sample, and the age of the process.
    """

    start_ns: int = 0
    host: str = ""
    first_ns: int = 0
    step: int = 0
    mode_step: int = 0
    mode: str = ""
    is_judged: bool = False
    was_late: bool = False
    waiting: bool = False
    late_sample: int = 0
    late_ns: int = 0
    late_seconds: float = 0.0


def _add_first_steps(states: object, times: StepTimes) -> None:
    columns = times.columns
    for row in np.flatnonzero(columns.ints("row") == 0).tolist():
        key = (int(columns.ints("attempt")[row]), columns.text("worker", row))
        state = states.setdefault(key, _Start())  # type: ignore[attr-defined]
        state.first_ns, state.mode = int(columns.ints("time_ns")[row]), columns.text("mode", row)
        state.step, state.mode_step = (int(columns.ints(name)[row]) for name in ("step", "mode_step"))
