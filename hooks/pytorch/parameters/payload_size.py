"""Estimate of the size of a saved step, with which the ring allocates its memory before the first capture.

The estimate uses the names that the parameters will have. Only speed depends on the estimate. Threads: any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import nn

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.collection import Collection
from tdcore.config.reduction_config import ReductionConfig
from tdcore.format.layout import TensorKind
from tdcore.hooks.pytorch.distributed.sharding import local_shard_of
from tdcore.session.ring_sizes import HOST

__all__ = ["expected_bytes"]

_OF_MODULES = (TensorKind.OUTPUT, TensorKind.INPUT, TensorKind.OUTPUT_GRADIENT)


def expected_bytes(
    root: nn.Module, name: str, collections: Iterable[Collection], default: ReductionConfig | None
) -> dict[int, int]:
    """Return the size of the values of one saved step of the model, in bytes, by device number or HOST.

    The size of activations is unknown before the first forward. If activations are saved, they are assumed to
    be as large as the parameters.

    Args:
        root: The model.
        name: Prefix of the names of the model's tensors.
        collections: The saved collections.
        default: The reduction_config of collections without one.
    """
    whole = [each for each in collections if _saves_values(each.reduction_config or default)]
    if not whole:
        return {}
    of_modules = [each for each in whole if each.name != CollectionKeys.LOSSES]  # losses are small
    activations = sum(any(each.may_take(kind) for each in of_modules) for kind in _OF_MODULES)
    total: Counter[int] = Counter()
    for parameter_name, parameter in root.named_parameters():
        full = f"{name}_{parameter_name}"
        kind = TensorKind.BIAS if parameter_name.endswith("bias") else TensorKind.WEIGHT
        times = activations
        times += any(each.belongs(full, kind, "") for each in whole)
        times += any(each.belongs(f"gradient/{full}", TensorKind.GRADIENT, "") for each in whole)
        device, size = _place_and_bytes(parameter)
        total[device] += size * times
    return dict(total)


def _place_and_bytes(parameter: nn.Parameter) -> tuple[int, int]:
    """Place and size in bytes of this process's part of a parameter; (HOST, 0) if it cannot be captured."""
    try:
        tensor = local_shard_of(parameter).tensor
        device = tensor.device
        if device.type == "cuda":
            return int(device.index), int(tensor.nbytes)
        return HOST, int(tensor.nbytes) if device.type == "cpu" else 0
    except Exception:  # a lazy parameter, or another parameter without a size
        return HOST, 0


def _saves_values(reduction: ReductionConfig | None) -> bool:
    return reduction is None or reduction.save_raw_tensor
