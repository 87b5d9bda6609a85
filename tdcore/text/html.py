"""Small HTML for notebooks: escaped texts, tables of facts, and lines of history as SVG.

Names and texts come from runs that others wrote, so each text passes through `escaped`. Functions that build
HTML accept and return `Html`; a type checker finds a text that was not escaped. The HTML has no scripts and
loads nothing. Its colours are those of the notebook and half-transparent grey, so it is readable on dark and
light backgrounds. Pure functions, any thread.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import NewType

from tdcore.text.quoting import quoted

__all__ = ["Html", "card", "escaped", "facts", "history", "joined", "listing"]

Html = NewType("Html", str)

_LONGEST = 300  # characters of a text
_LINE = "border-bottom:1px solid rgba(128,128,128,.35)"
_CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:top;background:transparent"
_CARD = "max-width:60em;line-height:1.45"
_TITLE = f"font-weight:bold;{_LINE};margin-bottom:3px"
_TABLE = "border-collapse:collapse;color:inherit;font:inherit"
_LABEL = f"{_CELL};opacity:.7;white-space:nowrap"
_VALUE = f"{_CELL};overflow-wrap:break-word;max-width:34em"
_CELL_OPEN = f'<td style="{_VALUE}">'
_HEAD = f"{_CELL};font-weight:normal;opacity:.7;{_LINE}"
_ROW = "background:transparent"  # notebooks colour every other row
_WIDTH, _HEIGHT, _EDGE = 180, 28, 3  # pixels of a history
_POINTS = 90
_BAD = "#d55e00"  # visible on white and on black


def escaped(text: object, longest: int = _LONGEST) -> Html:
    """A text as HTML, in one line. Characters that control a terminal are shown as escapes."""
    return Html(html.escape(quoted(text, longest), quote=True))


def joined(parts: Iterable[Html], separator: str = " ") -> Html:
    """Several pieces one after the other. separator: plain text."""
    return Html(html.escape(separator).join(part for part in parts if part))


def card(title: Html, *contents: Html) -> Html:
    """A block with a title."""
    return Html(f'<div style="{_CARD}"><div style="{_TITLE}">{title}</div>{"".join(contents)}</div>')


def facts(rows: Iterable[tuple[str, Html]]) -> Html:
    """Facts in two columns: a label as plain text, and a value. Rows with an empty value are left out."""
    lines = "".join(
        f'<tr style="{_ROW}"><td style="{_LABEL}">{escaped(label)}</td><td style="{_VALUE}">{value}</td></tr>'
        for label, value in rows
        if value
    )
    return Html(f'<table style="{_TABLE}">{lines}</table>') if lines else Html("")


def listing(columns: Sequence[str], rows: Iterable[Sequence[Html]], more: int = 0) -> Html:
    """A table.

    Args:
        columns: Titles of the columns, as plain text.
        rows: Cells of each row.
        more: Number of further rows, which a line below the table names.
    """
    head = "".join(f'<th style="{_HEAD}">{escaped(each)}</th>' for each in columns)
    body = "".join(
        f'<tr style="{_ROW}">' + "".join(f"{_CELL_OPEN}{cell}</td>" for cell in row) + "</tr>" for row in rows
    )
    rest = f'<div style="opacity:.7">and {more:,} more</div>' if more > 0 else ""
    return Html(f'<table style="{_TABLE}"><tr>{head}</tr>{body}</table>{rest}')


def history(values: Sequence[float | None]) -> Html:
    """A line of history as SVG; dots on the upper edge mark values that are NaN or infinite.

    A point is the mean of its share of the values. The scale is logarithmic if all finite values are positive
    and differ by more than a factor of 100.
    """
    if not values:
        return Html("")
    size = min(len(values), _POINTS)
    shares = [values[at * len(values) // size : (at + 1) * len(values) // size] for at in range(size)]
    finite = [[each for each in share if each is not None and math.isfinite(each)] for share in shares]
    means = [math.fsum(each / len(share) for each in share) if share else None for share in finite]
    known = [each for each in means if each is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    as_log = low > 0 and high > 100 * low
    scale = math.log10 if as_log else float
    bottom, span = (scale(low), scale(high) - scale(low)) if known else (0.0, 0.0)

    def x(at: int) -> float:
        return _EDGE + (_WIDTH - 2 * _EDGE) * (at / (size - 1) if size > 1 else 0.5)

    def y(value: float) -> float:
        part = (scale(value) - bottom) / span if span and math.isfinite(span) else 0.5
        return _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * part

    lines = _lines([None if each is None else (x(at), y(each)) for at, each in enumerate(means)])
    bad = [
        at
        for at, share in enumerate(shares)
        if any(one is not None and not math.isfinite(one) for one in share)
    ]
    dots = "".join(f'<circle cx="{x(at):.1f}" cy="{_EDGE}" r="2" fill="{_BAD}"/>' for at in bad)
    return Html(
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="history of {len(values):,} values" style="vertical-align:middle">{lines}{dots}</svg>'
    )


def _lines(points: Sequence[tuple[float, float] | None]) -> str:
    """Lines through neighbouring points, and dots for points without a neighbour."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is not None:
            pieces[-1].append(point)
        elif pieces[-1]:
            pieces.append([])
    drawn = []
    for piece in filter(None, pieces):
        if len(piece) == 1:
            drawn.append(
                f'<circle cx="{piece[0][0]:.1f}" cy="{piece[0][1]:.1f}" r="1.5" fill="currentColor"/>'
            )
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.2"/>')
    return "".join(drawn)
