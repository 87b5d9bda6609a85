"""matching: names in which a pattern is found. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Iterable

from tdcore.trial.view import patterns

__all__ = ["matching"]


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names in which a regular expression is found; all names for "".

    Raises ConfigError for an invalid expression.
    """
    if not pattern:
        return list(names)
    (test,) = patterns(pattern)
    return [name for name in names if test.search(name)]
