"""Sparse gradients (Embedding(sparse=True)): the tensors that are captured, and their names.

The row of "gradient/<parameter>" has the status "skipped" and the reason "sparse", because there is no dense
tensor. Two more tensors are captured:

    gradient/<parameter>/values    the rows that have a gradient, each once, with the norm, sum and largest
                                   magnitude of the dense gradient, without its zeros
    gradient/<parameter>/indices   the indices of these rows; captured for patterns and save_all

Rows that occur several times are summed in a copy. On a device the sum would wait for the device, so there is
only the row "skipped". Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import CaptureSpec, Plan, TensorSpec
from tdcore.hooks.pytorch.model.model_view import ModelView

__all__ = ["sparse_rows"]

_DENSE = {torch.strided, None}


def sparse_rows(
    plan: Plan, view: ModelView, positions: list[int], gradients: Sequence[Any]
) -> list[tuple[list[Any], CaptureSpec]]:
    """Return values and indices of the sparse gradients. positions: positions in the view's parameters."""
    if _DENSE.issuperset(map(getattr, gradients, repeat("layout"), repeat(None))):
        return []
    tensors: list[Any] = []
    specs: list[TensorSpec] = []
    for position, gradient in zip(positions, gradients, strict=True):
        if getattr(gradient, "layout", None) is not torch.sparse_coo or gradient.device.type != "cpu":
            continue
        name, _, origin = view.parameters[position]
        values = plan.spec(f"gradient/{name}/values", TensorKind.GRADIENT, origin)
        indices = plan.spec(f"gradient/{name}/indices", TensorKind.CUSTOM, origin)
        if values is None and indices is None:
            continue
        with torch.no_grad():
            whole = gradient.detach().coalesce()
        if values is not None:
            tensors.append(whole.values())
            specs.append(values)
        if indices is not None:
            tensors.append(whole.indices())
            specs.append(indices)
    return [(tensors, CaptureSpec(specs))] if tensors else []
