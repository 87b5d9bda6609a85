"""Tables with many rows. Rich measures, wraps and styles each cell of a table, about 0.1 ms per cell.

Rich prints the head and computes the widths, from one row that is as wide as all rows together. The rows
are joined as text and printed in blocks; only cells that do not fit are wrapped by Rich. The output is equal
to that of rich.table.Table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tdcore.cli.tables import Name, plain_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement
    from rich.segment import Segment
    from rich.table import Table

__all__ = ["Cell", "LongTable", "Styled"]

_BLOCK = 100  # rows that are printed together
_MARK = "x"


class Styled(NamedTuple):
    """A cell in a style of Rich, such as "red"."""

    text: str
    style: str


Cell = str | Name | Styled


class LongTable:
    """A table like plain_table() for any number of rows. Its cells are text and not markup."""

    def __init__(self, title: str | None = None) -> None:
        self._title = title
        self._columns: list[tuple[str, dict[str, Any]]] = []
        self._rows: list[tuple[Cell, ...]] = []

    def add_column(self, header: str, **options: Any) -> None:
        """Add a column. options: of rich.table.Table.add_column."""
        self._columns.append((header, options))

    def add_row(self, *cells: Cell) -> None:
        """Add a row with a cell for each column."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        widest = [_Widest(cells) for cells in zip(*self._rows, strict=True)]
        table = self._of_rich([widest] if widest else [])
        lines = list(Segment.split_lines(console.render(table, options)))
        gaps = re.split(f"{_MARK}+", "".join(segment.text for segment in lines[-1])) if widest else []
        if len(gaps) != len(widest) + 1:  # no rows, or too narrow for a cell of each column
            yield self._of_rich([map(_renderable, row) for row in self._rows])
            return
        for line in lines[:-1]:
            yield from line
            yield Segment.line()
        columns = []
        for column, each in zip(table.columns, widest, strict=True):
            of_cell = options.update(
                width=each.width, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow,
                highlight=False, height=None,
            )  # fmt: skip
            columns.append(_Column(console, of_cell))
        yield from _joined(self._rows, columns, gaps)

    def _of_rich(self, rows: Iterable[Iterable[RenderableType]]) -> Table:
        table = plain_table(title=self._title)
        for header, options in self._columns:
            table.add_column(header, **options)
        for row in rows:
            table.add_row(*row)
        return table


class _Widest:
    """A cell as wide as all cells of a column together, which stores the width that it gets."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        ranges = {_width_range(cell) for cell in set(cells)}
        self._least, self._most = (max(each) for each in zip(*ranges, strict=True))
        self.width = 0

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(self._least, self._most)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        self.width = options.max_width
        yield Segment(_MARK * self.width)


def _width_range(cell: Cell) -> tuple[int, int]:
    """The width of the longest word and of the longest line of a cell, as Rich measures them."""
    from rich.cells import cell_len

    if isinstance(cell, Name):
        return cell.width_range()
    text = cell.text if isinstance(cell, Styled) else cell
    longest = max(map(cell_len, text.splitlines()), default=0)
    return max(map(cell_len, text.split()), default=longest), longest


def _renderable(cell: Cell) -> RenderableType:
    from rich.text import Text

    if isinstance(cell, Name):
        return cell
    return Text.assemble((cell.text, cell.style)) if isinstance(cell, Styled) else Text(cell)


class _Column:
    """Formats the cells of a column. options: of Rich, for one cell of this column."""

    def __init__(self, console: Console, options: ConsoleOptions) -> None:
        self._console, self._options = console, options
        self._width = options.max_width
        self._right = options.justify == "right"
        self.blank = " " * self._width
        self.lines = cache(self._lines)

    def _lines(self, cell: Cell) -> list[str] | list[list[Segment]]:
        """The lines of a cell, each with the width of the column; segments of Rich if the cell is styled."""
        if isinstance(cell, Styled):
            return self._wrapped(cell)
        lines = cell.lines(self._width) if isinstance(cell, Name) else cell.split("\n")
        padded = [self._padded(line) for line in lines]
        fitting = [line for line in padded if line is not None]
        if len(fitting) == len(padded):
            return fitting
        return ["".join(segment.text for segment in line) for line in self._wrapped(cell)]

    def _padded(self, line: str) -> str | None:
        """The line with the width of the column; None if it is longer, or could look otherwise with Rich."""
        from rich.cells import cell_len

        room = self._width - cell_len(line)
        if room < 0 or line != line.strip() or not line.isprintable():
            return None
        return " " * room + line if self._right else line + " " * room

    def _wrapped(self, cell: Cell) -> list[list[Segment]]:
        return self._console.render_lines(_renderable(cell), self._options)


def _joined(rows: Iterable[tuple[Cell, ...]], columns: list[_Column], gaps: list[str]) -> Iterator[Segment]:
    """The lines of the rows. gaps: the text before each column, and after the last one."""
    from rich.segment import Segment

    text: list[str] = []
    *between, end = gaps
    end += "\n"
    for number, row in enumerate(rows, 1):
        cells = [column.lines(cell) for column, cell in zip(columns, row, strict=True)]
        for at in range(max(map(len, cells))):
            for gap, column, lines in zip(between, columns, cells, strict=True):
                text.append(gap)
                piece = lines[at] if at < len(lines) else column.blank
                if isinstance(piece, str):
                    text.append(piece)
                    continue
                yield Segment("".join(text))
                text.clear()
                yield from piece
            text.append(end)
        if number % _BLOCK == 0:
            yield Segment("".join(text))
            text.clear()
    yield Segment("".join(text))
