"""Plain pickle: plain values, NumPy arrays and dataclasses of rules as bytes and back, without running code.

A pickle may name any function for the reader to call. Here the reader takes four names, all of this module's
own making: an array, a number of NumPy's, a dataclass without its __init__, and a container of the standard
library. Whatever else a file names is refused before anything is called. Any thread.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["UnreadableError", "UnsaveableError", "dump", "load"]

_PLAIN_KINDS = "biufcSUmM"  # of arrays: numbers, texts and times; never objects
_HOME = "tdcore.rules"
_FACTORIES = {"": None, "int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str}


class UnsaveableError(Exception):
    """A value is none of those that can be saved."""


class UnreadableError(Exception):
    """Bytes are damaged, or name something that may not be named."""


def dump(value: object) -> bytes:
    """Raises UnsaveableError, saying which type is in the way."""
    buffer = io.BytesIO()
    try:
        _Writer(buffer, protocol=5).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UnsaveableError(str(error)) from error
    return buffer.getvalue()


def load(data: bytes, modules: Collection[str] = ()) -> Any:
    """The value. modules: of rules, whose dataclasses may be made besides those of tdcore.rules.

    Only classes of modules that are loaded already are found. Raises UnreadableError.
    """
    try:
        return _Reader(io.BytesIO(data), modules).load()
    except UnreadableError:
        raise
    except Exception as error:  # a file of somebody else's: any error is one of the file's
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


class _Writer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """For everything but the built-in plain types, which pickle writes as they are."""
        kind = type(value)
        if kind in (np.ndarray, *_NUMPY_SCALARS) and value.dtype.kind in _PLAIN_KINDS:
            return _array, (value.dtype.str, value.shape, value.tobytes(), kind is not np.ndarray)
        if is_dataclass(kind) and "." not in kind.__qualname__:
            values = {field.name: getattr(value, field.name) for field in fields(value)}
            return _instance, (kind.__module__, kind.__qualname__, values)
        if kind in (deque, OrderedDict, Counter, defaultdict):
            return _container, _container_parts(value)
        if kind in (set, frozenset) or any(value is maker for maker in (_array, _instance, _container)):
            return NotImplemented
        raise pickle.PicklingError(
            f"{kind.__module__}.{kind.__qualname__} cannot be kept; a rule's memory holds numbers, texts, "
            "lists, tuples, sets, dictionaries, NumPy arrays of numbers and dataclasses"
        )


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, modules: Collection[str]) -> None:
        super().__init__(file)
        self._modules = frozenset(modules)

    def find_class(self, module: str, name: str) -> Any:
        """The only names that a file may use."""
        if module == __name__ and name == "_instance":
            return self._instance
        if module == __name__ and name in ("_array", "_container"):
            return globals()[name]
        raise UnreadableError(f"it names {module}.{name}, which no state holds")

    def _instance(self, module: str, name: str, values: dict[str, Any]) -> Any:
        """A dataclass with these values, without calling anything of its own."""
        known = module == _HOME or module.startswith(_HOME + ".") or module in self._modules
        kind = getattr(sys.modules.get(module), name, None) if known else None
        if not isinstance(kind, type) or not is_dataclass(kind) or kind.__module__ != module:
            raise UnreadableError(f"it names {module}.{name}, which is no dataclass of these rules")
        if set(values) != {field.name for field in fields(kind)}:
            raise UnreadableError(f"{name} has other fields now")
        made = object.__new__(kind)
        for field_name, value in values.items():
            object.__setattr__(made, field_name, value)
        return made


def _instance(module: str, name: str, values: dict[str, Any]) -> Any:
    """Stands for _Reader._instance in what is written."""
    raise UnreadableError("a dataclass is made by the reader")


def _array(dtype: str, shape: tuple[int, ...], data: bytes, scalar: bool) -> Any:
    kind = np.dtype(dtype)
    if kind.kind not in _PLAIN_KINDS or kind.hasobject:
        raise UnreadableError(f"an array of {dtype!r} is none that a state holds")
    made: npt.NDArray[Any] = np.frombuffer(data, dtype=kind).reshape(shape).copy()
    return made[()] if scalar else made


def _container_parts(value: Any) -> tuple[str, Any, Any]:
    if type(value) is deque:
        return "deque", list(value), value.maxlen
    if type(value) is defaultdict:
        factory = value.default_factory
        names = [name for name, known in _FACTORIES.items() if known is factory]
        if not names:
            raise pickle.PicklingError(
                f"a defaultdict of {factory!r} cannot be kept; use one of a plain type"
            )
        return "defaultdict", dict(value), names[0]
    return type(value).__name__, dict(value), None


def _container(name: str, content: Any, more: Any) -> Any:
    if name == "deque":
        return deque(list(content), None if more is None else int(more))
    if name == "defaultdict":
        return defaultdict(_FACTORIES[more], dict(content))
    if name in ("Counter", "OrderedDict"):
        return {"Counter": Counter, "OrderedDict": OrderedDict}[name](dict(content))
    raise UnreadableError(f"{name!r} is no container that a state holds")


_NUMPY_SCALARS = tuple(
    kind for kind in set(np.sctypeDict.values()) if issubclass(kind, np.generic) and kind is not np.object_
)
