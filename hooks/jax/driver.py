"""StepDriver: decides which step a call belongs to, and runs saved steps.

In a step that saves nothing, the script's own function runs and nothing else. In a saved step, parameters and
optimizer state are recorded from the arguments, a second function computes the other tensors from the same
arguments, and then the script's own function computes the result: the training has the same bits by
construction, and arguments may be donated. A function that is not compiled runs once: its tensors are
received while it runs. Threads: the training thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import jax
import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.base import BaseHook
from tdcore.hooks.common_phases import COMMON, PhasesWithJax
from tdcore.hooks.jax.captured_step import CapturedStep
from tdcore.hooks.jax.collector import Collector, ModuleNames, TapName
from tdcore.hooks.jax.interception import collecting
from tdcore.hooks.jax.shards import parts_of_array, split_tap
from tdcore.hooks.jax.step_functions import Tapped, UncapturableStepError
from tdcore.hooks.jax.step_values import NamedLeaf, StepInputs, StepNames, scalars_of
from tdcore.hooks.jax.tapped_jaxpr import LiftedTap
from tdcore.hooks.jax.taps import is_traced
from tdcore.hooks.jax.update_ratios import CopiedParameter, copied_parameters, ratio_of, requests_ratios
from tdcore.hooks.jax_arrays import host_array
from tdcore.hooks.phase_signals import time_phases
from tdcore.hooks.plan import CaptureSpec, Plan, TensorSpec
from tdcore.hooks.run_notes import note_once
from tdcore.hooks.shortfall import Possible
from tdcore.hooks.step_timer import REST
from tdcore.modes import ModeKeys

__all__ = ["StepDriver"]

_SIGNALS = PhasesWithJax(COMMON)
_PARAMETERS = (TensorKind.WEIGHT, TensorKind.BIAS)
_RATIOS = "update ratios"
_NO_NEW_VALUE = (
    "no result of the step is the parameter plus an update; capture the compiled function that returns the "
    "new parameters"
)
_SEVERAL = "several results of the step are the parameter plus an update"


class StepDriver(BaseHook):
    """The part of the JAX hook that captured steps call."""

    def _start_driver(self, *, per_shard: bool, per_layer: bool) -> None:
        self._note_uncaptured = note_once(self._notes, self._warn)
        self._end_phases = time_phases(self, self._timer, self._recorder, _SIGNALS)
        self._modules = ModuleNames()
        self._per_shard = per_shard
        self._per_layer = per_layer
        self._parameters: dict[str, None] = {}  # names of all parameters so far
        self._in_step = False

    def _run_step(self, captured: CapturedStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step of the script. Raises StopTraining, and errors of the step."""
        if self._off or self._in_step or is_traced():
            return captured.step(*args, **kwargs)
        if self._control_changed():
            self._check_control_guarded()
        try:
            plan = self._begin_step(self._mode or captured.mode)
        except Exception as error:
            self._fault("steps", error)
            plan = None
        try:
            if plan is None:
                return captured.step(*args, **kwargs)
            return self._run_saved(captured, plan, args, kwargs)
        finally:
            self._timer.enter(REST)

    # Saved steps ------------------------------------------------------------------------------------------

    def _run_saved(
        self, captured: CapturedStep, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        start = perf_counter_ns()
        inputs = self._inputs(captured, args, kwargs)
        tapped, failed = self._compute_taps(captured, plan, inputs)
        self._guarded("weights", self._record_arguments, captured, plan, inputs)
        self._guarded("steps", self._record_taps, plan, tapped)
        copies = self._copied_parameters(captured, plan, inputs)
        began = perf_counter_ns()
        result, seen = self._run_own(captured, plan, inputs, args, kwargs)
        ended = perf_counter_ns()
        if failed is not None:
            self._fault("capture", failed)  # the step itself has run: the error is one of the capture
        if seen is not None:
            self._guarded("steps", self._record_taps, plan, seen)
        if copies and inputs is not None:
            self._guarded(_RATIOS, self._record_ratios, captured, plan, inputs, copies, result, args, kwargs)
        names = {each.name.name for each in (*tapped, *(seen or ()))}
        self._guarded("metrics", self._record_result, captured, plan, inputs, result, names)
        self._recorder.spent_ns += began - start + perf_counter_ns() - ended
        return result

    def _inputs(
        self, captured: CapturedStep, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepInputs | None:
        try:
            return StepInputs(captured.argument_names, args, kwargs)
        except Exception as error:
            self._fault("arguments", error)
            return None

    def _compute_taps(
        self, captured: CapturedStep, plan: Plan, inputs: StepInputs | None
    ) -> tuple[list[Tapped], Exception | None]:
        """The tensors of a compiled step, and an error that may be one of the step itself."""
        if inputs is None or not captured.is_compiled or self._cannot_capture(captured):
            return [], None
        self._in_step = True
        try:
            return captured.functions.run(plan, inputs), None
        except UncapturableStepError as error:
            captured.uncapturable = True
            self._note_uncaptured(f"outputs and gradients of {_name_of(captured)}: {error}")
        except Exception as error:
            return [], error
        finally:
            self._in_step = False
        return [], None

    def _cannot_capture(self, captured: CapturedStep) -> bool:
        return captured.uncapturable or "capture" in self._faults

    def _run_own(
        self,
        captured: CapturedStep,
        plan: Plan,
        inputs: StepInputs | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, list[Tapped] | None]:
        """Run the script's function; one that is not compiled within a collector."""
        if captured.is_compiled or inputs is None or self._cannot_capture(captured):
            return captured.step(*args, **kwargs), None
        collector = Collector(
            plan,
            StepNames(inputs.leaves, captured.further),
            self._modules,
            self._note_uncaptured,
            self._fault,
            at_once=True,
            own_loss=captured.loss is not None,
        )
        self._in_step = True
        try:
            with collecting(collector):
                result = captured.step(*args, **kwargs)
        finally:
            self._in_step = False
        taps = [
            Tapped(collector.taps[number], LiftedTap(number), value)
            for number, value in collector.values
            if number in collector.taps
        ]
        return result, taps

    # Recording --------------------------------------------------------------------------------------------

    def _record_arguments(self, captured: CapturedStep, plan: Plan, inputs: StepInputs | None) -> None:
        """Record parameters and optimizer state before the step changes them."""
        if inputs is None:
            return
        found: list[tuple[TensorSpec, Any]] = []
        for each in StepNames(inputs.leaves, captured.further).named:
            self._parameters.setdefault(each.name if each.kind in _PARAMETERS else "")
            value = inputs.leaves[each.position].value
            if not getattr(value, "is_fully_addressable", True):
                self._note_uncaptured(f"{each.name}: other processes hold a part of it")
                continue
            found += self._parts_with_specs(plan, each, value)
        self._capture(found)

    def _parts_with_specs(self, plan: Plan, leaf: NamedLeaf, value: Any) -> Iterator[tuple[TensorSpec, Any]]:
        if not plan.takes(leaf.name, leaf.kind):
            return
        for name, part, place in parts_of_array(leaf.name, value, per_shard=self._per_shard):
            spec = plan.spec(name, leaf.kind)
            if spec is not None:
                self._note_place(name, place)
                yield spec, part

    def _record_taps(self, plan: Plan, tapped: list[Tapped]) -> None:
        by_optimizer = {each.name.name for each in tapped if each.name.source == "optimizer"}
        calls: Counter[str] = Counter()
        by_call: dict[int, list[tuple[TensorSpec, Any]]] = {}
        for each in tapped:
            if each.name.source == "differentiation" and each.name.name in by_optimizer:
                continue
            parts = split_tap(each, per_layer=self._per_layer)
            for name, value, place in parts:
                spec = self._spec_of(plan, each.name, name, value)
                if spec is not None:
                    self._note_place(name, place)
                    by_call.setdefault(calls[name], []).append((spec, value))
                    calls[name] += 1
        for call, found in by_call.items():
            self._capture(found, call)

    def _copied_parameters(
        self, captured: CapturedStep, plan: Plan, inputs: StepInputs | None
    ) -> list[CopiedParameter]:
        """Copies of the parameters before a training step, whose update ratios are requested."""
        trains = (self._mode or captured.mode) not in (ModeKeys.EVAL.value, ModeKeys.PREDICT.value)
        if inputs is None or not trains or not requests_ratios(plan) or _RATIOS in self._faults:
            return []
        try:
            named = StepNames(inputs.leaves, captured.further).named
            return copied_parameters(plan, named, [leaf.value for leaf in inputs.leaves])
        except Exception as error:
            self._fault(_RATIOS, error)
            return []

    def _record_ratios(
        self,
        captured: CapturedStep,
        plan: Plan,
        inputs: StepInputs,
        copies: list[CopiedParameter],
        result: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Record the update ratios of a step that has run."""
        places = captured.functions.new_values(plan, inputs)
        returned = jax.tree_util.tree_leaves(result)
        changed = self._changed_in_place(captured, inputs, args, kwargs)
        found: list[tuple[TensorSpec, Any]] = []
        lacking: dict[str, list[str]] = {}
        for each in copies:
            results = places.get(each.position, [])
            after = returned[results[0]] if len(results) == 1 else changed.get(each.position)
            if after is not None:
                found.append((each.spec, ratio_of(each.before, after)))
            else:
                lacking.setdefault(_SEVERAL if results else _NO_NEW_VALUE, []).append(each.name)
        for reason, names in lacking.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self._note_uncaptured(f"{names[0]}{more}: {reason}")
        self._capture(found)

    def _changed_in_place(
        self, captured: CapturedStep, inputs: StepInputs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int, Any]:
        """New values of nnx variables that the step has changed, by position in the leaves."""
        if not any(leaf.variable is not None for leaf in inputs.leaves):
            return {}
        now = {leaf.path: leaf.value for leaf in StepInputs(captured.argument_names, args, kwargs).leaves}
        return {
            position: now[leaf.path]
            for position, leaf in enumerate(inputs.leaves)
            if leaf.variable is not None and now.get(leaf.path, leaf.value) is not leaf.value
        }

    def _record_result(
        self,
        captured: CapturedStep,
        plan: Plan,
        inputs: StepInputs | None,
        result: Any,
        known: set[str],
    ) -> None:
        """Record the loss and the metrics that the step returns."""
        found: list[tuple[TensorSpec, Any]] = []
        unnamed = []
        if captured.loss is not None:
            found += self._scalar(plan, "loss", TensorKind.LOSS, captured.loss(result))
        names = None if inputs is None else StepNames(inputs.leaves, captured.further)
        for name, value in scalars_of(result, names):
            if not name:
                unnamed.append(value)
                continue
            if name not in known and not (name == "loss" and captured.loss is not None):
                kind = TensorKind.LOSS if "loss" in name.lower() else TensorKind.METRIC
                found += self._scalar(plan, name, kind, value)
                known = known | {name}
        if len(unnamed) == 1 and "loss" not in known and captured.loss is None:
            found += self._scalar(plan, "loss", TensorKind.LOSS, unnamed[0])
        self._capture(found)

    def _scalar(
        self, plan: Plan, name: str, kind: TensorKind, value: Any
    ) -> Iterator[tuple[TensorSpec, Any]]:
        spec = self._spec_of(plan, TapName(kind, name), name, value)
        if spec is not None:
            yield spec, value

    def _spec_of(self, plan: Plan, tap: TapName, name: str, value: Any) -> TensorSpec | None:
        spec = plan.spec(name, tap.kind, tap.origin)
        if spec is not None and tap.kind is TensorKind.LOSS and set(np.shape(value)) <= {1}:
            return spec.whole
        return spec

    def _capture(self, found: list[tuple[TensorSpec, Any]], call: int = 0) -> None:
        if found:
            values = [host_array(value) for _, value in found]
            self._recorder.capture(values, CaptureSpec([spec for spec, _ in found]), call=call)

    def _note_place(self, name: str, place: dict[str, Any]) -> None:
        """Store the place of a shard under "shards" of the run's notes."""
        if place and self._notes.get("shards", {}).get(name) != place:
            self._notes["shards"] = {**self._notes.get("shards", {}), name: place}

    # For the base class -----------------------------------------------------------------------------------

    def _switch_off(self, part: str) -> None:
        if part == "steps":
            self._send_collections()  # the last version, with the fault
            self._off = True

    def _missing(self) -> Iterator[str]:
        if not self._clock.begun:
            needs = self._shortfalls.needs_a_model
            what = ", ".join(needs) or "anything"
            yield f"{what}: no step was detected; call the function that capture_step() returns"
            return
        if self._shortfalls.none_due:
            steps = sum(self._clock.begun_steps(mode.value) for mode in ModeKeys)
            yield f"no step: there were {steps}, and save_config names none of them"
        yield from self._shortfalls.of_collections(self._possible())

    def _possible(self) -> Possible:
        """Tensors that the steps have, captured or not."""
        parameters = set(self._parameters) - {""}
        names = {*parameters, *(f"gradient/{each}" for each in parameters)}
        for module in self._modules.seen:
            names |= {f"{module}_output_0", f"{module}_input_0"}
        return Possible(names=names, classes=self._modules.classes)


def _name_of(captured: CapturedStep) -> str:
    return str(getattr(captured.step, "__name__", type(captured.step).__name__))
