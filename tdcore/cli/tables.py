"""Tables of the commands: one style, without vertical lines, and names that break at their separators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tdcore.text.quoting import quoted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table

__all__ = ["Name", "broken", "plain_table"]

_LONGEST = 300  # characters of a name
_LEAST_WIDTH = 16
_SEPARATORS = "./_"


def plain_table(**options: Any) -> Table:
    """A table with a line below its head. options: of rich.table.Table."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left", **options)


class Name:
    """A cell with the name of a tensor or a run. The name is untrusted. A long name has several lines."""

    def __init__(self, name: object) -> None:
        self._text = quoted(name, _LONGEST)

    def width_range(self) -> tuple[int, int]:
        """The least width in characters of the terminal, and the width of the whole name."""
        from rich.cells import cell_len

        length = cell_len(self._text)
        return min(length, _LEAST_WIDTH), length

    def lines(self, width: int) -> Iterator[str]:
        """The lines of the name; see broken()."""
        return broken(self._text, width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(*self.width_range())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text(line, overflow="fold")


def broken(name: str, width: int) -> Iterator[str]:
    """Lines of at most `width` characters, which end after a separator if their second half has one."""
    while len(name) > width:
        end = max(name.rfind(each, width // 2, width) for each in _SEPARATORS) + 1 or width
        yield name[:end]
        name = name[end:]
    yield name
