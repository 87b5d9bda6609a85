"""Scalars and tensors that a script passes to its hook.

    hook.save_scalar("accuracy", 0.9)           # "scalar/accuracy", at every call
    hook.save_tensor("mask", mask, "masks")     # if the collection "masks" is saved in this step

Threads: the training thread. Errors of tdcore do not leave these methods (`_fault`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.hooks.manual_values import ManualValues
from tdcore.hooks.warner import Warner

__all__ = ["ScriptValues"]

_NO_METRICS = (
    "save_scalar: sm_metric and timestamp have no effect: tdcore sends no metrics to a service. The numbers "
    "are in the run, with the time of the call"
)


class ScriptValues:
    """The part of a hook that records values of the script."""

    _fault: Callable[[str, Exception], None]
    _off: bool
    _unmarked: bool  # something was captured, or may be, since the last mark
    _values: ManualValues
    _warn: Warner

    def save_scalar(
        self, name: str, value: Any, sm_metric: bool = False, timestamp: float | None = None
    ) -> None:
        """Record a number as "scalar/<name>".

        The number is recorded at every call, unless the collection "scalars" has a save_config.

        Args:
            name: Name of the scalar.
            value: A number, or a tensor or array with one element.
            sm_metric: Accepted because smdebug has this argument. tdcore sends no metrics to a service; if
                the argument is set, a warning is logged once, and the number is recorded.
            timestamp: Accepted in the same way. The recorded time is the time of the call.
        """
        if sm_metric or timestamp is not None:
            self._warn(_NO_METRICS)
        self._save("save_scalar", self._values.scalar, f"scalar/{name}", value)

    def save_tensor(
        self,
        tensor_name: str,
        tensor_value: Any,
        collections_to_write: str | Iterable[str] = CollectionKeys.DEFAULT,
    ) -> None:
        """Record a tensor of the script, if one of the collections is saved in the current step.

        Args:
            tensor_name: Name of the tensor.
            tensor_value: A tensor, array or number.
            collections_to_write: One or more names of collections. A collection that is named here is saved;
                it need not be in include_collections.
        """
        self._save("save_tensor", self._values.tensor, tensor_name, tensor_value, collections_to_write)

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Record a functional loss as "<tensor_name>_output_0", if its collection is saved in this step.

        A name that contains "loss" belongs to "losses". Any other name needs a collection that matches it.
        """
        self._save("record_tensor_value", self._values.functional_loss, tensor_name, tensor_value)

    def _save(self, part: str, save: Callable[..., bool], *value: Any) -> None:
        if self._off:
            return
        try:
            if save(*value):
                self._unmarked = True
        except Exception as error:
            self._fault(part, error)
