"""Recorder: the only path of tensors from a hook to the ring.

The recorder refers to no framework and no hook, so that all parts of a hook can share it. Threads: any. When
capture() returns, the tensors are copied, reduced and committed; no reference is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tdcore.hooks.clock import CurrentStep, StepId
from tdcore.hooks.plan import CaptureSpec

__all__ = ["Localize", "Product", "Recorder", "array_product", "as_array"]

Localize = Callable[
    [list[Any], CaptureSpec, tuple[int, int, int, int]], tuple[list[Any], CaptureSpec]
]  # and when
Product = Callable[[Any, str], Any]  # (tensor, "prod" or "abs_prod") -> the product of all elements


class Recorder:
    """Writer of tensors to a ring, with the number of the current step or of an earlier step.

    Attributes:
        now: The current step.
        native: Ring.capture(). Module hooks call it directly, for captures in the current step.
        localize: Replaces tensors that are sharded over workers by the worker's own shards; None if the
            framework has no such tensors.
        spent_ns: Time of training threads inside the hook in steps that save.
        first_spent_ns: The same at the start of the second saved step; 0 before.
    """

    __slots__ = ("_product", "first_spent_ns", "localize", "native", "now", "spent_ns")

    def __init__(self, ring: Any, now: CurrentStep, product: Product) -> None:
        self.now = now
        self.spent_ns = 0  # parts of the hook add to it
        self.first_spent_ns = 0
        self.native: Callable[..., int] = ring.capture
        self.localize: Localize | None = None
        self._product = product

    def capture(
        self, tensors: list[Any], capture_spec: CaptureSpec, step_id: StepId | None = None, call: int = 0
    ) -> bool:
        """Capture tensors in one native call.

        Args:
            tensors: The tensors; None for an absent tensor.
            capture_spec: Name ids and flags of the tensors.
            step_id: The step of the tensors; None: the current step.
            call: Number of earlier captures of these names in the step.

        Returns:
            Whether the ring has stored all tensors. The ring counts each dropped tensor with a reason.
        """
        step, mode, mode_step = step_id or self.now.step_id
        if self.localize is not None:
            tensors, capture_spec = self.localize(tensors, capture_spec, (step, mode, mode_step, call))
            if not tensors:
                return True
        not_kept = self.native(tensors, capture_spec.ids, capture_spec.flags, step, mode, mode_step, call)
        for position, product, single in capture_spec.products:
            if tensors[position] is not None:
                value = self._product(tensors[position], product)
                self.native([value], single.ids, single.flags, step, mode, mode_step, call)
        return not not_kept


def array_product(tensor: Any, product: str) -> Any:
    """The product of all elements of a value that NumPy can read, as float64."""
    values = np.asarray(tensor, dtype=np.float64)
    return np.prod(np.abs(values) if product == "abs_prod" else values)


def as_array(value: Any) -> Any:
    """A tensor or array unchanged, on any device; a number as a float64 array without dimensions."""
    if hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
        return value
    return np.asarray(value, dtype=None if hasattr(value, "dtype") else np.float64)
