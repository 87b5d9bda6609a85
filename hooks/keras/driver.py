"""StepDriver: decides which step a batch of fit(), evaluate() or predict() belongs to, and runs saved steps.

While Keras trains, the model's step function is a dispatcher. It begins a step of the hook, and calls the
model's own function if the step saves nothing. A saved step takes its batch from Keras's iterator and runs it
with a capturing function (step_functions.py). If that function fails before the model has changed, the
model's own function runs the same batch, and the capture is switched off.

The row of a step in the times of steps begins with the wait for its batch. A call of a step function can end
without a batch, so the row is named when the batch was there: until then, the stopwatch keeps the place.
Threads: the training thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from time import perf_counter_ns
from typing import Any

import keras

from tdcore.format.layout import TensorKind
from tdcore.hooks.base import BaseHook
from tdcore.hooks.common_phases import COMMON, PhasesWithJax
from tdcore.hooks.keras.backend import Backend, UncapturableStepError
from tdcore.hooks.keras.collector import logged
from tdcore.hooks.keras.model_view import ModelView, flat_layers
from tdcore.hooks.keras.step_functions import MODES, CapturingFunctions
from tdcore.hooks.keras.step_values import learning_rate, optimizer_values, optimizers_of, weight_values
from tdcore.hooks.late_rows import LateRows
from tdcore.hooks.phase_signals import Signal, cancel_wait, time_phases
from tdcore.hooks.plan import Plan
from tdcore.hooks.run_notes import note_once
from tdcore.hooks.shortfall import Possible
from tdcore.hooks.step_record import StepValue, record_step
from tdcore.hooks.step_timer import COMPUTE, DATA, REST
from tdcore.modes import ModeKeys

__all__ = ["StepDriver"]

_MODE = {"train": ModeKeys.TRAIN.value, "test": ModeKeys.EVAL.value, "predict": ModeKeys.PREDICT.value}
_EPOCH = Signal(
    "keras.src.trainers.epoch_iterator", "EpochIterator.__next__", DATA, is_epoch=True
)  # on torch
_SIGNALS = PhasesWithJax((_EPOCH, *COMMON))
_HOOK = "_tdcore_hook"  # attribute of a dispatcher

StepFunction = Callable[..., Any]


class ModelEntry:
    """A model that the hook has met. own: its own step functions, while dispatchers are in their places."""

    def __init__(self, model: Any, hook: StepDriver) -> None:
        self.reference: Callable[[], Any] = weakref.ref(model)
        self.view = ModelView(model)
        self.functions = CapturingFunctions(
            model, self.view, hook._backend, hook._note_uncaptured, hook._fault
        )
        self.uncapturable: set[str] = set()  # modes whose steps have no capturing function
        self.own: dict[str, tuple[StepFunction, StepFunction]] = {}  # mode -> dispatcher, own function


class StepDriver(LateRows):
    """The part of the Keras hook that the dispatchers call."""

    _backend: Backend
    _begins_rows = False

    def _start_driver(self, backend: Backend) -> None:
        self._backend = backend
        self._note_uncaptured = note_once(self._notes, self._warn)
        self._end_phases = time_phases(self, self._timer, self._recorder, _SIGNALS)
        self._entries: dict[int, ModelEntry] = {}
        self._batches_left: int | None = None  # of the epoch, with steps_per_execution
        self._has_batch = False  # the current step has run

    # Dispatchers ------------------------------------------------------------------------------------------

    def _install(self, model: Any, mode: str) -> None:
        """Put a dispatcher into the place of the model's step function."""
        if self._off:
            return
        entry = self._entry_of(model)
        attribute = f"{mode}_function"
        own = getattr(model, attribute)
        other = getattr(own, _HOOK, None)
        if other is self:
            return
        if other is not None:
            other._taken_over(self, model)
            own = getattr(model, attribute)
        dispatcher = self._dispatcher(entry, mode, own)
        setattr(model, attribute, dispatcher)
        entry.own[mode] = dispatcher, own

    def _uninstall(self, model: Any, mode: str) -> None:
        entry = self._entries.get(id(model))
        dispatcher, own = entry.own.pop(mode, (None, None)) if entry is not None else (None, None)
        attribute = f"{mode}_function"
        if dispatcher is not None and getattr(model, attribute, None) is dispatcher:
            setattr(model, attribute, own)

    def _taken_over(self, hook: StepDriver, model: Any) -> None:
        self._notes["taken_over_by"] = hook.out_dir
        self._warn(
            f"a new hook captures {model.name} and writes to {hook.out_dir}; the hook that wrote to "
            f"{self.out_dir} is closed"
        )
        self.close()

    def _entry_of(self, model: Any) -> ModelEntry:
        entry = self._entries.get(id(model))
        if entry is None or entry.reference() is not model:
            entry = self._entries[id(model)] = ModelEntry(model, self)
        return entry

    def _dispatcher(self, entry: ModelEntry, mode: str, own: StepFunction) -> StepFunction:
        value = _MODE[mode]
        pulls = self._backend.name == "jax"  # Keras passes an iterator of batches
        in_graph = self._backend.name == "tensorflow" and mode != "predict"

        def step_function(*args: Any) -> Any:
            if self._off:
                return own(*args)
            if self._control_changed():
                self._check_control_guarded()
            model = entry.reference()
            timer, steps = self._timer, model.steps_per_execution
            try:
                if steps > 1:
                    return self._run_execution(entry, mode, own, args, steps)
                if pulls:
                    timer.enter(DATA)
                    batch = next(args[-1])  # the function may take further batches
                    args = (*args[:-1], chain((batch,), args[-1]))
                try:
                    plan = self._begin_step(self._mode or value)
                except Exception as error:
                    self._fault("steps", error)
                    return own(*args)
                if plan is not None:
                    return self._run_execution(entry, mode, own, args, 1, plan)
                if in_graph:
                    return self._run_in_graph(own, args)
                now = self._clock.now
                timer.begin(now.step, now.mode, now.mode_step, COMPUTE, self._recorder.spent_ns)
                return own(*args)
            except StopIteration:
                cancel_wait(timer)
                raise
            finally:
                timer.enter(REST)

        setattr(step_function, _HOOK, self)
        return step_function

    # Steps ------------------------------------------------------------------------------------------------

    def _run_in_graph(self, own: StepFunction, args: tuple[Any, ...]) -> Any:
        """Run a step that takes its batch from an iterator in TensorFlow's graph."""
        spent = self._expect_row()
        try:
            result = own(*args)
        except BaseException as error:
            if not self._end_of_data(error):
                self._begin_row(spent)
            raise
        self._begin_row(spent)
        return result

    def _run_execution(
        self,
        entry: ModelEntry,
        mode: str,
        own: StepFunction,
        args: tuple[Any, ...],
        steps: int,
        plan: Plan | None = None,
    ) -> Any:
        """Run the batches of one call of the step function. plan: of the first step, if it has begun."""
        value = self._mode or _MODE[mode]
        if plan is None and not self._clock.may_save_within(value, steps):
            spent = self._expect_row()
            result = own(*args)
            for _ in range(self._batches_of(steps, mode)):
                self._begin_step(value)
                self._begin_row(spent)
            return result
        state, batches = args[:-1], args[-1]
        iterator = iter(batches) if isinstance(batches, list) else batches
        results: list[Any] = []
        waits = steps > 1 or (self._backend.name == "tensorflow" and mode != "predict")
        while len(results) < steps:
            begun = plan if plan is not None and not results else self._begin_step(value)
            if waits:
                self._timer.enter(DATA)
            try:
                batch = self._backend.next_batch(entry.reference(), iterator)
            except BaseException as error:
                self._end_of_data(error)
                if not results or not self._backend.is_end(error):
                    raise
                break
            self._begin_row(self._recorder.spent_ns)
            if begun is None:
                result = self._run_own(own, state, batch, mode)
            else:
                result = self._run_saved(entry, mode, own, begun, state, batch)
            state = self._backend.state_after(result)
            results.append(result)
        self._batches_of(len(results), mode)
        return results[-1] if mode != "predict" or len(results) == 1 else self._joined(results)

    def _record_epoch(self, epoch: int) -> bool:
        """Record the epoch when the step has a batch: a step without one is taken back."""
        return self._has_batch and BaseHook._record_epoch(self, epoch)

    def _batches_of(self, steps: int, mode: str) -> int:
        """Number of batches of an execution of some steps: fewer at the end of a known epoch."""
        if mode != "train" or self._batches_left is None:
            return steps
        found = max(min(steps, self._batches_left), 0)
        self._batches_left -= found
        return found

    def _joined(self, results: list[Any]) -> Any:
        """The result of several batches of predict()."""
        parts = [self._backend.outputs_of(result) for result in results]
        joined = keras.tree.map_structure(lambda *each: keras.ops.concatenate(each, axis=0), *parts)
        return self._backend.with_outputs(results[-1], joined)

    def _end_of_data(self, error: BaseException) -> bool:
        """Take back the step that has begun, if there is no batch for it. Return whether this is the case."""
        if not self._backend.is_end(error):
            return False
        self._withdraw_step()
        return True

    def _run_saved(
        self,
        entry: ModelEntry,
        mode: str,
        own: StepFunction,
        plan: Plan,
        state: tuple[Any, ...],
        batch: Any,
    ) -> Any:
        """Run one batch and record it. Returns the result for Keras."""
        start = perf_counter_ns()
        values: list[StepValue] = []
        self._guarded("weights", self._read_before, entry, mode, plan, state, values)
        self._guarded("optimizer", self._read_optimizer, entry, mode, plan, state, values)
        began = perf_counter_ns()
        result, taps = self._run_batch(entry, mode, own, plan, state, batch)
        if self._off:
            return result
        if taps is None:
            taps = logged(self._backend.outputs_of(result)) if mode != "predict" else {}
        ended = perf_counter_ns()
        self._guarded("steps", self._record, entry, mode, plan, values, taps)
        self._recorder.spent_ns += began - start + perf_counter_ns() - ended
        return result

    def _run_batch(
        self,
        entry: ModelEntry,
        mode: str,
        own: StepFunction,
        plan: Plan,
        state: tuple[Any, ...],
        batch: Any,
    ) -> tuple[Any, Mapping[str, Any] | None]:
        """Run one batch with a capturing function, or with the model's own if that is not possible.

        A compiled function with more outputs may round in another way. So in compiled steps the capturing
        function changes nothing, and the model's own function computes the next state.

        Returns the result for Keras and the taps; None if nothing was tapped.
        """
        if self._off or mode in entry.uncapturable:
            return self._run_own(own, state, batch, mode), None
        model = entry.reference()
        before = self._backend.progress(model)
        taps, why, failed = None, "", None
        try:
            copied = self._backend.for_capture(state)
            returned = entry.functions.run(mode, own, plan, copied, batch)
            taps, result = self._backend.result(returned)
            if taps is None:
                self._no_capture(entry, mode, f"make_{mode}_function() does not call {mode}_step()")
            if not self._backend.took_back():
                return result, taps
        except UncapturableStepError as error:
            why = str(error)
        except Exception as error:
            of_training = entry.functions.has_worked and self._backend.is_of_step(error)
            if of_training or self._backend.is_end(error) or self._backend.has_run(model, before, state):
                self._end_of_data(error)
                raise
            failed = error
        result = self._run_own(own, state, batch, mode)
        if failed is not None:
            self._fault("capture", failed)
        elif why:
            self._no_capture(entry, mode, why)
        return result, taps

    def _no_capture(self, entry: ModelEntry, mode: str, why: str) -> None:
        """Record no layers and gradients in this mode any more."""
        entry.uncapturable.add(mode)
        self._note_uncaptured(f"outputs of layers and gradients of {mode}_step: {why}")

    def _run_own(self, own: StepFunction, state: tuple[Any, ...], batch: Any, mode: str) -> Any:
        """Run one batch with the model's own function."""
        try:
            return self._backend.call(own, state, batch, mode)
        except BaseException as error:
            self._end_of_data(error)
            raise

    def _read_before(
        self, entry: ModelEntry, mode: str, plan: Plan, state: tuple[Any, ...], values: list[StepValue]
    ) -> None:
        """Read the weights before the step, or arrange that they are read when the model is built in it."""
        model = entry.reference()
        read, _ = self._backend.reader(model, mode, state)
        entry.functions.on_weights = None
        if all(getattr(layer, "built", True) for layer in flat_layers(model)):
            values += weight_values(entry.view, plan, read, trainable_only=False)
        else:

            def weights_ready() -> None:
                with self._backend.outside_of_graphs():
                    eager = bool(model.run_eagerly)
                    values.extend(weight_values(entry.view, plan, read, trainable_only=eager))

            entry.functions.on_weights = weights_ready

    def _read_optimizer(
        self, entry: ModelEntry, mode: str, plan: Plan, state: tuple[Any, ...], values: list[StepValue]
    ) -> None:
        """Read the state of the optimizer and its learning rate before a training step."""
        if mode != "train":
            return
        read, known = self._backend.reader(entry.reference(), mode, state)
        for number, optimizer in enumerate(optimizers_of(entry.reference())):
            prefix = f"optimizer_{number}" if number else "optimizer"
            values += optimizer_values(optimizer, prefix, entry.view, plan, read)
            values += learning_rate(optimizer, prefix, plan, known)

    def _record(
        self, entry: ModelEntry, mode: str, plan: Plan, values: list[StepValue], taps: Mapping[str, Any]
    ) -> None:
        """Record everything of one step."""
        entry.functions.on_weights = None
        if self._epoch is not None:
            self._has_batch = True
            self._save("epoch", self._record_epoch, self._epoch)
            self._has_batch = False
        record_step(
            self._recorder,
            plan,
            values,
            taps,
            origins=entry.functions.origins,
            absent=entry.functions.absent if mode == "train" and taps else {},
            merged=self._backend.merged,
            to_array=self._backend.to_array,
        )
        if mode == "train":
            frozen = [each.name for each in entry.view.weights() if each.frozen]
            if frozen != self._notes.get("frozen", []):
                self._notes["frozen"] = frozen

    # For the base class -----------------------------------------------------------------------------------

    def _switch_off(self, part: str) -> None:
        if part in ("steps", "capture"):
            self._send_collections()  # the last version, with the fault
            self._off = True

    def _detach(self) -> None:
        for entry in self._entries.values():
            model = entry.reference()
            for mode in MODES:
                if model is not None:
                    self._guarded("close", self._uninstall, model, mode)

    def _missing(self) -> Iterator[str]:
        if "taken_over_by" in self._notes and not self._clock.begun:
            return  # the other hook has recorded
        if not self._clock.begun:
            needs = self._shortfalls.needs_a_model
            what = ", ".join(needs) or "anything"
            yield f"{what}: no step was detected; pass the hook to fit(callbacks=[hook]) or call watch(model)"
            return
        if self._shortfalls.none_due:
            steps = sum(self._clock.begun_steps(mode.value) for mode in ModeKeys)
            yield f"no step: there were {steps}, and save_config names none of them"
        yield from self._shortfalls.of_collections(self._possible())

    def _possible(self) -> Possible:
        """Tensors that the models have, captured or not."""
        names: set[str] = set()
        classes: set[str] = set()
        trains = False
        for entry in self._entries.values():
            for each in entry.view.weights():
                names |= {each.name, f"gradient/{each.name}"}
                trains = trains or (each.kind is not TensorKind.CUSTOM and not each.frozen)
            model = entry.reference()
            for layer in flat_layers(model) if model is not None else ():
                name = entry.view.layer_name(layer)
                names |= {f"{name}_output_0", f"{name}_input_0"}
            classes |= entry.view.classes
        return Possible(names=names, classes=classes, trains=trains)
