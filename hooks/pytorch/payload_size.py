"""How large a saved step of a model will be, so that its first capture finds the ring's memory taken.

An estimate from the names that the parameters will have; nothing depends on it but time. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.collection import Collection
from tdcore.config.reduction_config import ReductionConfig
from tdcore.format.layout import TensorKind
from tdcore.hooks.pytorch.sharded import part_of

__all__ = ["expected_bytes"]

_OF_MODULES = (TensorKind.OUTPUT, TensorKind.INPUT, TensorKind.OUTPUT_GRADIENT)


def expected_bytes(
    root: nn.Module, name: str, collections: Iterable[Collection], default: ReductionConfig | None
) -> int:
    """Bytes of the values of one saved step of the model.

    name: the one that its tensors begin with. default: for collections without a reduction_config.
    Activations are not known before the first forward; where any are saved, they count as much as the
    parameters.
    """
    whole = [each for each in collections if _saves_values(each.reduction_config or default)]
    if not whole:
        return 0
    total = largest = 0
    for parameter_name, parameter in root.named_parameters():
        size = _host_bytes(parameter)
        largest += size
        full = f"{name}_{parameter_name}"
        kind = TensorKind.BIAS if parameter_name.endswith("bias") else TensorKind.WEIGHT
        total += size * any(each.belongs(full, kind, "") for each in whole)
        total += size * any(each.belongs(f"gradient/{full}", TensorKind.GRADIENT, "") for each in whole)
    of_modules = [each for each in whole if each.name != CollectionKeys.LOSSES]  # which are small
    activations = sum(any(each.may_take(kind) for each in of_modules) for kind in _OF_MODULES)
    return total + largest * activations


def _host_bytes(parameter: nn.Parameter) -> int:
    """Of what this process holds in host memory; 0 where a parameter has no storage yet."""
    try:
        tensor = part_of(parameter).tensor
        return int(tensor.nbytes) if tensor.device.type == "cpu" else 0
    except Exception:  # a lazy parameter, or another without a size
        return 0


def _saves_values(reduction: ReductionConfig | None) -> bool:
    return reduction is None or reduction.save_raw_tensor
