"""TapeDriver: decides which step a tape or an update of an eager loop belongs to, and what is read when.

A training step begins with the first wrapped tape after an update, and has every tape up to the next update
and every update up to the next tape. Steps of captured functions are in captured_step.py.
Threads: the training thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any, NamedTuple

import tensorflow as tf

from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import SuspendedStep
from tdcore.hooks.common_phases import COMMON
from tdcore.hooks.interception import Interception, collecting
from tdcore.hooks.late_rows import LateRows
from tdcore.hooks.phase_signals import PhaseSignals, time_phases
from tdcore.hooks.plan import Plan
from tdcore.hooks.run_notes import note_once
from tdcore.hooks.shortfall import Possible
from tdcore.hooks.step_record import StepValue, record_step
from tdcore.hooks.step_timer import COMPUTE, REST
from tdcore.hooks.tensorflow.collector import TapeCollector
from tdcore.hooks.tensorflow.interception import intercepted, reporting_modules
from tdcore.hooks.tensorflow.keras_parts import add_model, intercepted_keras, metric_values
from tdcore.hooks.tensorflow.operations import merged, read_variable, to_array
from tdcore.hooks.tensorflow.optimizer_state import optimizer_step_values, report_update
from tdcore.hooks.tensorflow.optimizer_updates import listen, unlisten
from tdcore.hooks.tensorflow.update_signs import UpdateSigns
from tdcore.hooks.tensorflow.variables import VariableNames
from tdcore.modes import ModeKeys

__all__ = ["TapeDriver"]

_SIGNALS = PhaseSignals(COMMON)
_TRAIN = ModeKeys.TRAIN.value
_TRAINING = (_TRAIN, ModeKeys.GLOBAL.value)


class _Left(NamedTuple):
    """A training step that is continued after steps of other modes."""

    step: SuspendedStep
    collector: TapeCollector | None
    read: set[str]


class TapeDriver(LateRows):
    """The part of the TensorFlow hook that tapes, optimizers and captured functions call."""

    def _start_driver(self) -> None:
        self._note_uncaptured = note_once(self._notes, self._warn)
        self._end_phases = time_phases(self, self._timer, self._recorder, _SIGNALS)
        self._variables = VariableNames()
        self._signs = UpdateSigns()
        self._models: list[weakref.ref[Any]] = []
        self._modules = Interception()  # of registered modules
        self._optimizers: list[weakref.ref[Any]] = []  # in the order of their first saved update
        self._wrapped: list[tuple[weakref.ref[Any], Callable[[], None] | None]] = []
        self._depth = 0  # wrapped tapes that record now
        self._training = False  # a training step of the eager loop has begun
        self._has_tape = False  # it began with a tape
        self._updated_by: set[int] = set()  # id() of the optimizers that have updated in it
        self._left: _Left | None = None
        self._collector: TapeCollector | None = None  # of the step, if it is saved
        self._recording: ExitStack | None = None  # while a tape of a saved step records
        self._read: set[str] = set()  # names of the weights that were read in the step
        self.running: Any = None  # the captured function that is called or traced now
        if not self._off:
            listen(self)

    # Tapes ------------------------------------------------------------------------------------------------

    def enter_tape(self) -> None:
        """Called by wrapped_tape.py before a tape records. Raises StopTraining."""
        if self._off or not tf.executing_eagerly():
            return
        if not self._depth:
            if self._control_changed():
                self._check_control_guarded()
            start = perf_counter_ns()
            self._guarded("steps", self._step_of_tape)
            if self._collector is not None and not self._off:
                self._guarded("capture", self._start_recording, self._collector)
                self._recorder.spent_ns += perf_counter_ns() - start
        self._depth += 1

    def exit_tape(self, tape: Any) -> None:
        """Called by wrapped_tape.py when a tape has stopped."""
        if self._depth:
            self._depth -= 1
            if not self._depth and self._clock.now.mode not in _TRAINING:
                self._timer.enter(REST)
        collector = self._collector
        if collector is not None:
            start = perf_counter_ns()
            self._guarded("weights", self._read_watched, tape, collector)
            if not self._depth:
                self._stop_recording()
                self._guarded("steps", self._flush_values, collector)
            self._recorder.spent_ns += perf_counter_ns() - start

    def tape_gradient(self, tape: Any, target: Any, sources: Any, gradients: Any) -> None:
        """Called by wrapped_tape.py when a tape has computed gradients."""
        if self._off or not tf.executing_eagerly():
            return
        if not self._signs.reported:
            self._guarded("steps", self._signs.gradient, tf.nest.flatten(sources))
        collector = self._collector
        if collector is not None:
            start = perf_counter_ns()
            collector.guarded("gradients", collector.tape_gradient, tape, target, sources, gradients)
            self._guarded("weights", self._read_weights, collector, True)
            self._recorder.spent_ns += perf_counter_ns() - start

    def _step_of_tape(self) -> None:
        mode = self._mode or _TRAIN
        if mode not in _TRAINING:
            if self._training and self._left is None and not self._signs.updated():
                self._left = _Left(self._clock.leave(), self._collector, self._read)
                self._collector = None
            elif self._left is None:
                self._end_training()
            else:
                self._end_step()
            self._begin(mode)
        elif self._training and not self._signs.updated():
            self._continue_row()
            self._continue_training()
        else:
            self._begin_training(mode, has_tape=True)

    def _begin_training(self, mode: int, *, has_tape: bool) -> None:
        self._end_training()
        self._training, self._has_tape = True, has_tape
        self._updated_by.clear()
        self._signs.begin_step()
        self._begin(mode)

    def _begin(self, mode: int) -> None:
        plan = self._begin_step(mode)
        if plan is not None:
            self._collector = self.new_collector(plan)
            self._read = set()
            self._meet_models()
            self._guarded("weights", self._read_weights, self._collector, False)

    def _continue_row(self) -> None:
        """Continue the row of the training step, which a wait or steps of other modes have interrupted."""
        if self._left is None:
            self._timer.enter(COMPUTE)
        else:
            step, mode, mode_step = self._left.step.step_id
            self._timer.begin(step, mode, mode_step, COMPUTE, self._recorder.spent_ns)

    def _continue_training(self) -> None:
        if self._left is not None:
            self._end_step()
            left, self._left = self._left, None
            self._clock.continue_step(left.step)
            self._collector, self._read = left.collector, left.read

    def _end_training(self) -> None:
        """Record the rest of the training step, and of a step of another mode."""
        self._continue_training()
        self._end_step()
        self._training = False

    def _end_step(self) -> None:
        collector, self._collector = self._collector, None
        if collector is None:
            return
        start = perf_counter_ns()
        self._stop_recording()
        collector.guarded("gradients", collector.settle)
        self._flush_values(collector)
        self.record(
            collector.plan, self.metric_values(collector.plan, collector.metrics), {}, absent=collector.absent
        )
        self._recorder.spent_ns += perf_counter_ns() - start

    def _last_complete_step(self) -> int:
        left = self._left
        return self._clock.last if left is None else left.step.step_id.step - 1

    def _start_recording(self, collector: TapeCollector) -> None:
        if self._recording is None:
            with ExitStack() as stack:
                stack.enter_context(self.intercepted())
                stack.enter_context(collecting(collector))
                self._recording = stack.pop_all()

    def _stop_recording(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close()

    # Updates ----------------------------------------------------------------------------------------------

    def before_update(self, optimizer: Any, gradients: Sequence[Any], variables: Any) -> None:
        """Called by optimizer_updates.py. Raises StopTraining."""
        if self._off:
            return
        if self.running is not None:  # a function that runs eagerly
            self.traced_update(optimizer, variables)
            return
        own = any(reference() is optimizer for reference, _ in self._wrapped)
        again = not self._has_tape and id(optimizer) in self._updated_by
        if own and (again or not self._training):
            if self._control_changed():
                self._check_control_guarded()
            self._guarded("steps", lambda: self._begin_training(self._mode or _TRAIN, has_tape=False))
        elif not self._training:
            return
        if self._left is not None:
            self._continue_row()
        self._timer.begin_optimizer()
        self._guarded("steps", self._continue_training)
        collector = self._collector
        if collector is not None and not self._off:
            start = perf_counter_ns()
            self._guarded("optimizer", self._read_update, collector, optimizer, gradients, variables)
            self._recorder.spent_ns += perf_counter_ns() - start

    def after_update(self, optimizer: Any) -> None:
        """Called by optimizer_updates.py."""
        if self._training:
            self._timer.end_optimizer()
            self._updated_by.add(id(optimizer))
            self._signs.report()

    def traced_update(self, optimizer: Any, variables: Any) -> None:
        """Called by optimizer_updates.py while a function is traced."""
        for variable in variables or ():
            self._guarded("optimizer", self._variables.add, variable)
        if self.running is not None:
            self._guarded("optimizer", self.running.optimizer_traced, optimizer)

    def _read_update(self, collector: TapeCollector, optimizer: Any, gradients: Any, variables: Any) -> None:
        for variable in variables or ():
            self._variables.add(variable)
        self._read_weights(collector, True)
        values = self.optimizer_values(collector.plan, optimizer, read_variable)
        self.record(collector.plan, values, {})
        if not collector.in_apply:  # otherwise it was reported
            report_update(collector, optimizer, gradients, variables)
        self._flush_values(collector)

    # For captured functions too ---------------------------------------------------------------------------

    def begin_captured(self, mode: int) -> Plan | None:
        """Begin the step of a captured function. mode: a ModeKeys value; 0: that of set_mode()."""
        if self._training or self._collector is not None:
            self._end_training()
        self._begins_rows = False  # the function can find no batch
        try:
            return self._begin_step(mode or self._mode or _TRAIN)
        finally:
            self._begins_rows = True

    def new_collector(self, plan: Plan) -> TapeCollector:
        """A collector for one saved step."""
        return TapeCollector(plan, self._variables, self._note_uncaptured, self._fault)

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """Let functions of TensorFlow and Keras report to the collector of the thread within the block."""
        roots = [root for reference in self._models if isinstance(root := reference(), tf.Module)]
        modules = [module for root in roots for module in (root, *root.submodules)]
        of_modules = self._modules.installed(reporting_modules(modules))
        with intercepted_keras(), intercepted(), of_modules:
            yield

    def record(
        self,
        plan: Plan,
        values: Sequence[StepValue],
        taps: dict[str, Any],
        *,
        origins: dict[str, str] | None = None,
        absent: dict[str, str] | None = None,
    ) -> None:
        """Record values of the current step. See step_record.record_step()."""
        record_step(
            self._recorder,
            plan,
            values,
            taps,
            origins=origins or {},
            absent=absent or {},
            merged=merged,
            to_array=to_array,
        )

    def optimizer_values(self, plan: Plan, optimizer: Any, read: Callable[[Any], Any]) -> list[StepValue]:
        """State and numbers of an optimizer before its update. read: returns a variable's value, or None."""
        number = next((n for n, known in enumerate(self._optimizers) if known() is optimizer), None)
        if number is None:
            number = len(self._optimizers)
            self._optimizers.append(weakref.ref(optimizer))
        return list(optimizer_step_values(optimizer, number, self._variables, plan, read))

    def metric_values(self, plan: Plan, metrics: Sequence[Any]) -> list[StepValue]:
        """The results of metrics after a step."""
        found: list[StepValue] = []
        self._guarded("metrics", lambda: found.extend(metric_values(metrics, plan)))
        return found

    def weight_values(self, plan: Plan, read: Callable[[Any], Any], *, skip: set[str]) -> list[StepValue]:
        """The weights that the plan selects, but for some names. read: returns a value, or None."""
        found = []
        for variable, name, kind, origin, _ in self._variables.weights():
            spec = None if name in skip else plan.spec(name, kind, origin)
            value = None if spec is None else read(variable)
            if spec is not None and value is not None:
                found.append(StepValue(spec, value))
        return found

    def note_frozen(self) -> None:
        """Note the weights that could be trained and are not."""
        frozen = [each.name for each in self._variables.weights() if each.frozen]
        if frozen != self._notes.get("frozen", []):
            self._notes["frozen"] = frozen

    def _meet_models(self) -> None:
        for reference in self._models:
            model = reference()
            if model is not None and not add_model(self._variables, model):
                self._variables.add_module(model)

    def _read_watched(self, tape: Any, collector: TapeCollector) -> None:
        for variable in tape.watched_variables():
            self._variables.add(variable)
        self._read_weights(collector, True)

    def _read_weights(self, collector: TapeCollector, trainable_only: bool) -> None:
        """Record the weights that were not recorded in this step."""
        kinds = (TensorKind.WEIGHT, TensorKind.BIAS, TensorKind.CUSTOM)
        if not any(map(collector.plan.may_take, kinds)):
            return
        known = self._variables.weights()
        skip = {each.name for each in known if trainable_only and each.kind is TensorKind.CUSTOM} | self._read
        values = self.weight_values(collector.plan, read_variable, skip=skip)
        self._read |= {each.name for each in known}
        self.record(collector.plan, values, {})
        self.note_frozen()

    def _flush_values(self, collector: TapeCollector) -> None:
        """Record the tensors that were collected so far."""
        taps = dict(collector.values)
        collector.values.clear()
        self.record(collector.plan, (), taps, origins=collector.origins)

    # For the base class -----------------------------------------------------------------------------------

    def _switch_off(self, part: str) -> None:
        if part in ("steps", "capture"):
            self._send_collections()  # the last version, with the fault
            self._off = True
            self._stop_recording()

    def _finish(self) -> None:
        self._end_training()

    def _detach(self) -> None:
        self._guarded("updates", unlisten, self)
        self._guarded("tapes", self._stop_recording)
        for _, restore in self._wrapped:
            if restore is not None:
                self._guarded("updates", restore)
        self._wrapped.clear()
        self._models.clear()

    def _missing(self) -> Iterator[str]:
        if not self._clock.begun:
            needs = self._shortfalls.needs_a_model
            what = ", ".join(needs) or "anything"
            yield (
                f"{what}: no step was detected; use hook.wrap_tape(tf.GradientTape()) in an eager loop, or "
                "@hook.capture_step instead of @tf.function"
            )
            return
        if self._shortfalls.none_due:
            steps = sum(self._clock.begun_steps(mode.value) for mode in ModeKeys)
            yield f"no step: there were {steps}, and save_config names none of them"
        yield from self._shortfalls.of_collections(self._possible())

    def _possible(self) -> Possible:
        names: set[str] = set()
        trains = False
        for each in self._variables.weights():
            names |= {each.name, f"gradient/{each.name}"}
            trains = trains or (each.kind is not TensorKind.CUSTOM and not each.frozen)
        return Possible(names=names, classes=self._variables.classes, trains=trains or not names)
