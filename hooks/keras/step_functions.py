"""The two compiled functions of a model and a mode: the model's own, and capturing ones for saved steps.

A capturing function is made by the model itself, as its own function is, with the same settings of compile();
only its step returns a dictionary with the outputs and the taps. There is one for each selection of tensors.
Threads: the training thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tdcore.format.layout import TensorKind
from tdcore.hooks.interception import collecting, instance_attribute
from tdcore.hooks.keras.backend import OUTPUTS, TAPS, Backend
from tdcore.hooks.keras.collector import Collector
from tdcore.hooks.keras.interception import intercepted, loss_reporting
from tdcore.hooks.keras.model_view import ModelView
from tdcore.hooks.plan import Plan

__all__ = ["MODES", "CapturingFunctions"]

MODES = ("train", "test", "predict")
_KEPT = 4  # capturing functions of one mode

Selection = tuple[tuple[object, ...], ...]


class CapturingFunctions:
    """Makes and keeps the capturing functions of one model.

    Args:
        model: The model; referred to weakly.
        view: Its names.
        backend: The backend.
        note: Stores a message about tensors that cannot be captured.
        fault: Handles an error of tdcore.
    """

    def __init__(
        self,
        model: Any,
        view: ModelView,
        backend: Backend,
        note: Callable[[str], None],
        fault: Callable[[str, Exception], None],
    ) -> None:
        self.origins: dict[str, str] = {}
        self.on_weights: Callable[[], None] | None = None
        self._model = weakref.ref(model)
        self._view = view
        self._backend = backend
        self._note = note
        self._fault = fault
        self._made: dict[tuple[str, Selection], tuple[Any, Callable[..., Any]]] = {}
        self._plan: Plan | None = None  # of the step that runs
        self._key: tuple[str, Selection] = ("", ())  # of the function that runs, or ran last
        # Gradients that do not exist, with the class of their layer, as found when a function was traced.
        self._absent: dict[tuple[str, Selection], dict[str, str]] = {}
        self._ran: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
        self.has_worked = False  # the function of the last run() had run before

    def run(self, mode: str, own: Callable[..., Any], plan: Plan, state: tuple[Any, ...], batch: Any) -> Any:
        """Run one batch with a capturing function. Returns its result; see Backend.result().

        Args:
            mode: "train", "test" or "predict".
            own: The function of the model itself.
            plan: Selects the tensors.
            state: Further arguments of the function, before the batch.
            batch: The batch.
        """
        model = self._model()
        key = mode, tuple((each.name, *each.selection) for each in plan.collections)
        self._backend.check_model(model)
        self._plan, self._key = plan, key
        try:
            with self._capturing(model, mode):
                known = self._made.get(key)
                if known is None or known[0] is not own:
                    known = self._made[key] = own, self._make(model, mode)
                    self._forget_old(mode)
                self.has_worked = known[1] in self._ran
                with self._backend.unchanged(model, known[1]):
                    returned = self._backend.call(known[1], state, batch, mode)
                self._ran.add(known[1])
                return returned
        finally:
            self._plan = None

    @property
    def absent(self) -> dict[str, str]:
        """Names of gradients that did not exist in the last run(), with the class of their layer."""
        return self._absent.get(self._key, {})

    @contextmanager
    def _capturing(self, model: Any, mode: str) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(intercepted(self._backend))
            step = getattr(model, f"{mode}_step")
            stack.enter_context(instance_attribute(model, "compute_loss", loss_reporting(model)))
            stack.enter_context(instance_attribute(model, f"{mode}_step", self._step(step, mode)))
            for owner, name, make in self._backend.strategy_patches(model):
                stack.enter_context(instance_attribute(owner, name, make(getattr(owner, name))))
            yield

    def _make(self, model: Any, mode: str) -> Callable[..., Any]:
        attribute = f"{mode}_function"
        before = getattr(model, attribute)
        try:
            getattr(model, f"make_{attribute}")(force=True)
            made: Callable[..., Any] = getattr(model, attribute)
        finally:
            setattr(model, attribute, before)
        return made

    def _step(self, step: Callable[..., Any], mode: str) -> Callable[..., Any]:
        """The step of the model with a result that also contains the taps."""

        @functools.wraps(step)
        def capturing_step(*args: Any) -> Any:
            plan = self._plan
            assert plan is not None
            collector = Collector(
                plan, self._view, self._backend, self.origins, self._note, self._fault, self.on_weights
            )
            collector.guarded("labels", collector.batch, args[-1])
            with collecting(collector), self._backend.creating_at_once():
                returned = step(*args)
            self._absent[self._key] = collector.absent
            try:
                self._backend.check_step()
            except Exception as error:
                if self._backend.trace() is not None:
                    raise  # nothing has run
                self._fault("capture", error)
                return returned
            outputs = returned if self._backend.stateful else returned[0]
            collector.guarded("weights", collector.weights_ready)
            if mode != "predict":
                collector.guarded("metrics", collector.metrics, outputs)
            elif plan.may_take(TensorKind.CUSTOM):
                collector.guarded("predictions", collector.predictions, outputs)
            whole = {OUTPUTS: outputs, TAPS: collector.values}
            return whole if self._backend.stateful else (whole, returned[1])

        return capturing_step

    def _forget_old(self, mode: str) -> None:
        mine = [key for key in self._made if key[0] == mode]
        for key in mine[:-_KEPT]:
            del self._made[key]
            self._absent.pop(key, None)
