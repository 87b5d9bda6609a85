"""StepCollector: the tensors that one saved step returns, put here while the step is traced or runs.

A key is "<kind>:<call>:<name>". A compiled function returns a dictionary with these keys, so what a tensor
is stays with it, however often the function is traced again. Operations inside of a loop, a condition or a
function of their own belong to another graph than the step, which cannot return their tensors: layers that
are called there are noted. Independent of the framework.
Threads: the thread that traces the step; with a strategy of several replicas, each has a collector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Plan

__all__ = ["Key", "StepCollector", "TraceOperations"]


class Key(NamedTuple):
    """Kind, number of the call within the step, and name of a tensor."""

    kind: TensorKind
    call: int
    name: str

    def as_text(self) -> str:
        """The key in the dictionary."""
        return f"{self.kind.value}:{self.call}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """The key of a text."""
        kind, call, name = text.split(":", 2)
        return cls(TensorKind(int(kind)), int(call), name)


class TraceOperations(Protocol):
    """Operations of a framework that a collector needs."""

    def trace(self) -> object:
        """The graph or trace in which operations are executed now. Equal values mean the same one."""

    def is_building(self) -> bool:
        """Whether only shapes are computed now, with placeholders."""

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a tensor that a step can return."""

    def kept(self, value: Any) -> Any:
        """The tensor in a form that the following operations of the step do not change."""

    def dense(self, value: Any) -> Any:
        """The tensor; a sparse gradient as a dense tensor with the same sum in each row."""


class _Level:
    """Tensors of one trace: of the step, or of a function in it whose gradient is computed."""

    def __init__(self, trace: object) -> None:
        self.trace = trace
        self.values: dict[str, Any] = {}


class StepCollector:
    """Tensors of one step. Subclasses name layers and weights.

    Args:
        plan: Selects the tensors.
        operations: Operations of the framework.
        origins: Names of tensors -> class of the layer; filled by the collector.
        note: Stores a message about tensors that cannot be captured.
        fault: Handles an error of tdcore.
        on_weights: Called when the model has all weights, before they change.
    """

    def __init__(
        self,
        plan: Plan,
        operations: TraceOperations,
        origins: dict[str, str],
        note: Callable[[str], None],
        fault: Callable[[str, Exception], None],
        on_weights: Callable[[], None] | None = None,
    ) -> None:
        self.plan = plan
        self.operations = operations
        self.levels = [_Level(operations.trace())]
        self.in_apply = 0
        self.absent: dict[str, str] = {}  # gradients that do not exist, with the class of their layer
        self._origins = origins
        self._note = note
        self._fault = fault
        self._on_weights = on_weights
        self._calls: Counter[tuple[TensorKind, str]] = Counter()

    # For subclasses ---------------------------------------------------------------------------------------

    def _layer_name(self, layer: Any) -> str:
        """The name of a layer."""
        raise NotImplementedError

    def _weight(self, variable: Any) -> tuple[str, str]:
        """Name of a weight, and the class of its layer; the name is "" for other variables."""
        raise NotImplementedError

    def _flat(self, values: Any) -> Iterable[Any]:
        """The leaves of a nested structure."""
        raise NotImplementedError

    def _unscaled(self, gradient: Any, scale: Any) -> Any:
        """A gradient without the scale of the loss."""
        raise NotImplementedError

    def _scale(self, optimizer: Any, gradients: Any, scale: Any) -> None:
        """Add the scale of the loss, and whether a gradient is not finite."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------

    @property
    def values(self) -> dict[str, Any]:
        """Tensors by key."""
        return self.levels[0].values

    @contextmanager
    def level(self) -> Iterator[dict[str, Any]]:
        """Put tensors of the block into a dictionary of their own, which join() takes later."""
        level = _Level(self.operations.trace())
        self.levels.append(level)
        try:
            yield level.values
        finally:
            self.levels.remove(level)

    def join(self, taps: Mapping[str, Any]) -> None:
        """Add the tensors of a level, as the function that differentiates it has returned them."""
        self.levels[-1].values |= taps

    def guarded(self, part: str, call: Callable[..., object], *args: Any) -> None:
        """Call a function of tdcore whose error must not reach the training."""
        try:
            call(*args)
        except Exception as error:
            self._fault(part, error)

    def add(self, name: str, kind: TensorKind, value: Any, origin: str = "", *, always: bool = False) -> None:
        """Add a tensor that the plan selects."""
        if not self.operations.is_tensor(value):
            return
        if not always and not self._selected(name, kind, origin):
            return
        if not self._reachable(name):
            return
        call = self._calls[kind, name]
        self._calls[kind, name] = call + 1
        self._origins[name] = origin
        self.levels[-1].values[Key(kind, call, name).as_text()] = self.operations.kept(value)

    def _selected(self, name: str, kind: TensorKind, origin: str) -> bool:
        """Whether the plan selects a tensor. Stored, because without graphs every saved step asks again."""
        key = "selected", name, kind, origin
        known: dict[Any, bool] = self.plan.cache
        if key not in known:
            known[key] = self.plan.may_take(kind) and self.plan.takes(name, kind, origin)
        return known[key]

    def add_flat(self, name: str, values: Any) -> None:
        """Add the tensors of a nested structure: "name", or "name_0", "name_1", ... if there are several."""
        tensors = [value for value in self._flat(values) if self.operations.is_tensor(value)]
        for number, tensor in enumerate(tensors):
            self.add(name if len(tensors) == 1 else f"{name}_{number}", TensorKind.CUSTOM, tensor)

    def layer_called(self, layer: Any, inputs: Any, outputs: Any) -> None:
        """Add the inputs and outputs of one call of a layer."""
        if self.operations.is_building():
            return
        wanted = [
            (kind, end, values)
            for kind, end, values in (
                (TensorKind.INPUT, "input", inputs),
                (TensorKind.OUTPUT, "output", outputs),
            )
            if self.plan.may_take(kind)
        ]
        if not wanted:
            return
        origin = type(layer).__name__
        name = self._layer_name(layer)
        for kind, end, values in wanted:
            tensors = list(filter(self.operations.is_tensor, self._flat(values)))
            for number, tensor in enumerate(tensors):
                self.add(f"{name}_{end}_{number}", kind, tensor, origin)

    def gradients(self, optimizer: Any, gradients: Any, variables: Any, scale: Any) -> None:
        """Add the gradients that an optimizer was given. scale: of the loss, None if there is none."""
        if scale is not None:
            self._scale(optimizer, gradients, scale)
        if not self.plan.may_take(TensorKind.GRADIENT):
            return
        for gradient, variable in zip(gradients, variables, strict=False):
            name, origin = self._weight(variable)
            called = f"gradient/{name}"
            if not name:
                continue
            if gradient is None:
                self.absent[called] = origin
            elif self.plan.takes(called, TensorKind.GRADIENT, origin):
                value = self.operations.dense(gradient)
                value = value if scale is None else self._unscaled(value, scale)
                self.add(called, TensorKind.GRADIENT, value, origin)

    def weights_ready(self) -> None:
        """Record the weights of a model that was built in this step, before they change."""
        ready, self._on_weights = self._on_weights, None
        if ready is not None:
            ready()

    def _reachable(self, name: str) -> bool:
        if self.operations.trace() == self.levels[-1].trace:
            return True
        self._note(
            f"{name}: it is computed in a loop, a condition or a compiled function within the step, "
            "which cannot return it"
        )
        return False
