"""Shared output of the commands: console, JSON, numbers, lines of blocks, and escaped text from runs."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdcore.text.numbers import BLOCKS, human_bytes, line_of_blocks, number
from tdcore.text.quoting import quoted, quoted_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult

__all__ = [
    "ascii_only",
    "bar",
    "console",
    "encode_anything",
    "human_bytes",
    "number",
    "plain",
    "print_json",
    "shown",
    "sparkline",
]

_ASCII_BLOCKS = "_.-:=+*#"
_WIDTH = 120  # if the output is not a terminal
_MAX_CHARS = 300  # maximum length of a name or a reason


def console() -> Console:
    """The console on stdout. Its output never moves the cursor, for any text."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH
    made = Console(width=width, highlight=False, emoji=False, soft_wrap=False)
    made.push_render_hook(_Safe())  # type: ignore[arg-type]  # its base would have rich imported with this file
    return made


def encode_anything() -> None:
    """From this call on, print characters that the terminal cannot show as escapes, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def ascii_only() -> bool:
    """Whether the terminal lacks the characters of lines and blocks."""
    try:
        (BLOCKS + "…").encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def plain(text: object, limit: int = _MAX_CHARS) -> str:
    """Text from a run: on one line, without escape sequences, cut if it is very long."""
    return quoted(text, limit)


def shown(text: object, limit: int = _MAX_CHARS) -> str:
    """plain(text) as markup of Rich."""
    from rich.markup import escape

    return escape(plain(text, limit))


class _Safe:
    """A rich.console.RenderHook that escapes control characters in all output."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    """A renderable without control characters, and in ASCII if the terminal supports only ASCII."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        only_ascii = ascii_only()
        for segment in console.render(self._inner, options):
            if segment.control:
                yield segment
            else:
                text = quoted_lines(segment.text)
                yield Segment(text.replace("…", "~") if only_ascii else text, segment.style)


def print_json(value: object) -> None:
    """Print one JSON document. NaN and infinities are printed as text, because JSON lacks them."""
    print(json.dumps(_plain(value), indent=1, allow_nan=False))


def sparkline(values: Sequence[float | None], width: int = 24) -> str:
    """A line of at most `width` blocks (tdcore/text/numbers.py), in characters that the terminal can show."""
    return line_of_blocks(values, width, _ASCII_BLOCKS if ascii_only() else BLOCKS)


def bar(length: int) -> str:
    """A horizontal bar."""
    return ("#" if ascii_only() else "█") * length


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
