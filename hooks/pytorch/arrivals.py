"""Arrivals: in which order the gradients of a saved step became ready in backward.

Gradients are captured together where the optimizer is about to step: only there are they final. Which of them
was there first is told by a tensor hook on each parameter that notes its turn and nothing else; it is on from
the forward of a saved step to its payment. `seq` then follows the backward, so that "which went bad first"
has an answer among gradients too. A parameter that several backwards reach counts by the last, which made its
gradient final; those that none reached come behind, in the order of parameters. FSDP reduces gradients
elsewhere, so its parameters stay in their order.

The hooks go straight into `Tensor._backward_hooks`, where register_hook() would put them: setting that to
None again takes them out of autograd altogether, while after handle.remove() every later backward would still
call into Python for each parameter. Hooks of others on the same tensor stay as they are.

Threads: start and stop in the training thread, hooks in those of autograd. Keeps no parameter, no gradient.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from tdcore.hooks.pytorch.operator import skip_frames
from tdcore.hooks.pytorch.tap import InertInCopies

__all__ = ["Arrivals"]

_HOOKS = attrgetter("_backward_hooks")
_call: Callable[[Any], Any] = weakref.ref.__call__
_is_some = partial(is_not, None)


class Arrival(InertInCopies):
    """A tensor hook: notes that the gradient of one parameter has come."""

    __slots__ = ("order", "position")
    __torch_unserializable__ = True  # spares the user torch's warning when a model is saved meanwhile

    def __init__(self, order: list[int], position: int) -> None:
        self.order = order
        self.position = position

    def __call__(self, gradient: object) -> None:
        """As a tensor hook."""
        self.order.append(self.position)


skip_frames(Arrival.__call__)


class Arrivals:
    """Notes the turns of one model's parameters, by their positions in its list of parameters."""

    def __init__(self) -> None:
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self._order: list[int] = []
        self._dicts: list[OrderedDict[int, Any]] = []
        self._positions: list[int] = []  # what _dicts were made for
        self._watched: list[weakref.ref[nn.Parameter]] = []
        self._off = False
        self._known: tuple[Sequence[int], list[int], tuple[int, ...]] | None = None

    def start(self, parameters: Sequence[nn.Parameter], positions: list[int]) -> None:
        """A forward begins in a saved step. positions: those whose gradients are wanted."""
        self.stop()
        if self._off:
            return
        if self._positions != positions:
            self._positions = positions
            self._dicts = [self._hooks_of(position) for position in positions]
        chosen = list(map(parameters.__getitem__, positions))
        self._watched = list(map(weakref.ref, chosen))
        if list(map(_HOOKS, chosen)).count(None) == len(chosen):
            list(map(setattr, chosen, repeat("_backward_hooks"), self._dicts))
            return
        for parameter, own in zip(chosen, self._dicts, strict=True):
            hooks = parameter._backward_hooks
            if hooks is None:
                parameter._backward_hooks = own
            else:
                hooks[self._key] = own[self._key]

    def stop(self) -> None:
        """Takes the hooks off and forgets the order."""
        self._order.clear()
        if not self._watched:
            return
        alive = list(filter(_is_some, map(_call, self._watched)))
        self._watched = []
        found = list(map(_HOOKS, alive))
        if len(found) == len(self._dicts) == sum(map(len, self._dicts)) and all(map(is_, found, self._dicts)):
            list(map(setattr, alive, repeat("_backward_hooks"), repeat(None)))
            return
        for parameter, hooks in zip(alive, found, strict=True):
            if hooks is not None and hooks.pop(self._key, None) is not None and not hooks:
                parameter._backward_hooks = None
        self._positions = []  # a dictionary of ours that another hook was put in is that one's now

    def switch_off(self) -> None:
        """Notes nothing from now on."""
        self._off = True
        self.stop()

    def none_came(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether no backward has run since start(), as far as that is known: all that train are watched.

        Where none ever came (FSDP, the first step that is saved) it is not known.
        """
        if self._order or not self._watched or self._known is None:
            return False
        return len(self._watched) == sum(parameter.requires_grad for parameter in parameters)

    def sorted(self, positions: Sequence[int]) -> tuple[int, ...] | None:
        """Where in `positions` the first to come is, the second, ...; None: as they are, nothing was noted.

        Remembers the last answer: most steps ask the same again.
        """
        order = self._order
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
        return OrderedDict({self._key: Arrival(self._order, position)})
