"""UpdateSigns: whether the weights were updated since the gradients of a step. It decides where a step ends.

Optimizers report their updates. If a loop updates by hand, there is no report: the values of the variables
are compared, until it is certain that each tape with a gradient is followed by an update.
Threads: the training thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from tdcore.hooks.tensorflow.operations import plain_variable, read_variable

__all__ = ["UpdateSigns"]


class UpdateSigns:
    """Signs of updates in a training loop.

    Attributes:
        reported: An optimizer has reported an update, or will. Then there are no other updates.
    """

    def __init__(self) -> None:
        self.reported = False
        self._every_tape = False  # each tape with a gradient is followed by an update by hand
        self._updated = False
        self._gradients = 0  # tapes of the step that have computed a gradient
        self._before: list[tuple[weakref.ref[Any], Any]] = []  # variables, and their values

    def begin_step(self) -> None:
        """Called when a training step begins."""
        self._updated, self._gradients = False, 0
        self._before.clear()

    def gradient(self, variables: Iterable[Any]) -> None:
        """Called when a tape has computed gradients with respect to these variables."""
        self._gradients += 1
        if self.reported or self._every_tape or self._before:
            return
        for variable in map(plain_variable, variables):
            if hasattr(variable, "read_value"):
                self._before.append((weakref.ref(variable), read_variable(variable)))

    def report(self) -> None:
        """Called when an optimizer has updated weights."""
        self.reported = self._updated = True
        self._every_tape = False
        self._before.clear()

    def updated(self) -> bool:
        """Whether the weights were updated since the first gradient of the step."""
        if self._updated or self.reported or not self._gradients:
            return self._updated
        if not self._every_tape:
            self._updated = any(map(_has_changed, self._before))
            self._every_tape = self._updated and self._gradients == 1
            return self._updated
        return True


def _has_changed(before: tuple[weakref.ref[Any], Any]) -> bool:
    reference, value = before
    variable = reference()
    return variable is not None and not np.array_equal(np.asarray(read_variable(variable)), np.asarray(value))
