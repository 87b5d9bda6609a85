"""Safe pickle: saves and loads plain values, NumPy arrays and dataclasses of rules without running code.

A pickle is a program that can call any function that it names. This reader accepts three names only, which
are functions of this module: they make an array (or a NumPy number), a dataclass without its __init__, and a
container of the standard library. It executes only the operations that dump() writes, and uses memory in
proportion to the file. All other content raises UnreadableError. The expanded size of a value is limited too
(rules/expanded_size.py): a list that contains a list twice, which contains a list twice, and so on, is small
in a file, but would take years to compare, hash or print. Any thread.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.format.documents import clipped
from tdcore.rules.expanded_size import ExpandedSizes, TooLargeError, check_size

__all__ = ["UnreadableError", "UnsaveableError", "dump", "load"]

_PLAIN_KINDS = "biufcSUmM"  # kinds of arrays: numbers, texts and times; never objects
_HOME = "tdcore.rules"
_OPERATIONS = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG1, pickle.LONG4, pickle.BINFLOAT, pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
    *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8, pickle.EMPTY_LIST, pickle.EMPTY_DICT),
    *(pickle.EMPTY_SET, pickle.FROZENSET, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2),
    *(pickle.TUPLE3, pickle.STACK_GLOBAL, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
)
_HASHABLE = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.FROZENSET)
_FACTORIES = {"": None, "int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str}


class UnsaveableError(Exception):
    """A value has a type that cannot be saved."""


class UnreadableError(Exception):
    """The bytes are damaged, or contain a name that is not allowed."""


def dump(value: object) -> bytes:
    """Serialize a value. Raises UnsaveableError, which names the type that cannot be saved."""
    buffer = io.BytesIO()
    try:
        _SafePickler(buffer, protocol=5).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise UnsaveableError(str(error)) from error
    return buffer.getvalue()


def load(data: bytes, modules: Collection[str] = ()) -> Any:
    """Load a value. modules: additional modules of rules whose dataclasses are allowed.

    Only classes of modules that were imported before are accepted. Raises UnreadableError.
    """
    try:
        value = _SafeUnpickler(data, modules).load()
        check_size(value)
        return value
    except TooLargeError as error:
        raise UnreadableError(str(error)) from error
    except UnreadableError:
        raise
    except Exception as error:  # any error means that the file is invalid
        raise UnreadableError(f"{type(error).__name__}: {clipped(str(error))}") from error


class _SafePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Called for all types except built-in plain types, which pickle writes itself."""
        kind = type(value)
        if kind in (np.ndarray, *_NUMPY_SCALARS) and value.dtype.kind in _PLAIN_KINDS:
            if not value.dtype.itemsize:  # empty texts: their number cannot be computed from the bytes
                value = np.asarray(value).astype(value.dtype.kind + "1")
            return _array, (value.dtype.str, value.shape, value.tobytes(), kind is not np.ndarray)
        if is_dataclass(kind) and "." not in kind.__qualname__:
            values = {field.name: getattr(value, field.name) for field in fields(value)}
            return _instance, (kind.__module__, kind.__qualname__, values)
        if kind in (deque, OrderedDict, Counter, defaultdict):
            return _container, _container_parts(value)
        if kind in (set, frozenset) or any(value is maker for maker in (_array, _instance, _container)):
            return NotImplemented
        raise pickle.PicklingError(
            f"{kind.__module__}.{kind.__qualname__} cannot be saved; a rule's memory can contain numbers, "
            "texts, "
            "lists, tuples, sets, dictionaries, NumPy arrays of numbers and dataclasses"
        )


def _into(operation: bytes, kind: type, at: int | None = None) -> Callable[[Any], None]:
    """An operation that puts items into a container. at: its position on the stack; None: before the mark.

    It checks the type of the container: for another type, pickle would call the methods of that type.
    """
    put = pickle._Unpickler.dispatch[operation[0]]

    def checked(reader: Any) -> None:
        container = reader.metastack[-1][-1] if at is None else reader.stack[at]
        if type(container) is not kind:
            raise UnreadableError(f"the file adds items to a {type(container).__name__}")
        if kind is not list:
            items = reader.stack if at is None else reader.stack[at + 1 :]
            reader.hashable.hashed(items[::2] if kind is dict else items)
        put(reader)

    return checked


