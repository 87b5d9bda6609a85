"""Tables with many rows look like those of Rich, for any text, style, width and kind of output."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from tdcore.cli.long_table import Cell, LongTable, Styled
from tdcore.cli.tables import Name, plain_table

_PIECES = [
    "layer1",
    ".",
    "_",
    "/",
    "weight",
    " ",
    "重み",
    "é",
    "e\u0301",
    "🔥",
    ":fire:",
    "[red]",
    "[/]",
    "x" * 30,
]
_TEXTS = st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)
_LINES = st.lists(_TEXTS, min_size=1, max_size=3).map("\n".join)
_NAMES = st.one_of(_TEXTS, st.text(max_size=40)).map(Name)
_STYLED = st.builds(Styled, _TEXTS, st.sampled_from(["red", "yellow", "dim"]))
_ROWS = st.lists(st.tuples(_NAMES, _LINES, st.one_of(_TEXTS, _STYLED), _TEXTS), max_size=8)
_COLUMNS: list[tuple[str, dict[str, Any]]] = [
    ("tensor", {"overflow": "fold", "min_width": 8}),
    ("steps", {"overflow": "fold", "justify": "right"}),
    ("mean", {"no_wrap": True, "justify": "right"}),
    ("history", {"overflow": "fold"}),
]


def _printed(table: object, width: int, *, terminal: bool) -> str:
    out = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        emoji=False,
    )
    out.print(table)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def _of_rich(cell: Cell) -> Any:
    if isinstance(cell, Name):
        return cell
    return Text.assemble((cell.text, cell.style)) if isinstance(cell, Styled) else Text(cell)


@given(
    rows=_ROWS, width=st.integers(1, 150), terminal=st.booleans(), title=st.sampled_from([None, "runs/demo"])
)
@example(
    rows=[(Name("重み" * 20), "0", Styled("1" * 30, "red"), "x")] * 2, width=33, terminal=True, title=None
)
def test_a_long_table_is_printed_as_by_rich(
    rows: list[tuple[Cell, ...]], width: int, terminal: bool, title: str | None
) -> None:
    long, rich = LongTable(title=title), plain_table(title=title)
    for table in (long, rich):
        for header, options in _COLUMNS:
            table.add_column(header, **options)
    for row in rows:
        long.add_row(*row)
        rich.add_row(*map(_of_rich, row))
    assert _printed(long, width, terminal=terminal) == _printed(rich, width, terminal=terminal)


def test_rows_of_several_blocks_are_in_their_order() -> None:
    table = LongTable()
    table.add_column("tensor")
    table.add_column("status")
    for number in range(1234):
        table.add_row(Name(f"layer{number}"), Styled("lost", "red") if number % 100 == 99 else "ok")
    lines = _printed(table, 80, terminal=False).splitlines()[2:]
    assert [line.split() for line in lines] == [
        [f"layer{number}", "lost" if number % 100 == 99 else "ok"] for number in range(1234)
    ]
