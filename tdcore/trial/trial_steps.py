"""TrialSteps: what a Trial tells of steps and modes, and waiting for them.

Threads: as Trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import numpy as np

from tdcore.errors import NoMoreData, StepUnavailable, WaitTimeout
from tdcore.modes import ModeKeys
from tdcore.trial.step_state import StepState, with_step
from tdcore.trial.trial_run import TrialRun
from tdcore.trial.worker_order import worker_order

__all__ = ["TrialSteps"]


class TrialSteps(TrialRun):
    """A part of Trial."""

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Steps with anything saved, sorted: global ones, or those of the mode.

        Rows of several workers belong to one step when attempt, mode and mode step agree. Its global step is
        that of the first worker by rank; the other workers' own numbers may differ. show_incomplete_steps:
        also those that some worker may still add to; the global step of these may still change.
        """
        self._reader.auto_refresh()
        return self._reader.steps(mode, incomplete=show_incomplete_steps)

    def modes(self) -> list[ModeKeys]:
        """Modes in which anything was saved."""
        self._reader.auto_refresh()
        index = self._reader.index
        codes = np.unique(index.column("mode")[self._reader.view.mode_rows]).tolist()
        return sorted((ModeKeys[index.texts("mode")[code]] for code in codes), key=lambda mode: mode.value)

    def mode(self, global_step: int) -> ModeKeys:
        """Mode of a global step, of the first worker by rank that has the number.

        Raises StepUnavailable when nothing of it was saved so far.
        """
        row = self._row_of(global_step)
        return ModeKeys[self._reader.index.text("mode", row) or "GLOBAL"]

    def mode_step(self, global_step: int) -> int:
        """Step within its mode of a global step. Raises as mode()."""
        return int(self._reader.index.column("mode_step")[self._row_of(global_step)])

    def epoch(self, global_step: int) -> int | None:
        """Epoch of a saved global step, from Hook.set_epoch(); None if the script has not set one.

        Raises as mode().
        """
        row, index = self._row_of(global_step), self._reader.index
        worker = index.text("worker", row) or ""
        return self._reader.epochs.of(int(index.column("attempt")[row]), worker, global_step)

    def mode_modestep(self, global_step: int) -> tuple[ModeKeys, int]:
        """Mode of a global step, and step within its mode. Raises as mode()."""
        return self.mode(global_step), self.mode_step(global_step)

    def global_step(self, mode: ModeKeys, mode_step: int) -> int:
        """Global step of a step of a mode, as the first worker by rank that has the mode counts.

        The last of several with that number. Raises StepUnavailable.
        """
        self._reader.auto_refresh()
        view = self._reader.view
        rows = view.at_step(view.mode_rows, mode_step, mode.name)
        if len(rows) == 0:
            error = StepUnavailable(f"run {self.name!r} has nothing of step {mode_step} of mode {mode.name}")
            raise with_step(error, mode_step, mode)
        return int(self._reader.index.column("step")[rows].max())

    def workers(self) -> list[str]:
        """Workers that have saved anything, sorted by rank."""
        self._reader.auto_refresh()
        return self._reader.workers()

    def waiting_for(self, step: int) -> list[str]:
        """Workers that keep a global step from being complete: they may still add to it. Sorted by rank.

        Every worker that run.json names or that has shown itself is waited for, until it has passed the step
        or ended. Not those that are dead: silent for ten times `settle` while others went on, and their
        process is gone, or silent for a minute on another machine.
        """
        self._reader.auto_refresh()
        progress, view = self._reader.progress, self._reader.view
        at, latest = view.position(step), progress.latest_attempt
        row = int(view.step_rows[at]) if at >= 0 else None
        if row is not None and int(self._reader.index.column("attempt")[row]) != latest:
            row = None  # of an attempt that will get no more rows
        return sorted(progress.waiting_for(latest, step, row), key=worker_order)

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """AVAILABLE: saved and complete. NOT_YET_AVAILABLE: it may still come. UNAVAILABLE: it will not."""
        self._reader.auto_refresh()
        return self._reader.state(step, mode)

    def wait_for_steps(
        self,
        required_steps: Iterable[int],
        mode: ModeKeys = ModeKeys.GLOBAL,
        *,
        timeout: timedelta | None = None,
        interval: timedelta | None = None,
    ) -> None:
        """Returns when all these steps are there and complete.

        interval: between two looks; None: 0.2 s in a folder, a second in a bucket.

        Raises StepUnavailable when the run has passed one without saving it, NoMoreData when it ended
        before one, and WaitTimeout after `timeout` (None: waits as long as the run goes on).
        """
        reader = self._reader
        deadline = None if timeout is None else reader.clock() + timeout.total_seconds()
        for step in required_steps:
            while True:
                reader.refresh()
                state = reader.state(step, mode)
                if state is StepState.AVAILABLE:
                    break
                if state is StepState.UNAVAILABLE:
                    raise self._never(step, mode)
                if deadline is not None and reader.clock() >= deadline:
                    raise WaitTimeout(
                        f"step {step} of run {self.name!r} did not come within {timeout}; "
                        f"the last complete one is {reader.last_step(mode)}"
                    )
                reader.wait((reader.pause if interval is None else interval).total_seconds())

    def _row_of(self, global_step: int) -> int:
        self._reader.auto_refresh()
        at = self._reader.view.position(global_step)
        if at < 0:
            error = StepUnavailable(f"run {self.name!r} has nothing of global step {global_step} so far")
            raise with_step(error, global_step)
        return int(self._reader.view.step_rows[at])

    def _never(self, step: int, mode: ModeKeys) -> StepUnavailable | NoMoreData:
        last = self._reader.last_step(mode)
        if self._reader.progress.status != "running" and (last is None or step > last):
            ended = NoMoreData(
                f"run {self.name!r} {self.status} before step {step}; the last one saved is {last}"
            )
            ended.last_step = last
            return with_step(ended, step, mode)
        error = StepUnavailable(f"run {self.name!r} saved nothing at step {step}; steps() lists where it did")
        return with_step(error, step, mode)
