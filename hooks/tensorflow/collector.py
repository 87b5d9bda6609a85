"""TapeCollector: the tensors of one saved step of a training loop. See step_collector.py.

Gradients come from the optimizer that applies them. The gradients of a tape are recorded for variables that
no optimizer of the step updates, for instance with an update by hand: settle() adds them at the end.
Threads: the thread that traces or runs the step; each replica of a strategy has a collector.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Plan
from tdcore.hooks.step_collector import Key, StepCollector
from tdcore.hooks.tensorflow.operations import TensorFlowOperations
from tdcore.hooks.tensorflow.variables import VariableNames

__all__ = ["TapeCollector"]


class _TapeGradient(NamedTuple):
    """A gradient of a tape. called: its name. origin: class of the variable's layer."""

    called: str
    origin: str
    value: Any


class TapeCollector(StepCollector):
    """Tensors of one step.

    Args:
        plan: Selects the tensors.
        names: Names of variables and layers.
        note: Stores a message about tensors that cannot be captured.
        fault: Handles an error of tdcore.
    """

    def __init__(
        self,
        plan: Plan,
        names: VariableNames,
        note: Callable[[str], None],
        fault: Callable[[str, Exception], None],
    ) -> None:
        self.origins: dict[str, str] = {}
        StepCollector.__init__(self, plan, TensorFlowOperations(), self.origins, note, fault)
        self.names = names
        self.tapes: list[int] = []  # id() of the tapes that record now
        self.running: set[int] = set()  # id() of the modules whose call methods run now
        self.metrics: list[weakref.ref[Any]] = []
        self._tape_gradients: list[_TapeGradient] = []
        self._scaled: list[tuple[Any, Any]] = []  # scaled losses, and the losses
        self._criteria: list[Any] = []  # results of loss functions

    def for_replica(self) -> TapeCollector:
        """A collector for one replica of a strategy, whose values join() takes."""
        found = TapeCollector(self.plan, self.names, self._note, self._fault)
        found._calls.update(self._calls)
        found.origins = found._origins = self.origins
        found.absent, found.metrics = self.absent, self.metrics
        return found

    def join(self, taps: Mapping[str, Any]) -> None:
        """Add the tensors of replicas."""
        super().join(taps)
        for text in taps:
            kind, call, name = Key.parse(text)
            self._calls[kind, name] = max(self._calls[kind, name], call + 1)

    def tape_gradient(self, tape: Any, target: Any, sources: Any, gradients: Any) -> None:
        """Take the gradients that a tape has computed, and their loss.

        Gradients with respect to other tensors than variables, and those that are computed while another
        tape records, are steps on the way to a loss.
        """
        if any(each != id(tape) for each in self.tapes):
            return
        pairs = list(zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True))
        named = [(*self._weight(source), value) for source, value in pairs]
        if not any(name for name, _, _ in named):
            return
        for loss in tf.nest.flatten(target):
            unscaled = next((each for scaled, each in self._scaled if scaled is loss), loss)
            self.add("loss", TensorKind.LOSS, unscaled)
        self._criteria.clear()
        for name, origin, value in named:
            called = f"gradient/{name}"
            if name and self.plan.takes(called, TensorKind.GRADIENT, origin) and self._reachable(called):
                self._tape_gradients.append(_TapeGradient(called, origin, value))

    def gradients(self, optimizer: Any, gradients: Any, variables: Any, scale: Any) -> None:
        """Add the gradients that an optimizer was given, in the place of those of tapes."""
        applied = {f"gradient/{self._weight(variable)[0]}" for variable in variables}
        self._tape_gradients = [each for each in self._tape_gradients if each.called not in applied]
        super().gradients(optimizer, gradients, variables, scale)

    def tap(self, name: str, kind: TensorKind, value: Any) -> None:
        """Add a tensor that the script has named."""
        self.add(name, kind, tf.convert_to_tensor(value), always=True)

    def loss_scaled(self, loss: Any, scaled: Any) -> None:
        """Remember the loss from which a scaled one was computed."""
        self._scaled.append((scaled, loss))

    def criterion(self, labels: Any, predictions: Any, loss: Any) -> None:
        """Take a result of a loss function: the loss of a step without a tape."""
        self._criteria.append(loss)
        if self.plan.may_take(TensorKind.CUSTOM):
            self.add_flat("labels", labels)
            self.add_flat("predictions", predictions)

    def metric_updated(self, metric: Any) -> None:
        """Remember a metric, whose result is read after the step."""
        if self.plan.may_take(TensorKind.METRIC) and not any(each() is metric for each in self.metrics):
            self.metrics.append(weakref.ref(metric))

    def settle(self) -> None:
        """Add the tensors that are certain only at the end of the step."""
        for each in self._tape_gradients:
            if each.value is None:
                self.absent[each.called] = each.origin
            else:
                self.add(each.called, TensorKind.GRADIENT, self.operations.dense(each.value), each.origin)
        self._tape_gradients.clear()
        if not self._calls[TensorKind.LOSS, "loss"]:
            for loss in self._criteria:
                self.add("loss", TensorKind.LOSS, loss)
        self._criteria.clear()

    def layer_called(self, layer: Any, inputs: Any, outputs: Any) -> None:
        """Add the inputs and outputs of one call of a layer, and name the layer's weights."""
        self.names.layer_name(layer)
        self.names.add_layer(layer)
        super().layer_called(layer, inputs, outputs)

    def note(self, message: str) -> None:
        """Store a message about tensors that cannot be captured."""
        self._note(message)

    @property
    def takes_calls(self) -> bool:
        """Whether inputs or outputs of layers may be selected."""
        return self.plan.may_take(TensorKind.OUTPUT) or self.plan.may_take(TensorKind.INPUT)

    def _layer_name(self, layer: Any) -> str:
        return self.names.layer_name(layer)

    def _weight(self, variable: Any) -> tuple[str, str]:
        return self.names.weight_of(variable)

    def _flat(self, values: Any) -> Iterable[Any]:
        found: Iterable[Any] = tf.nest.flatten(values)
        return found

    def _unscaled(self, gradient: Any, scale: Any) -> Any:
        return gradient / tf.cast(tf.convert_to_tensor(scale), gradient.dtype)

    def _scale(self, optimizer: Any, gradients: Any, scale: Any) -> None:
        kind, origin = TensorKind.HYPERPARAMETER, type(optimizer).__name__
        given = [self.operations.dense(gradient) for gradient in gradients if gradient is not None]
        finite = tf.stack([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in given])
        found = tf.cast(tf.logical_not(tf.reduce_all(finite)), tf.float32)
        self.add("optimizer/grad_scale", kind, tf.convert_to_tensor(scale), origin, always=True)
        self.add("optimizer/found_inf", kind, found, origin, always=True)
