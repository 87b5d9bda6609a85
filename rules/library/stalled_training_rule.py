"""TDC108: a run that got no new tensor for a long time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import ConfigError
from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Columns
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window
from tdcore.text.step_text import step_text

__all__ = ["StalledTrainingRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledTrainingRule:
    """A training that saves no tensor for longer than a threshold.

    What it does:
        Measures the time between two successive captured tensors of each worker. In a live run, the rule also
        compares the time of the newest tensor with the current time, so that a stall is found while it lasts.

    Why it matters:
        A training that hangs (a collective operation that waits for a lost rank, a data loader that waits for
        storage) looks like a busy training: the process exists, and the machines still cost money.

    Decides by:
        The rule fires if the seconds without a new tensor >= threshold, between two tensors of a worker. It
        also fires if this time has passed since the newest tensor of a worker that has not ended. The time
        starts with the first tensor. The time after a worker has ended, normally or not, is not judged.

        Each stall of a worker is one finding, at the last step before the stall. Workers that are found
        stalled at the same check of the run for new data make one finding, about the first of them.

        Rules report and do not act. In place of stop_training_on_fire of smdebug, use an action, which can be
        combined with any rule.

    Parameters:
        threshold: time without a new tensor, in seconds. The time between two saves must be well below it. A
            scalar that is saved regularly (save_scalar) can be used as a heartbeat.
        stop_training_on_fire: a parameter of smdebug, must be False; use the action RequestStop instead.
        training_job_name_prefix: a parameter of smdebug, must be None; the action has the name of the job.

    False alarms:
        - Intended long pauses: a validation that saves nothing, checkpoints of large models, compilation, a
          suspended machine.
        - A clock that is changed during the run, or that differs between the machine of the training and the
          machine that runs the rule.

    Do:
        Check the stacks of all ranks (py-spy dump), the data loader and the storage. Set a timeout for
        collective operations.

    Source:
        Y. Jiang et al., MegaScale: scaling large language model training to more than 10,000 GPUs, NSDI 2024,
        on hangs and heartbeats.
    """

    code: ClassVar[str] = "TDC108"
    judged_by: ClassVar[JudgedBy] = "run"
    reads: ClassVar[tuple[str, ...]] = ()
    each_look: ClassVar[bool] = True

    threshold: float = 1800.0
    stop_training_on_fire: bool = False
    training_job_name_prefix: str | None = None

    def __post_init__(self) -> None:
        require(0 < self.threshold < np.inf, self, "threshold", self.threshold, "seconds above 0")
        if self.stop_training_on_fire or self.training_job_name_prefix:
            raise ConfigError(
                "StalledTrainingRule does not stop a training: leave out stop_training_on_fire and "
                "training_job_name_prefix, and pass the action RequestStop to tdcore.rules.run"
            )

    def needs(self) -> Need:
        """Any tensor that is saved regularly."""
        return Need(
            what="any tensor or scalar that is saved again and again, well within the threshold of "
            f"{self.threshold:g} s",
            captures=(
                CollectionConfig(
                    name="losses", save_config=SaveConfig(save_interval=10), reduction_config=STATISTICS
                ),
            ),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per stall and worker."""
        columns = window.columns
        timed = np.flatnonzero(columns.ints("time_ns") > 0)
        for attempt, worker, rows in groups(columns, timed, "attempt", "worker"):
            state = window.memory.get((attempt, worker))
            if state is None:
                state = window.memory[attempt, worker] = _Newest()
            else:
                window.judged(1)
            yield from self._gaps(window, (attempt, worker), state, rows)
        yield from self._now(window)

    def _gaps(
        self, window: Window, place: tuple[int, str], state: _Newest, rows: npt.NDArray[np.int64]
    ) -> Iterator[Finding]:
        """Stalls that have ended: gaps between rows."""
        seen = state.time_ns > 0
        times = np.append(state.time_ns if seen else 0, window.columns.ints("time_ns")[rows])
        times = np.maximum.accumulate(times)
        gaps = np.diff(times)
        if not seen:
            gaps[0] = 0
        window.judged(len(rows) - 1)
        for at in np.flatnonzero(gaps >= self.threshold * 1e9).tolist():
            if at > 0:
                state.move(window.columns, int(rows[at - 1]), int(times[at]))
            if not state.told:
                yield self._finding(place, state, int(gaps[at]) / 1e9, "then the next tensor was saved")
        state.move(window.columns, int(rows[-1]), int(times[-1]))

    def _now(self, window: Window) -> Iterator[Finding]:
        """Stalls that still last: one finding per attempt, about the worker that stalled first."""
        silent = {
            place: state
            for place, state in window.memory.items()
            if not state.told
            and place not in window.ended
            and window.now_ns - state.time_ns >= self.threshold * 1e9
        }
        for attempt in sorted({attempt for attempt, _ in silent}):
            workers = sorted(
                (state.time_ns, worker) for (each, worker), state in silent.items() if each == attempt
            )
            place = (attempt, workers[0][1])
            seconds = (window.now_ns - workers[0][0]) / 1e9
            others = f"; {len(workers) - 1} other workers have stalled too" if len(workers) > 1 else ""
            then = f"and no file records that the training has ended{others}"
            yield self._finding(place, silent[place], seconds, then, workers=len(workers))
        for state in silent.values():
            state.told = True

    def _finding(
        self, place: tuple[int, str], state: _Newest, seconds: float, then: str, *, workers: int = 1
    ) -> Finding:
        attempt, worker = place
        return Finding(
            rule=type(self).__name__,
            code=self.code,
            step=state.step,
            mode=state.mode,
            mode_step=state.mode_step,
            worker=worker,
            attempt=attempt,
            tensor="",
            numbers={
                "seconds": seconds,
                "threshold": self.threshold,
                "last_time_ns": state.time_ns,
                "workers": workers,
            },
            why=f"nothing was saved for {seconds:.0f} s after "
            f"{step_text(state.step, state.mode, state.mode_step)} "
            f"({self.threshold:g} s are tolerated), {then}",
            do="check the stacks of all ranks, the data loader and storage; save a scalar as a heartbeat if "
            "the pause is intended",
        )


@dataclass(slots=True, kw_only=True)
class _Newest:
    """The newest row of one worker, and whether the stall after it was reported."""

    time_ns: int = 0
    step: int = 0
    mode: str = ""
    mode_step: int = 0
    told: bool = False

    def move(self, columns: Columns, row: int, time_ns: int) -> None:
        """Set the newest row."""
        self.told = self.told and time_ns == self.time_ns
        self.time_ns = time_ns
        self.step, self.mode_step = int(columns.ints("step")[row]), int(columns.ints("mode_step")[row])
        self.mode = columns.text("mode", row)
