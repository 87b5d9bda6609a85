"""TrialSteps: methods of Trial about steps and modes, and for waiting for steps.

Threads: see Trial.
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
    """Methods of Trial about steps and modes."""

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Steps with saved tensors, sorted: global steps, or steps of the mode.

        Rows of several workers belong to one step if attempt, mode and mode step are equal. The global step
        has the number that the first worker by rank uses; the other workers' own numbers may differ.

        Args:
            mode: GLOBAL: global steps. Otherwise the steps of this mode.
            show_incomplete_steps: Also return steps to which a worker may still add tensors. The global
                numbers of these steps may still change.
        """
        self._reader.auto_refresh()
        return self._reader.steps(mode, incomplete=show_incomplete_steps)

    def modes(self) -> list[ModeKeys]:
        """Modes with saved tensors."""
        self._reader.auto_refresh()
        index = self._reader.index
        codes = np.unique(index.column("mode")[self._reader.view.mode_rows]).tolist()
        return sorted((ModeKeys[index.texts("mode")[code]] for code in codes), key=lambda mode: mode.value)

    def mode(self, global_step: int) -> ModeKeys:
        """Mode of a global step, for the first worker by rank that has this step.

        Raises StepUnavailable if nothing was saved at this step so far.
        """
        row = self._row_of(global_step)
        return ModeKeys[self._reader.index.text("mode", row) or "GLOBAL"]

    def mode_step(self, global_step: int) -> int:
        """Number of a global step within its mode. Raises the errors of mode()."""
        return int(self._reader.index.column("mode_step")[self._row_of(global_step)])

    def epoch(self, global_step: int) -> int | None:
        """Epoch of a saved global step, from Hook.set_epoch(); None if the script has not set one.

        Raises the errors of mode().
        """
        row, index = self._row_of(global_step), self._reader.index
        worker = index.text("worker", row) or ""
        return self._reader.epochs.of(int(index.column("attempt")[row]), worker, global_step)

    def mode_modestep(self, global_step: int) -> tuple[ModeKeys, int]:
        """Mode of a global step, and number of the step within the mode. Raises the errors of mode()."""
        return self.mode(global_step), self.mode_step(global_step)

    def global_step(self, mode: ModeKeys, mode_step: int) -> int:
        """Global step of a step of a mode, in the numbers of the first worker by rank that has the mode.

        If several global steps have this step of the mode, the highest is returned. Raises StepUnavailable.
        """
        self._reader.auto_refresh()
        view = self._reader.view
        rows = view.at_step(view.mode_rows, mode_step, mode.name)
        if len(rows) == 0:
            error = StepUnavailable(f"run {self.name!r} has no step {mode_step} of mode {mode.name}")
            raise with_step(error, mode_step, mode)
        return int(self._reader.index.column("step")[rows].max())

    def workers(self) -> list[str]:
        """Workers with saved tensors, sorted by rank."""
        self._reader.auto_refresh()
        return self._reader.workers()

    def waiting_for(self, step: int) -> list[str]:
        """Workers that may still add tensors to a global step, sorted by rank. The step is then incomplete.

        These are the workers in run.json and the workers that have written files, unless the worker has
        passed the step, has ended or is dead. A worker counts as dead if its process has ended and it has
        written nothing for ten times `settle` while other workers continued. A worker on another machine
        counts as dead if it has written nothing for a minute.
        """
        self._reader.auto_refresh()
        progress, view = self._reader.progress, self._reader.view
        at, latest = view.position(step), progress.latest_attempt
        row = int(view.step_rows[at]) if at >= 0 else None
        if row is not None and int(self._reader.index.column("attempt")[row]) != latest:
            row = None  # the attempt will get no more rows
        return sorted(progress.waiting_for(latest, step, row), key=worker_order)

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """State of a step: AVAILABLE (saved and complete), NOT_YET_AVAILABLE or UNAVAILABLE."""
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
        """Wait until all these steps are complete.

        Args:
            required_steps: The steps.
            mode: Mode of the steps; GLOBAL: global steps.
            timeout: Maximum time to wait; None: as long as the run continues.
            interval: Time between two polls. None: 0.2 s for a folder, 1 s for a bucket.

        Raises:
            StepUnavailable: The run has passed a step without saving it.
            NoMoreData: The run has ended before a step.
            WaitTimeout: `timeout` has passed.
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
                        f"step {step} of run {self.name!r} did not appear within {timeout}; "
                        f"the last complete step is {reader.last_step(mode)}"
                    )
                reader.wait((reader.pause if interval is None else interval).total_seconds())

    def _row_of(self, global_step: int) -> int:
        self._reader.auto_refresh()
        at = self._reader.view.position(global_step)
        if at < 0:
            error = StepUnavailable(f"run {self.name!r} has no global step {global_step} so far")
            raise with_step(error, global_step)
        return int(self._reader.view.step_rows[at])

    def _never(self, step: int, mode: ModeKeys) -> StepUnavailable | NoMoreData:
        last = self._reader.last_step(mode)
        if self._reader.progress.status != "running" and (last is None or step > last):
            ended = NoMoreData(
                f"run {self.name!r} {self.status} before step {step}; the last saved step is {last}"
            )
            ended.last_step = last
            return with_step(ended, step, mode)
        error = StepUnavailable(
            f"run {self.name!r} saved nothing at step {step}; steps() lists the saved steps"
        )
        return with_step(error, step, mode)
