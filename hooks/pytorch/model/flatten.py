"""The tensors in a module's input or output, and the suffixes of their names.

Elements of tuples and lists are numbered in order through all levels. An element that is not a tensor
also has a number, so that names do not change if it is None. Elements of mappings and dataclasses are named
by their key: "Net_output_logits", "Net_output_hidden.0". A ragged tensor (torch.nested) has two names:
"Net_output_0.values" and "Net_output_0.offsets" (".sizes" if the layout is not jagged).

Only the first 65,536 parts are captured. All other parts share one row "Net_output_more", with the status
"skipped" and no bytes. Lists of numbers and strings cost almost nothing.
Threads: pure functions of their arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["flatten_tensors"]

_MAX_DEPTH = 8
_MAX_PARTS = 1 << 16
_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})


def flatten_tensors(value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in an output or input, each with the suffix of its name."""
    if isinstance(value, torch.Tensor):
        yield from _parts("0", value)
        return
    budget = _Budget()
    yield from _flatten(value, "", budget, _MAX_DEPTH)
    if budget.parts <= 0:
        yield "more", torch.empty(0, device="meta")


class _Budget:
    """State of one call.

    Attributes:
        number: Number of the next element without a key.
        parts: Number of parts that may still be visited.
    """

    __slots__ = ("number", "parts")

    def __init__(self) -> None:
        self.number = 0
        self.parts = _MAX_PARTS


def _flatten(value: object, path: str, budget: _Budget, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, (tuple, list, Mapping)) or dataclasses.is_dataclass(value):
        if depth > 0 and not _is_plain(value, path, budget):
            for key, item in _items(value):
                if budget.parts <= 0:
                    return
                suffix = f"{path}.{key}" if path else ("" if isinstance(key, int) else key)
                yield from _flatten(item, suffix, budget, depth - 1)
        return
    suffix = path or str(budget.number)
    if not path:
        budget.number += 1
    budget.parts -= 1
    if isinstance(value, torch.Tensor):
        yield from _parts(suffix, value)


def _is_plain(value: Any, path: str, budget: _Budget) -> bool:
    """Whether a value contains only numbers and strings, which are skipped whatever their number."""
    if isinstance(value, Mapping):
        return _PLAIN.issuperset(map(type, value.values()))
    if not isinstance(value, (tuple, list)) or not _PLAIN.issuperset(map(type, value)):
        return False
    if not path:
        budget.number += len(value)
    return True


def _parts(suffix: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return the named parts of a tensor. A ragged tensor has flat values, and offsets or sizes."""
    if not tensor.is_nested:
        return [(suffix, tensor)]
    whole: Any = tensor.detach()
    try:
        if whole.layout is torch.jagged:
            if whole.lengths() is None:  # otherwise there are gaps between the values
                return [(f"{suffix}.values", whole.values()), (f"{suffix}.offsets", whole.offsets())]
        elif whole.is_contiguous():
            return [(f"{suffix}.values", whole.values()), (f"{suffix}.sizes", whole._nested_tensor_size())]
    except (AttributeError, RuntimeError):  # another version of torch: a tensor without storage
        pass
    return [(suffix, tensor)]


def _items(value: Any) -> Iterator[tuple[int | str, object]]:
    if isinstance(value, Mapping):
        return ((str(key), item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return iter(enumerate(value))
    return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