def _weighed(operation: bytes) -> Callable[[Any], None]:
    """An operation that makes a tuple or a frozen set, with a check of its size, because it may be hashed."""
    make = pickle._Unpickler.dispatch[operation[0]]

    def checked(reader: Any) -> None:
        make(reader)
        reader.hashable.add(reader.stack[-1])

    return checked


class _SafeUnpickler(pickle._Unpickler):
    """The unpickler of the standard library in pure Python: its operations can be replaced."""

    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]

    def __init__(self, data: bytes, modules: Collection[str]) -> None:
        super().__init__(io.BytesIO(data))
        self._modules = frozenset(modules)
        self.hashable = ExpandedSizes(len(data))
        self._room = len(
            data
        )  # number of items and bytes that may still be copied; dump() writes files that copy each item once
        self._makers = {"_array": _array, "_instance": self._instance, "_container": _container}

    def find_class(self, module: str, name: str) -> Any:
        """Look up one of the names that are allowed in a file."""
        if module == __name__ and name in self._makers:
            return self._makers[name]
        raise UnreadableError(f"the file names {module}.{name}, which is not allowed in a state")

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        maker = self.stack.pop()
        if not any(maker is known for known in self._makers.values()):
            raise UnreadableError(f"the file calls a {type(maker).__name__}")
        self._room -= sum(len(each) for each in arguments if type(each) in (bytes, list, dict))
        if self._room < 0:
            raise UnreadableError("the file copies its own parts too often")
        self.append(maker(*arguments))

    def _bytearray(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))  # never allocates more memory than the file has bytes

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{operation[0]: pickle._Unpickler.dispatch[operation[0]] for operation in _OPERATIONS},
        **{operation[0]: _weighed(operation) for operation in _HASHABLE},
        pickle.REDUCE[0]: _reduce,
        pickle.BYTEARRAY8[0]: _bytearray,
        pickle.APPEND[0]: _into(pickle.APPEND, list, -2),
        pickle.APPENDS[0]: _into(pickle.APPENDS, list),
        pickle.SETITEM[0]: _into(pickle.SETITEM, dict, -3),
        pickle.SETITEMS[0]: _into(pickle.SETITEMS, dict),
        pickle.ADDITEMS[0]: _into(pickle.ADDITEMS, set),
    }

    def _instance(self, module: str, name: str, values: dict[str, Any]) -> Any:
        """A dataclass with these values, without calling its methods."""
        known = module == _HOME or module.startswith(_HOME + ".") or module in self._modules
        kind = getattr(sys.modules.get(module), name, None) if known else None
        if not isinstance(kind, type) or not is_dataclass(kind) or kind.__module__ != module:
            raise UnreadableError(f"the file names {module}.{name}, which is not a dataclass of these rules")
        if set(values) != {field.name for field in fields(kind)}:
            raise UnreadableError(f"the fields of {name} have changed")
        made = object.__new__(kind)
        for field_name, value in values.items():
            object.__setattr__(made, field_name, value)
        self.hashable.add(made, values.values())
        return made


def _instance(module: str, name: str, values: dict[str, Any]) -> Any:
    """Placeholder for _SafeUnpickler._instance in written files."""
    raise UnreadableError("a dataclass is made by the reader")


def _array(dtype: str, shape: tuple[int, ...], data: bytes, scalar: bool) -> Any:
    kind = np.dtype(dtype)
    if kind.kind not in _PLAIN_KINDS or kind.hasobject:
        raise UnreadableError(f"arrays of {dtype!r} are not allowed in a state")
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
                f"a defaultdict of {factory!r} cannot be saved; use a plain type as its factory"
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
    raise UnreadableError(f"the container {name!r} is not allowed in a state")


_NUMPY_SCALARS = tuple(
    kind for kind in set(np.sctypeDict.values()) if issubclass(kind, np.generic) and kind is not np.object_
)
