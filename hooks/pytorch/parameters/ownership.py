"""Ownership: parameters without an optimizer, and copies of their gradients.

Parameters without a known optimizer are updated by the script itself, or not at all (a frozen copy, an
average of the weights). tdcore cannot observe when the script uses and clears the gradient of such a
parameter. Therefore the gradient is copied at the end of a backward of a saved step.

Threads: look() and the notes in the training thread, backward_ended() in threads of autograd; one at a time.
Keeps copies of gradients until forget_backward().
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import Any

import torch
from torch import nn

from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.pytorch.parameters.optimizers import Optimizers, owned_by
from tdcore.hooks.pytorch.parameters.pending_step import is_zero
from tdcore.hooks.run_notes import ModelNotes

__all__ = ["Ownership"]

_REQUIRES_GRAD, _VERSION = attrgetter("requires_grad"), attrgetter("_version")
_FROZEN_LOOKS = 3  # number of saved steps after which a formerly trained parameter counts as frozen
_BY_HAND = (
    "no optimizer is known for {}: its gradients are recorded after the last backward of a step; later "
    "changes by the script (clipping, for example) are not recorded"
)


class Ownership:
    """Ownership of one model's parameters.

    Args:
        optimizers: The model's optimizers.
        model_notes: Notes about the model.
        note: Function that stores and logs a message once.
    """

    def __init__(self, optimizers: Optimizers, model_notes: ModelNotes, note: Callable[[str], None]) -> None:
        # Gradients, after the last backward, of parameters without an optimizer, by position.
        self.copies: dict[int, Any] = {}
        # The gradients after the last backward, by position, and their versions.
        self._gradients: dict[int, weakref.ref[Any]] = {}
        self.versions: dict[int, int] = {}
        self._unowned: frozenset[int] = frozenset()
        self._optimizers = optimizers
        self._model_notes = model_notes
        self._note_once = note
        self._question: tuple[Any, ...] | None = None
        self._trained: set[str] = set()  # names of parameters that have required gradients
        # The model, if all of its parameters required gradients at the last check.
        self._all_trained: ModelView | None = None
        self._frozen_looks: dict[str, int] = {}

    @property
    def any_frozen(self) -> bool:
        """Whether a parameter was frozen at the last check."""
        return bool(self._frozen_looks)

    def look(self, view: ModelView, parameters: list[nn.Parameter]) -> None:
        """Find optimizers before their first step, and parameters without one, in a saved training step."""
        trainable = list(map(_REQUIRES_GRAD, parameters))
        question = (view, trainable, self._optimizers.found_count)
        if question == self._question:
            return
        self._optimizers.assign_owners(parameters)
        self._question = (view, trainable, self._optimizers.found_count)
        alive = self._optimizers.alive()
        held = [list(map(id, owned_by(optimizer))) for _, optimizer in alive]
        owned = set().union(*held)
        self._unowned = frozenset(
            position
            for position, one in enumerate(parameters)
            if trainable[position] and id(one) not in owned
        )
        names = [view.parameters[position].name for position in sorted(self._unowned)]
        if alive:
            self._model_notes.set("not_owned", names)
        elif names:
            self._note_once(_BY_HAND.format(view.root_name))

    def backward_ended(self, order: Sequence[int], parameters: list[nn.Parameter]) -> None:
        """Store versions and copies at the end of a backward. order: positions that it reached."""
        positions = list(set(order))
        gradients: list[Any] = [parameters[position].grad for position in positions]
        present = [gradient is not None for gradient in gradients]
        if not all(present):
            positions, gradients = list(compress(positions, present)), list(compress(gradients, present))
        self._gradients.update(zip(positions, map(weakref.ref, gradients), strict=True))
        self.versions.update(zip(positions, map(_VERSION, gradients), strict=True))
        if self._unowned:
            with torch.no_grad():
                for position, gradient in zip(positions, gradients, strict=True):
                    if position in self._unowned and type(gradient) is torch.Tensor:
                        self.copies[position] = gradient.detach().clone()

    def was_cleared(self, position: int, gradient: Any) -> bool:
        """Whether the gradient was zeroed or replaced since its last backward.

        On a device every in-place change counts as zeroing, because reading the values waits for the device.
        """
        version = self.versions.get(position)
        if version is None:  # unknown
            return is_zero(gradient)
        if id(self._gradients[position]()) != id(gradient):
            return True
        changed = version != int(gradient._version)
        return changed and (gradient.device.type != "cpu" or is_zero(gradient))

    def forget_backward(self) -> None:
        """Release the copies and versions at the end of the step."""
        self.copies.clear()
        self._gradients.clear()
        self.versions.clear()

    def note_frozen(self, view: ModelView, trainable: list[bool]) -> None:
        """Note which parameters require gradients at the start of a training forward.

        A parameter that is frozen only for a few steps (Lightning's toggle_optimizer) does not count as
        frozen.
        """
        if all(trainable):
            if self._all_trained is not view:
                self._all_trained = view
                self._trained.update(parameter.name for parameter in view.parameters)
                self._frozen_looks.clear()
                self._model_notes.set("frozen", [])
            return
        self._all_trained = None
        names = [parameter.name for parameter in view.parameters]
        self._trained.update(compress(names, trainable))
        frozen = list(compress(names, map(not_, trainable)))
        looks = self._frozen_looks
        self._frozen_looks = {name: looks.get(name, 0) + 1 for name in frozen}
        self._note_names()

    def note_trainable(self, view: ModelView, positions: list[int], trainable: list[bool]) -> None:
        """Note which parameters of an optimizer require gradients when it steps."""
        for position in compress(positions, trainable):
            name = view.parameters[position].name
            self._trained.add(name)
            self._frozen_looks.pop(name, None)
        self._note_names()

    def _note_names(self) -> None:
        self._model_notes.set(
            "frozen",
            [
                name
                for name, looks in self._frozen_looks.items()
                if looks >= _FROZEN_LOOKS or name not in self._trained
            ],
        )
