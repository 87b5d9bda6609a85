"""The part of a hook that is independent of the framework: collections, scalars, requests, errors, close().

A framework's hook calls `_begin_step` at the start of every step, selects tensors by the plan of the step,
and passes them to the recorder. clock.py decides in which steps a tensor is captured, plan.py in which form.

Threads: set-up, steps and close() in the training thread; the recorder from any thread.
Errors: bad arguments raise at the call. While the training runs, no error of tdcore reaches it except
StopTraining: `_fault` switches off the part that failed, logs the error once, and stores it in the run.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, Literal, TypeVar

from tdcore.config.checks import whole
from tdcore.config.collection import Collection
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.hook_config import HookConfig
from tdcore.config.profiler_json import load_profiler_config
from tdcore.config.settings import disabled
from tdcore.config.workers import expected_workers
from tdcore.errors import ConfigError, StopTraining
from tdcore.format.layout import worker_name
from tdcore.hooks import current
from tdcore.hooks.capture_requests import CaptureRequests
from tdcore.hooks.clock import Clock, StepId
from tdcore.hooks.collection_entries import collection_entries
from tdcore.hooks.devices import device_notes, warn_growth_refusal, warn_refusals
from tdcore.hooks.hook_state import HookState
from tdcore.hooks.live_hooks import LIVE_HOOKS, close_hooks_at_exit, disable_hooks_in_child
from tdcore.hooks.manual_values import ManualValues
from tdcore.hooks.null_ring import NullRing
from tdcore.hooks.plan import NameTable, Plan
from tdcore.hooks.profile_recorders import Recorder as ProfileRecorder
from tdcore.hooks.profile_windows import ProfileWindows
from tdcore.hooks.recorder import Recorder, array_product
from tdcore.hooks.resume import StepStateDict
from tdcore.hooks.rule_capture import with_rules
from tdcore.hooks.run_notes import RunNotes
from tdcore.hooks.script_values import ScriptValues
from tdcore.hooks.shortfall import Possible, Shortfalls
from tdcore.hooks.sink_load import sink_load
from tdcore.hooks.step_timer import COMPUTE, phase_number, step_timer
from tdcore.hooks.stop_requests import StopRequests
from tdcore.hooks.warner import Warner
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, Session, StopRequest
from tdcore.session.counters import CloseReport
from tdcore.text.step_text import step_text

__all__ = ["BaseHook"]

_log = logging.getLogger("tdcore")
_HookT = TypeVar("_HookT", bound="BaseHook")
_MAX_EPOCH = 1 << 53  # larger numbers are not exact in the statistics of a row


class BaseHook(HookState, StepStateDict, ScriptValues):
    """Collections, modes, scalars, stop requests. Users create instances of the subclasses."""

    framework: ClassVar[str]
    _further_collections: ClassVar[tuple[str, ...]] = ()  # in addition to the collections of all hooks
    _step_phase: ClassVar[int] = COMPUTE  # phase in which a step begins
    _has_graphs = False  # whether the process may use CUDA graphs
    _graphs_armed = False  # whether CUDA graphs compute the statistics of the current step
    _begins_rows = True  # whether _begin_step() begins the row of the step in the times of steps
    _clock: Clock

    def __init__(
        self,
        config: HookConfig,
        *,
        framework_version: str,
        rank: int = 0,
        world_size: int = 1,
        ring: RingConfig | None = None,
        flusher: Literal["process", "thread"] = "process",
        close_timeout: timedelta = timedelta(seconds=30),
        on_stop: Callable[[StopRequest], None] | None = None,
        rules: Iterable[object] | str = (),
    ) -> None:
        given, config = config, with_rules(config, rules) if rules else config
        profiler = config.profiler_config or load_profiler_config()
        self.config = config
        self._mode = 0  # ModeKeys value, 0 while the mode follows the model
        self._epoch: int | None = None  # epoch of the next saved step; None if the ring already has the epoch
        self._close_timeout = close_timeout
        self._faults: dict[str, str] = {}
        self._warn = Warner()
        self._unmarked = True  # a tensor was captured, or may have been captured, since the last mark
        workers = expected_workers(config.include_workers, world_size, self._warn)
        self._off = disabled() or worker_name(rank) not in workers  # also after close() and in a forked child
        self._session: Session | None = None
        self._ring: Any = NullRing()
        if not self._off and not config.dry_run:
            self._session = Session(
                config.out_dir,
                worker=worker_name(rank),
                workers=workers,
                configuration=config.to_json_dict(),
                framework=self.framework,
                framework_version=framework_version,
                world_size=world_size,
                ring=ring,
                flusher=flusher,
                close_timeout=close_timeout,
                system_interval=profiler.system_interval() if profiler is not None else None,
                tensorboard=config.tensorboard_folder,
            )
            self._ring = self._session.ring
        self._control_changed: Callable[[], bool] = self._ring.was_asked  # True: call _check_control()
        self._collections = CollectionManager(self._further_collections)
        self._names = NameTable(self._ring, self._collections)
        self._notes = RunNotes(self._names)
        self._load = sink_load(self._session, self._notes, self._warn, len(workers))
        self._clock = Clock(config, self._collections, self._names, self._warn)
        self._profiles = ProfileWindows(self, self._session, self._warn)
        self._requests = CaptureRequests(
            self._collections, self._clock, self._names, self._notes, self._profiles.request
        )
        self._stop_requests = StopRequests(self._clock, on_stop)
        self._recorder = Recorder(self._ring, self._clock.now, self._product)
        self._timer: Any = step_timer(self._ring, writes=self._session is not None)
        self._end_phases: Callable[[], object] = lambda: None
        self._values = ManualValues(self._collections, self._clock, self._recorder, self._warn)
        self._shortfalls = Shortfalls(given, config, self._collections, self._clock)
        self._clock.include_configured()
        if profiler is not None:
            self._profiles.configure(profiler)
        LIVE_HOOKS.add(self)
        current.remember(self)

    # For scripts ----------------------------------------------------------------------------------------

    def set_mode(self, mode: ModeKeys) -> None:
        """Set the mode of the following steps. After the first call the mode no longer follows the model."""
        if not isinstance(mode, ModeKeys):
            raise ConfigError(f"mode must be one of modes.TRAIN, EVAL, PREDICT and GLOBAL, got {mode!r}")
        self._mode = mode.value
        self._guarded("steps", self._clock.set_first_mode, mode.value)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the following steps, of all modes.

        The number is recorded as "epoch" in the first saved step of the epoch, or in the next saved step if
        the ring has no room. Findings of rules, and `Trial.epoch()`, show the number. The callbacks of
        Lightning and Hugging Face call this method themselves.

        Args:
            epoch: Number of the epoch in the script, a whole number from 0 to 2 ** 53.
        """
        number = whole("epoch", epoch)
        if number > _MAX_EPOCH:
            raise ConfigError(f"epoch must be at most {_MAX_EPOCH}, got a larger number")
        self._epoch = number

    def add_collection(self, collection: Collection | CollectionConfig) -> Collection:
        """Add a collection, or update the collection of that name, for all steps from the next one on."""
        found = self._collections.add(collection)
        self._clock.include(found.name)
        return found

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block as a phase of the step (Trial.steps_time()).

        This is for work that the hook does not detect, such as a batch that no DataLoader returns:
        `with hook.phase("data"): batch = next(batches)`. A wait for data before a step belongs to that step.

        Args:
            name: "data", "forward", "loss", "backward", "optimizer", "compute", "checkpoint" or "compile".

        Raises:
            ConfigError: There is no such phase.
        """
        phase = phase_number(name)
        interrupted = self._timer.enter(phase)
        try:
            yield
        finally:
            self._timer.leave(interrupted)

    def flush(self, timeout: timedelta | None = None) -> bool:
        """Wait until everything captured so far can be read in the run, without ending the capture.

        The current step continues; its later tensors are not captured early. This method never raises, and
        usually takes about a second.

        Args:
            timeout: Maximum time to wait. None: close_timeout of the hook.

        Returns:
            True if everything can be read, and also if nothing is written (dry_run, a worker that captures
            nothing, a closed hook). False, with a warning, after the timeout, or if the capture has failed.
        """
        if self._session is None or self._off:
            return True
        if self._names.changed:
            self._guarded("collections", self._send_collections)
        if self._unmarked:
            self._guarded("steps", self._mark)
        return self._session.flush(timeout)

    def close(self) -> CloseReport | None:
        """End the capture, remove all hooks from the framework, and wait until the last data is written.

        A further call has no effect and returns the same report.

        Returns:
            Counts and state of the capture; None if nothing was written (dry_run, or a worker that captures
            nothing).
        """
        current.forget(self)
        self._end_capture()
        self._detach()
        self._end_phases()
        end = time.monotonic() + self._close_timeout.total_seconds()
        report = self._session.close() if self._session is not None else None
        self._profiles.wait(max(end - time.monotonic(), 0.0))
        return report

    def __repr__(self) -> str:
        now = self._clock.now
        state = "before the first step"
        if self._off:
            state = "closed"
        elif now.step >= now.first:
            state = step_text(now.step, ModeKeys(now.mode).name, now.mode_step)
        return f"<{type(self).__name__} for {self.framework}, {self.out_dir!r}, {state}>"

    def __enter__(self: _HookT) -> _HookT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """Write the notes of close() if the hook is deleted without close(), as at the end of main()."""
        if "_shortfalls" in self.__dict__ and not self._off:
            self._guarded("profile", self._profiles.finish, "the hook was deleted")
            self._guarded("report of missing tensors", self._report_shortfalls)
            self._guarded("collections", self._send_collections)

    # For the framework's hook ---------------------------------------------------------------------------

    def _last_complete_step(self) -> int:
        """The last complete step when the next step begins: a step without further captures."""
        return self._clock.last

    def _arm_graphs(self, step_id: StepId) -> None:
        """Let CUDA graphs compute the statistics of a saved step. Called only if `_has_graphs`."""

    def _collect_graphs(self) -> None:
        """Collect these statistics, before the next step. Called only if `_graphs_armed`."""

    def _finish(self) -> None:
        """Capture the rest of a step. Called once, before the end."""

    def _detach(self) -> None:
        """Remove all hooks from the framework. May be called again; never raises."""

    def _missing(self) -> Iterator[str]:
        """Yield a sentence for each requested item that was not recorded. Called once, at the end."""
        return self._shortfalls.of_collections(Possible())

    def _switch_off(self, part: str) -> None:
        """Switch off the part of the hook that failed."""

    @staticmethod
    def _product(tensor: Any, product: str) -> Any:
        """The product ("prod") or absolute product ("abs_prod") of all elements, as float64.

        The hook of a framework overrides this function for the framework's tensors.
        """
        return array_product(tensor, product)

    def _operator_recorder(self) -> ProfileRecorder | None:
        """A new recorder of operators for a profile; None if the framework has no recorder."""
        return None

    def _begin_step(self, mode: int) -> Plan | None:
        """Start the next step in the mode (a ModeKeys value). Return its plan; None if it saves nothing."""
        if self._graphs_armed:
            self._guarded("CUDA graphs", self._collect_graphs)
        if self._names.changed:
            self._send_collections()
        if self._unmarked:
            self._mark()
        plan = self._clock.begin(mode)
        if self._begins_rows:
            now = self._clock.now
            self._timer.begin(now.step, mode, now.mode_step, self._step_phase, self._recorder.spent_ns)
        if plan is not None:
            if self._has_graphs:
                self._guarded("CUDA graphs", self._arm_graphs, self._clock.now.step_id)
            if self._load is not None:
                self._guarded("sink load", self._load.begin_saved_step, self._clock.now.step)
            self._unmarked = True
            if self._clock.saving == 2:
                self._recorder.first_spent_ns = self._recorder.spent_ns
            if self._epoch is not None:
                self._save("epoch", self._record_epoch, self._epoch)
        return plan

    def _record_epoch(self, epoch: int) -> bool:
        """Record the epoch in the current step, or in a later saved step if the ring has no room."""
        kept = self._values.epoch(epoch)
        if kept:
            self._epoch = None
        return kept

    def _mark(self) -> None:
        """Mark complete steps in the ring, for readers of the live run (rules/completeness.py).

        The mark before the first step announces that marks will follow. If the ring is full, the mark is
        written when the next step begins.
        """
        whole = self._last_complete_step()
        self._unmarked = not self._ring.mark_step_end(whole) or whole < self._clock.last
        if self._ring.device_refusals():
            warn_refusals(self._ring, self._warn)
        warn_growth_refusal(self._ring, self._warn)

    def _check_control(self) -> None:
        """Handle requests to capture more, and stop requests (raises StopTraining, or calls on_stop)."""
        if self._session is None:
            return
        text = self._session.take_request()
        if text is not None:
            self._guarded("capture requests", self._requests.apply, text)
        self._stop_requests.handle(self._session.stop_request())

    def _check_control_guarded(self) -> None:
        """Call _check_control(). Raises StopTraining only; other exceptions are logged."""
        try:
            self._check_control()
        except StopTraining:
            raise
        except Exception as error:
            self._fault("control", error)

    def _guarded(self, part: str, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            self._fault(part, error)

    def _fault(self, part: str, error: Exception) -> None:
        """Handle an error of tdcore, so that it does not reach the training."""
        if part in self._faults:
            return
        self._faults[part] = f"{type(error).__name__}: {error}"
        self._notes["faults"] = self._faults
        self._switch_off(part)
        _log.warning(
            "tdcore: the part %r of the hook failed and may record nothing more; the training continues",
            part,
            exc_info=error,
        )

    # Private --------------------------------------------------------------------------------------------

    def _end_capture(self) -> None:
        self._guarded("profile", self._profiles.finish, "the capture ended")
        if not self._off:
            self._guarded("close", self._finish)
            self._timer.finish(self._recorder.spent_ns)
            self._guarded("devices", warn_refusals, self._ring, self._warn)
            self._guarded("ring size", warn_growth_refusal, self._ring, self._warn)
            self._guarded("report of missing tensors", self._report_shortfalls)
            self._guarded("collections", self._send_collections)
            self._off = True

    def _report_shortfalls(self) -> None:
        """Note in the run, and log, requested tensors that were not recorded."""
        failed = "exception" in self._notes or sys.exc_info()[0] is not None
        if self._session is None or (failed and self._clock.last <= self._clock.now.first):
            return  # an error in the first step explains the missing tensors
        for each in self._missing():
            self._notes["not_recorded"] = [*self._notes.get("not_recorded", ()), each]
            self._warn(f"not recorded: {each}")

    def _send_collections(self) -> None:
        self._names.changed = False
        if self._session is None:
            return
        for message in self._names.left_out.messages():
            self._warn(message)
        notes = self._notes | device_notes(self._ring) | self._names.left_out.as_note()
        notes |= self._session.sizes.as_note()
        entries = collection_entries(self._collections, self._clock.included, self.config)
        self._session.put_collections({"collections": entries, **notes})


os.register_at_fork(after_in_child=disable_hooks_in_child)
atexit.register(close_hooks_at_exit)
