"""Modules that are in eval mode while a training step is saved, for the note "eval_in_training".

Dropout does nothing in eval mode, and a normalisation uses the statistics of earlier data: both are a common
cause of trainings that overfit or do not learn. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

__all__ = ["EvalModules"]

_HEADING = "eval_in_training"
_MOST = 100  # modules that are noted
ALWAYS, SOMETIMES = "always", "at some steps"


class EvalModules:
    """Finds such modules in one model.

    Args:
        notes: The run's notes. The note maps the path of each module (of the model: its class name) to
            "always" or "at some steps".
    """

    def __init__(self, notes: MutableMapping[str, Any]) -> None:
        self._notes = notes
        self._looks = 0
        self._root_states: set[bool] = set()

    def look(self, root: nn.Module, name: str) -> None:
        """Look at a model as a saved training step begins: at its own mode always, at its modules seldom.

        Args:
            root: The model.
            name: Its name in the note.
        """
        self.look_at_root(name, training=root.training)
        if not root.training:
            return
        self._looks += 1
        if self._looks & (self._looks - 1) == 0:  # the first look, the second, the fourth, and so on
            found = dict.fromkeys(_in_eval_mode(root), ALWAYS if self._looks == 1 else SOMETIMES)
            if found or self._notes.get(_HEADING):
                self._compare(root, found, name)

    def look_at_root(self, name: str, *, training: bool) -> None:
        """Note that the model was in eval mode in a training step, always or sometimes."""
        if training in self._root_states:
            return
        self._root_states.add(training)
        if False in self._root_states:
            self._note({name: SOMETIMES if len(self._root_states) > 1 else ALWAYS})

    def _compare(self, root: nn.Module, found: dict[str, str], name: str) -> None:
        noted = self._notes.get(_HEADING, {})
        changed = {path: state for path, state in found.items() if path not in noted}
        paths = dict(root.named_modules())
        for path, state in noted.items():
            if path != name and path in paths and path not in found and state == ALWAYS:
                changed[path] = SOMETIMES
        if changed:
            self._note(changed)

    def _note(self, found: dict[str, str]) -> None:
        noted = {**self._notes.get(_HEADING, {}), **found}
        self._notes[_HEADING] = dict(list(noted.items())[:_MOST])


def _in_eval_mode(root: nn.Module) -> Iterator[str]:
    """Paths of modules whose forward differs in eval mode, and which are in it."""
    for path, module in root.named_modules():
        if not module.training and isinstance(module, (_NormBase, _DropoutNd)):
            yield path
