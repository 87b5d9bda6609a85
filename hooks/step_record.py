"""Records the values of one saved step: values that were read before it, and tensors that it returned.

Independent of the framework. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import NO_BACKWARD, CaptureSpec, Plan, TensorSpec
from tdcore.hooks.recorder import Recorder
from tdcore.hooks.step_collector import Key

__all__ = ["StepValue", "record_step"]


class StepValue(NamedTuple):
    """A value and how it is captured."""

    spec: TensorSpec
    value: Any


def record_step(
    recorder: Recorder,
    plan: Plan,
    values: Iterable[StepValue],
    taps: Mapping[str, Any],
    *,
    origins: Mapping[str, str],
    absent: Mapping[str, str],
    merged: Callable[[str, Sequence[Any]], list[tuple[str, Any]]],
    to_array: Callable[[Any], Any],
) -> None:
    """Record everything of one step.

    Args:
        recorder: The way to the ring.
        plan: The plan of the step.
        values: Values that were read before the step.
        taps: Tensors by the text of their Key; a tuple has a tensor for each replica.
        origins: Names of tensors -> class of the layer.
        absent: Names of gradients that do not exist -> class of the layer.
        merged: Names and values of a tensor that every replica has.
        to_array: Returns a tensor in a form that the recorder takes.
    """
    by_call: dict[int, list[tuple[TensorSpec, Any]]] = {0: [(each.spec, each.value) for each in values]}
    for text, tapped in taps.items():
        key = Key.parse(text)
        parts = merged(key.name, tapped) if isinstance(tapped, tuple) else [(key.name, tapped)]
        for name, tensor in parts:
            spec = _spec_of(key, name, plan, origins.get(key.name, ""), tensor)
            if spec is not None:
                by_call.setdefault(key.call, []).append((spec, tensor))
    specs = [plan.spec(name, TensorKind.GRADIENT, origin) for name, origin in absent.items()]
    by_call[0] += [(spec, None) for spec in specs if spec is not None]
    for call, found in by_call.items():
        if found:
            tensors = [None if each is None else to_array(each) for _, each in found]
            capture_spec = CaptureSpec([spec for spec, _ in found])
            if any(each is None for each in tensors):
                reasons = [NO_BACKWARD * (each is None) for each in tensors]
                capture_spec = capture_spec.with_reasons(reasons)
            recorder.capture(tensors, capture_spec, call=call)


def _spec_of(key: Key, name: str, plan: Plan, origin: str, tensor: Any) -> TensorSpec | None:
    if key.kind in (TensorKind.HYPERPARAMETER, TensorKind.SCALAR):
        return plan.always(name, key.kind, origin)
    spec = plan.spec(name, key.kind, origin)
    if spec is not None and key.kind is TensorKind.LOSS and set(tensor.shape) <= {1}:
        return spec.whole
    return spec
