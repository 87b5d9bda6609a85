"""Modules that are in eval mode while a training step is saved, for the note "eval_in_training".

In eval mode dropout does nothing, and a normalization uses the statistics of earlier data. Both are common
causes of trainings that overfit or do not learn. Threads: the training thread.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.run_notes import ModelNotes

__all__ = ["EvalModules"]

_HEADING = "eval_in_training"
_MOST = 100  # maximum number of noted modules of one model
_ALWAYS, _SOMETIMES = "always", "at some steps"


class EvalModules:
    """Detection of modules in eval mode in one model.

    Args:
        notes: The run's notes. The note maps the name of each module, as in the names of its outputs, to
            "always" or "at some steps".
    """

    def __init__(self, notes: dict[str, Any]) -> None:
        self._notes = ModelNotes(notes)
        self._looks = 0
        self._root_states: set[bool] = set()
        self._root: dict[str, str] = {}
        self._modules: dict[str, str] = {}

    def look(self, root: nn.Module, view: ModelView) -> None:
        """Check a model at the start of a saved training step: its root always, its other modules rarely."""
        self.look_at_root(view, training=root.training)
        if not root.training:
            return
        self._looks += 1
        if self._looks & (self._looks - 1) == 0:  # checks 1, 2, 4, 8, and so on
            self._look_at_modules(view)

    def look_at_root(self, view: ModelView, *, training: bool) -> None:
        """Note that the model was in eval mode in a training step, always or sometimes."""
        if training in self._root_states:
            return
        self._root_states.add(training)
        if False in self._root_states:
            self._root = {view.root_name: _SOMETIMES if len(self._root_states) > 1 else _ALWAYS}
            self._notes.set(_HEADING, self._root | self._modules)

    def _look_at_modules(self, view: ModelView) -> None:
        found = set(_in_eval_mode(view))
        for name in self._modules:
            if name not in found:
                self._modules[name] = _SOMETIMES
        for name in sorted(found - self._modules.keys())[: _MOST - len(self._modules)]:
            self._modules[name] = _ALWAYS if self._looks == 1 else _SOMETIMES
        self._notes.set(_HEADING, self._root | self._modules)


def _in_eval_mode(view: ModelView) -> list[str]:
    """Names of modules that are in eval mode and whose forward differs in eval mode."""
    found = []
    for one in view.modules:
        module = one.module()
        if isinstance(module, (_NormBase, _DropoutNd)) and not module.training:
            found.append(one.name)
    return found
