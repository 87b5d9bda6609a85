"""Arrivals: in which order the gradients of a saved step became ready in backward.

Gradients are captured together where the optimizer is about to step: only there are they final. Which of them
was there first is told by a tensor hook on each parameter that notes its turn and nothing else; it is on from
the forward of a saved step to its payment. `seq` then follows the backward, so that "which went bad first"
has an answer among gradients too. A parameter that several backwards reach counts by the last, which made its
gradient final; those that none reached come behind, in the order of parameters. Of FSDP2's parameters the
whole ones are watched, which backward gives its gradients to (ModelView.in_backward); the older FSDP reduces
gradients elsewhere, so its parameters stay in their order.

The hooks go straight into `Tensor._backward_hooks`, where register_hook() would put them: setting that to
None again takes them out of autograd altogether, while after handle.remove() every later backward would still
call into Python for each parameter. Hooks of others on the same tensor stay as they are.

Threads: start and stop in the training thread, hooks in those of autograd. Keeps no parameter, no gradient.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from tdcore.hooks.pytorch.operator import skip_frames
from tdcore.hooks.pytorch.tap import InertInCopies

__all__ = ["Arrivals"]

_HOOKS = attrgetter("_backward_hooks")
_NAMED, _NOTHING = repeat("_backward_hooks"), repeat(None)
_call: Callable[[Any], Any] = weakref.ref.__call__


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
    """Notes the turns of one model's parameters, by their positions in its list of parameters.

    noting: parameters carry hooks. order: of those whose gradients came; empty when none did.
    """

    def __init__(self) -> None:
        self._key = RemovableHandle(OrderedDict()).id  # unique among all hooks of the process
        self.noting = False
        self.order: list[int] = []
        self._dicts: list[OrderedDict[int, Any]] = []
        self._positions: list[int] = []  # what _dicts were made for
        self._watched: list[weakref.ref[torch.Tensor]] = []
        self._off = False
        self._known: tuple[Sequence[int], list[int], tuple[int, ...]] | None = None

    def start(self, parameters: Sequence[Any], positions: list[int], *, late: bool = False) -> None:
        """A forward begins in a saved step. positions: whose gradients are wanted. late: some are None."""
        if self.noting:
            self.stop()
        if self._off:
            return
        self.noting = True
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
        """Takes the hooks off and forgets the order."""
        self.noting = False
        self.order.clear()
        watched = list(map(_call, self._watched))
        self._watched = []
        found = list(map(getattr, watched, _NAMED, _NOTHING))
        if found == self._dicts and sum(map(len, found)) == len(found):  # nobody else's hook is there
            list(map(setattr, watched, _NAMED, _NOTHING))
            return
        for parameter, hooks in zip(watched, found, strict=True):
            if hooks is not None and hooks.pop(self._key, None) is not None and not hooks:
                parameter._backward_hooks = None
        self._positions = []  # a dictionary of ours that another hook was put in is that one's now

    def switch_off(self) -> None:
        """Notes nothing from now on."""
        self._off = True
        self.stop()

    def none_came(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether no backward has run since start(), as far as that is known: all that train are watched.

        Where none ever came (FSDP, the first step that is saved) it is not known.
        """
        if self.order or not self._watched or self._known is None:
            return False
        return len(self._watched) == sum(parameter.requires_grad for parameter in parameters)

    def sorted(self, positions: Sequence[int]) -> tuple[int, ...] | None:
        """Where in `positions` the first to come is, the second, ...; None: as they are, nothing was noted.

        Remembers the last answer: most steps ask the same again.
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
        return OrderedDict({self._key: Arrival(self.order, position)})
