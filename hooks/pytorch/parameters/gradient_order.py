"""GradientOrder: the order in which the gradients of a saved step became ready in backward.

Gradients are captured together when the optimizer is about to step, because they are final only then. From
the start of a saved training step to its end, a tensor hook on each parameter appends the parameter's
position to `order`. The column `seq` of the run then has the order of the backward, so that the first bad
gradient can be found. If several backwards reach a parameter, the last backward counts, because it made the
gradient final. Parameters that no backward reached are last, in the order of parameters. With FSDP2 the hooks
are on the unsharded parameters, because backward computes their gradients (ModelView.in_backward). FSDP1
reduces gradients elsewhere, so its parameters keep their order.

When a backward ends, the gradients that it reached are checked once. Their versions are stored, so that a
gradient that was zeroed in place before an optimizer used it is not captured as a gradient. Gradients of
parameters without a known optimizer are copied, because tdcore cannot observe when a script uses and clears
them. The callback at the end of a backward is private to torch (`queue_callback`). Without it, and with
compiled autograd, there are no versions and no copies.

The hooks are stored directly in `Tensor._backward_hooks`, like those of register_hook(). Setting this
attribute to None removes the hooks from autograd completely, while after handle.remove() every later backward
would still call Python for each parameter. Hooks of other code on the same tensor are not changed.

Threads: start and stop in the training thread, hooks in threads of autograd. Keeps no parameter.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.pytorch.compile.operator import never_trace, skip_frames
from tdcore.hooks.pytorch.compile.tracing import graph_task
from tdcore.hooks.pytorch.model.pickling import InertInCopies

__all__ = ["BackwardSentinel", "GradientOrder", "at_end_of_backward", "compiled_backward"]

_HOOKS = attrgetter("_backward_hooks")
_NAMED, _NOTHING = repeat("_backward_hooks"), repeat(None)
_call: Callable[[Any], Any] = weakref.ref.__call__
_queue: Callable[[Callable[[], None]], None] | None = getattr(
    getattr(torch.autograd.Variable, "_execution_engine", None), "queue_callback", None
)


def at_end_of_backward(call: Callable[[], None]) -> bool:
    """Call `call` once when the running backward has ended, after the reductions of data-parallel wrappers.

    Returns False if this torch has no such callback.
    """
    if _queue is None or graph_task is None or compiled_backward():
        return False
    _queue(partial(_queue, call))  # wrappers queue their callbacks in between
    return True


def compiled_backward() -> bool:
    """Whether compiled autograd runs this backward."""
    compiler = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(compiler, "in_compiled_autograd_region", False))


class GradientReadyHook(InertInCopies):
    """Tensor hook that records that the gradient of one parameter is ready."""

    __slots__ = ("order", "owner", "position")
    __torch_unserializable__ = True  # prevents torch's warning if a model is saved

    def __init__(self, owner: GradientOrder, position: int) -> None:
        self.owner = weakref.ref(owner)
        self.order = owner.order
        self.position = position

    def __call__(self, gradient: object) -> None:
        """Note that the gradient is ready, as a tensor hook."""
        order = self.order
        order.append(self.position)
        owner = self.owner()
        if owner is not None and not owner.awaits_end:
            try:
                owner.expect_end()
            except Exception as error:
                owner.failed(error)


skip_frames(GradientReadyHook.__call__)


class GradientOrder:
    """The order of one model's gradients, as positions in its list of parameters.

    Attributes:
        active: Whether parameters have hooks.
        order: Positions of the gradients that became ready, in order.
        ended: Called at the end of a backward with the positions that it reached.
    """

    def __init__(self, fault: FaultHandler) -> None:
        self._fault = fault
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self.active = False
        self.order: list[int] = []
        self.awaits_end = False  # the callback of the running backward is queued, or missing in torch
        self.ended: weakref.WeakMethod[Callable[[list[int]], None]] | None = None
        self._ended_at = 0  # number of ready gradients when the last backward ended
        self._dicts: list[OrderedDict[int, Any]] = []
        self._positions: list[int] = []  # the positions of _dicts
        self._watched: list[weakref.ref[torch.Tensor]] = []
        self._off = False
        self._known: tuple[Sequence[int], list[int], tuple[int, ...]] | None = None

    def start(self, parameters: Sequence[Any], positions: list[int], *, late: bool = False) -> None:
        """Attach the hooks when a saved step begins.

        Args:
            parameters: The model's parameters.
            positions: Positions of the gradients to observe.
            late: Whether some parameters are None.
        """
        if self.active:
            self.stop()
        if self._off:
            return
        self.active = True
        if late:
            positions = [position for position in positions if parameters[position] is not None]
        if self._positions != positions:
            self._positions = positions
            self._dicts = [self._hooks_of(position) for position in positions]
        chosen = list(map(parameters.__getitem__, positions))
        self._watched = list(map(weakref.ref, chosen))
        if not any(map(_HOOKS, chosen)):
            list(map(setattr, chosen, _NAMED, self._dicts))
            return
        for parameter, own in zip(chosen, self._dicts, strict=True):
            hooks = parameter._backward_hooks
            if not hooks:
                parameter._backward_hooks = own
            else:
                hooks[self._key] = own[self._key]

    def stop(self) -> None:
        """Remove the hooks and clear the order."""
        self.active = self.awaits_end = False
        self._ended_at = 0
        self.order.clear()
        watched = list(map(_call, self._watched))
        self._watched = []
        found = list(map(getattr, watched, _NAMED, _NOTHING))
        if found == self._dicts and sum(map(len, found)) == len(found):  # there are no other hooks
            list(map(setattr, watched, _NAMED, _NOTHING))
            return
        for parameter, hooks in zip(watched, found, strict=True):
            if hooks is not None and hooks.pop(self._key, None) is not None and not hooks:
                parameter._backward_hooks = None
        self._positions = []  # another hook uses one of these dictionaries now

    def switch_off(self) -> None:
        """Stop the recording."""
        self._off = True
        self.stop()

    def expect_end(self) -> None:
        """Queue the callback when the first gradient of a backward is ready."""
        self.awaits_end = True  # also set if torch has no callback, so that this runs once per step
        at_end_of_backward(self._end)

    def failed(self, error: Exception) -> None:
        """Report an error of the hook within a backward."""
        fault = self._fault()
        if fault is not None:
            fault("gradient order", error)

    def _end(self) -> None:
        self.awaits_end = False
        came, self._ended_at = self.order[self._ended_at :], len(self.order)
        try:
            ended = self.ended() if self.ended is not None else None
            if ended is not None and self.active:
                ended(came)
        except Exception as error:
            self.failed(error)

    def sorted(self, positions: Sequence[int]) -> tuple[int, ...] | None:
        """Indices into `positions` in the order of ready gradients; None if no order was recorded.

        The last result is stored, because most steps have the same order.
        """
        order = self.order
        if not order:
            return None
        known = self._known
        if known is None or known[0] != positions or known[1] != order:
            turns = {position: turn for turn, position in enumerate(order)}  # the last turn counts
            ranks = [turns.get(position, len(order)) for position in positions]
            places = tuple(sorted(range(len(ranks)), key=ranks.__getitem__))
            known = self._known = (list(positions), list(order), places)
        return known[2]

    def _hooks_of(self, position: int) -> OrderedDict[int, Any]:
        hooks: OrderedDict[int, Any] = OrderedDict()
        hooks[self._key] = GradientReadyHook(self, position)
        return hooks


class SentinelHook(InertInCopies):
    """Tensor hook that records that a backward has reached the model."""

    __slots__ = ("sentinel",)
    __torch_unserializable__ = True

    def __init__(self, sentinel: BackwardSentinel) -> None:
        self.sentinel = weakref.ref(sentinel)

    def __call__(self, gradient: object) -> None:
        """Note that a backward has reached the model, as a tensor hook."""
        sentinel = self.sentinel()
        if sentinel is None:
            return
        sentinel.seen = sentinel.ever = True
        if not sentinel.awaits_end:
            try:
                sentinel.awaits_end = at_end_of_backward(sentinel.end_backward)
            except Exception as error:
                sentinel.failed(error)


never_trace(SentinelHook.__call__)
skip_frames(SentinelHook.__call__)


class BackwardSentinel:
    """Detector, in every step, of a backward that reaches a model.

    The detection costs one short Python call per parameter and backward, so it is used only for models
    without a known optimizer.

    Attributes:
        seen: Whether a backward has reached the model since this was last set to False.
        ever: Whether a backward has ever reached the model.
        ended: Called at the end of a backward that has reached the model.
    """

    def __init__(self, fault: FaultHandler) -> None:
        self._fault = fault
        self.seen = self.ever = self.awaits_end = False
        self.ended: weakref.WeakMethod[Callable[[], None]] | None = None
        self._key = RemovableHandle(OrderedDict()).id
        self._hook = SentinelHook(self)
        self._carriers: list[weakref.ref[torch.Tensor]] = []

    @property
    def on(self) -> bool:
        """Whether parameters have its hooks."""
        return bool(self._carriers)

    def end_backward(self) -> None:
        """Handle the end of a backward."""
        self.awaits_end = False
        try:
            ended = self.ended() if self.ended is not None else None
            if ended is not None:
                ended()
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Report an error of the hook within a backward."""
        fault = self._fault()
        if fault is not None:
            fault("steps", error)

    def put_on(self, parameters: Sequence[torch.Tensor | None]) -> None:
        """Attach the hooks."""
        self.take_off()
        for parameter in parameters:
            if parameter is None or not parameter.requires_grad or not parameter.is_leaf:
                continue
            if parameter._backward_hooks is None:
                parameter._backward_hooks = OrderedDict()
            parameter._backward_hooks[self._key] = self._hook
            self._carriers.append(weakref.ref(parameter))

    def take_off(self) -> None:
        """Remove the hooks."""
        for reference in self._carriers:
            parameter = reference()
            hooks = parameter._backward_hooks if parameter is not None else None
            if parameter is not None and hooks is not None:
                hooks.pop(self._key, None)
                if not hooks:
                    parameter._backward_hooks = None
        self._carriers.clear()
        self.seen = False
