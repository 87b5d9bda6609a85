"""Functions that all readers of configuration use: documents, objects in documents, and values.

read_text, parse_document   the text of a file; the plain values in YAML or JSON text
mapping, items, check_keys  objects and lists of a document, and their keys
within                      adds the place to the front of an error
Kind, FLAG, WHOLE, ...      kinds of values; a reader has a table of settings and their kinds
kind_of                     the kind for a type hint, such as the hint of a dataclass field

Every error is a ConfigError whose message has the place, the invalid value and the valid values.
Functions without state; any thread.
"""

from __future__ import annotations

import contextlib
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from tdcore.errors import ConfigError
from tdcore.text.did_you_mean import did_you_mean

__all__ = [
    "FLAG",
    "NUMBER",
    "SECONDS",
    "TEXT",
    "WHOLE",
    "Kind",
    "check_keys",
    "items",
    "kind_of",
    "mapping",
    "parse_document",
    "read_text",
    "type_name",
    "unknown_keys",
    "within",
]

_ContainerT = TypeVar("_ContainerT", dict[str, Any], list[Any])
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value. A call converts a text, or a value of a document, to a value of this kind.

    Attributes:
        expected: Description for messages, as in "must be a whole number".
        read: Converts a value. Raises ValueError, TypeError, LookupError or OverflowError for an invalid
            value, or a ConfigError with its own message.
        types: Types that a value may have; empty: any type. True is not an int.
    """

    expected: str
    read: Callable[[Any], Any]
    types: tuple[type, ...] = ()

    def __call__(
        self, value: object, where: str, form: str = "{where} must be {expected}, got {got!r}"
    ) -> Any:
        """Convert a value. where, form: place and message of the ConfigError for an invalid value."""
        try:
            if self.types and type(value) not in self.types:
                raise TypeError(type(value))
            return self.read(value)
        except ConfigError:
            raise
        except (TypeError, ValueError, LookupError, OverflowError):
            raise ConfigError(form.format(where=where, expected=self.expected, got=value)) from None


def _whole(value: object) -> int:
    if isinstance(value, (bool, float)):
        raise TypeError("not whole")
    return int(str(value))


FLAG = Kind("true or false", lambda value: _FLAGS[str(value).strip().lower()])
WHOLE = Kind("a whole number", _whole)
NUMBER = Kind("a number", float)
SECONDS = Kind("a number of seconds", lambda value: timedelta(seconds=float(value)))
TEXT = Kind("a text", str)


def kind_of(hint: Any) -> Kind:
    """The kind for a type hint: bool, int or float if the hint contains one of them, otherwise text.

    If the hint contains None, "none" and "" are converted to None.
    """
    hints = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    known = {bool: FLAG, int: WHOLE, float: NUMBER}
    kind = next((kind for each, kind in known.items() if each in hints), TEXT)
    if type(None) not in hints:
        return kind
    return Kind(kind.expected, lambda value: None if value.lower() in ("", "none") else kind.read(value))


def read_text(path: Path, what: str) -> str:
    """The text of a file. what: the kind of file, for messages. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{what} {path} cannot be read: {why}") from error


def parse_document(text: str, *, as_json: bool) -> object:
    """The plain values of a document. A repeated key is an error: one of its values would be lost."""
    if as_json:
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not JSON: {error}") from error
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML loader that returns only plain values."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[object] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise ConfigError(f"line {key.start_mark.line + 1}: {key.value!r} is given twice")
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ConfigError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice")
    return found


@contextlib.contextmanager
def within(where: str) -> Iterator[None]:
    """Add the place before the message of a ConfigError. The class of the error does not change."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error


def type_name(value: object) -> str:
    """The type of a value, without the value."""
    return type(value).__name__


def mapping(
    where: str,
    value: object,
    expected: str = "be a mapping of names to values",
    got: Callable[[object], str] = type_name,
) -> dict[str, Any]:
    """The names and values of an object; None is an empty object. Raises ConfigError for another type.

    expected: the words after "must". got: returns the words for a value of another type.
    """
    return _container(dict, where, value, expected, got)


def items(
    where: str, value: object, expected: str = "be a list", got: Callable[[object], str] = type_name
) -> list[Any]:
    """The items of a list; None is an empty list. See mapping() for the arguments."""
    return _container(list, where, value, expected, got)


def _container(
    kind: type[_ContainerT], where: str, value: object, expected: str, got: Callable[[object], str]
) -> _ContainerT:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigError(f"{where} must {expected}, got {got(value)}")
    return value


def unknown_keys(where: str, found: Iterable[object], known: Iterable[str]) -> Iterator[str]:
    """A message for each unknown key, with the most similar known key or with all known keys.

    where: the place; "" if a caller adds the place to the message.
    """
    names = list(known)
    what = f"{where} has an unknown key" if where else "unknown key"
    for key in found:
        if key not in names:
            hint = did_you_mean(str(key), names) or f"; known keys: {', '.join(names)}"
            yield f"{what} {key!r}{hint}"


def check_keys(where: str, found: Iterable[object], known: Iterable[str]) -> None:
    """Raise ConfigError for the first unknown key."""
    for message in unknown_keys(where, found, known):
        raise ConfigError(message)
