"""Names of tensors that match a pattern, and ids of runs. Pure functions, any thread."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tdcore.errors import ConfigError
from tdcore.text.short_repr import cut

__all__ = ["id_of", "matching", "name_of"]

# A part of a regular expression that RE2, JavaScript and the module re do not interpret in the same way:
# escapes of letters and digits except classes of characters, groups that begin with "(?" except "(?:", "[]",
# "[^]", "[:", "{,", and two quantifiers.
_OF_ONE_LANGUAGE = re.compile(
    r"(?:[^\\]|\\[dDwWsSbBntrfv\W_])*?(?P<part>\\[^dDwWsSbBntrfv\W_]|\(\?(?!:)..?|\[\^?\]|\[:|\{,|[*+?}][*+])",
    re.ASCII | re.DOTALL,
)
_COMMA = "\\x2c"  # requests separate the ids of runs by commas


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names in which a regular expression is found; all names for "".

    The search takes linear time (RE2). The module re takes exponential time for some patterns, such as
    `(\\w+\\.?)+bias`, and all other requests to the server wait meanwhile.

    Raises ConfigError for an invalid expression, and for a part that has another meaning in the regular
    expressions of browsers, which filter the names in a page: web/src/data/names.ts has the same list.
    """
    every = list(names)
    if not pattern:
        return every
    part = _OF_ONE_LANGUAGE.match(pattern)
    if part is not None:
        raise ConfigError(
            f"{cut(pattern)!r} contains {part['part']!r}, which patterns over names do not support"
        )
    try:
        found = pc.match_substring_regex(pa.array(every, pa.string()), pattern)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise ConfigError(f"{cut(pattern)!r} is not a regular expression: {cut(str(error))}") from error
    return [name for name, is_found in zip(every, found.to_pylist(), strict=True) if is_found]


def id_of(name: str) -> str:
    """The id of a run with this name: the name, with escapes for commas."""
    return name.replace(",", _COMMA)


def name_of(id: str) -> str:  # noqa: A002 -- the name in the contract
    """The name of the run with this id."""
    return id.replace(_COMMA, ",")
