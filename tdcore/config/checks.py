"""Checks of values of a configuration. Each raises ConfigError with the valid values.

Pure functions, any thread. The first argument names the setting in messages.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tdcore.errors import ConfigError

__all__ = ["allowed", "flag", "json_object", "known_names", "names", "patterns", "plain", "steps", "whole"]


def patterns(name: str, value: str | Iterable[str] | None, *, check: bool = True) -> tuple[str, ...]:
    """Regular expressions from one string or several. name: for messages.

    check: Whether to compile each pattern with `re`. False for patterns from a run, which are untrusted: even
        the compilation can take long.
    """
    found = names(name, value)
    for pattern in found if check else ():
        _check_pattern(name, pattern)
    return found


def _check_pattern(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{name}: {pattern[:200]!r} is not a regular expression: {error}") from error


def names(name: str, value: str | Iterable[str] | None) -> tuple[str, ...]:
    """One string or several as a tuple without repetitions. Raises ConfigError for an empty string."""
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) else tuple(value)
    for item in found:
        if not isinstance(item, str) or not item:
            raise ConfigError(f"{name} must be non-empty strings, got {item!r}")
    return tuple(dict.fromkeys(found))


def plain(value: str | Iterable[int | str]) -> str | list[int | str]:
    """Value for JSON: a string unchanged, several values as a list."""
    return value if isinstance(value, str) else list(value)


def whole(name: str, value: object, least: int = 0) -> int:
    """A whole number, also from text ("10"). Raises ConfigError for other values or below `least`."""
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]  # whatever it is: this is the check
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}")
    return number


def steps(value: object) -> tuple[int, ...]:
    """Sorted steps from any iterable of whole numbers; None gives no steps. Raises ConfigError."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"save_steps must be a list of steps, such as [0, 100], got {value!r}")
    return tuple(sorted({whole("save_steps", step) for step in value}))


def known_names(what: str, given: object, allowed: Sequence[object]) -> None:
    """Raise ConfigError unless `given` is a mapping with keys among `allowed`. what: for messages."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} must be a dict, got {type(given).__name__}")
    unknown = [key for key in given if key not in allowed]
    if unknown:
        texts = [key for key in allowed if isinstance(key, str)]
        raise ConfigError(f"{what} has no setting {unknown[0]!r}; it has {', '.join(texts)}")


def json_object(what: str, text: str) -> dict[str, Any]:
    """The dict in a JSON text. what: for messages. Raises ConfigError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what}: the text is not JSON: {error}") from error
    known_names(what, found, tuple(found) if isinstance(found, dict) else ())
    return dict(found)


def allowed(name: str, value: object, choices: tuple[str, ...]) -> tuple[str, ...]:
    """One string or several as a tuple. Raises ConfigError unless all are in `choices`."""
    found = names(name, value)  # type: ignore[arg-type]  # whatever it is: this is the check
    unknown = [item for item in found if item not in choices]
    if unknown:
        raise ConfigError(f"{name} must be among {', '.join(choices)}; got {', '.join(map(repr, unknown))}")
    return found


def flag(name: str, value: object) -> None:
    """Raise ConfigError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
