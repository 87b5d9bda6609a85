"""Sparse gradients (Embedding(sparse=True)): what of them is captured, and under which names.

The row of "gradient/<parameter>" says "skipped", reason "sparse": there is no dense tensor, and none is made
up. Beside it stands what there is:

    gradient/<parameter>/values    the rows that have a gradient, each once: same norm, sum and extremes of
                                   magnitude as the dense gradient, without its zeros
    gradient/<parameter>/indices   which rows these are; for patterns, and save_all

Rows that occur several times are added up, in memory of our own. On a device that would wait for it, so there
the row "skipped" is all. Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import torch

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch.model import ModelView

__all__ = ["sparse_rows"]

_DENSE = {torch.strided, None}


def sparse_rows(
    plan: Plan, view: ModelView, positions: list[int], gradients: Sequence[Any]
) -> list[tuple[list[Any], Batch]]:
    """What is captured beside the sparse ones of the gradients. positions: in the view's parameters."""
    if _DENSE.issuperset(map(getattr, gradients, repeat("layout"), repeat(None))):
        return []
    tensors: list[Any] = []
    wants: list[Want] = []
    for position, gradient in zip(positions, gradients, strict=True):
        if getattr(gradient, "layout", None) is not torch.sparse_coo or gradient.device.type != "cpu":
            continue
        name, _, origin = view.parameters[position]
        values = plan.want(f"gradient/{name}/values", TensorKind.GRADIENT, origin)
        indices = plan.want(f"gradient/{name}/indices", TensorKind.CUSTOM, origin)
        if values is None and indices is None:
            continue
        with torch.no_grad():
            whole = gradient.detach().coalesce()
        if values is not None:
            tensors.append(whole.values())
            wants.append(values)
        if indices is not None:
            tensors.append(whole.indices())
            wants.append(indices)
    return [(tensors, Batch(wants))] if tensors else []
