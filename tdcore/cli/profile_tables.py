"""Tables of the operators and the Python functions of a profile, for `tdcore profile`."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tdcore.cli.output import shown
from tdcore.cli.tables import plain_table

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_functions", "print_operators"]

_FOLDERS = 2  # of the path of a function's file


def print_operators(out: Console, operators: pa.Table, top: int) -> None:
    """Print the operators with the largest self time, on a device if one was used, else on the CPU."""
    rows = [each for each in operators.to_pylist() if each["category"] in ("cpu_op", "user_annotation")]
    on_device = any(each["device_self_ns"] for each in rows)
    ranked = "device_self_ns" if on_device else "cpu_self_ns"
    rows.sort(key=lambda each: -each[ranked])
    whole = sum(each[ranked] for each in rows)
    titles = ["device self", "device total"] if on_device else []
    table = _table("operator", ["calls", "share", *titles, "CPU self", "CPU total"])
    for each in rows[:top]:
        cells = [f"{each['calls']:,}", _share(each[ranked], whole)]
        names = ("device_self_ns", "device_total_ns") if on_device else ()
        cells += [_milliseconds(each[name]) for name in (*names, "cpu_self_ns", "cpu_total_ns")]
        table.add_row(shown(each["name"]), *cells)
    out.print(table)


def print_functions(out: Console, functions: pa.Table, top: int) -> None:
    """Print the Python functions with the largest self time."""
    rows = functions.to_pylist()
    whole = sum(each["self_ns"] for each in rows)
    table = _table("Python function", ["calls", "share", "self", "total"])
    for each in rows[:top]:
        table.add_row(
            shown(_function(each)),
            f"{each['calls']:,}",
            _share(each["self_ns"], whole),
            _milliseconds(each["self_ns"]),
            _milliseconds(each["total_ns"]),
        )
    out.print(table)


def _table(title: str, columns: list[str]) -> Table:
    table = plain_table()
    table.add_column(title, overflow="fold", min_width=24)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _function(row: dict[str, Any]) -> str:
    """Name and place of a function: "step (torch/optim/adam.py:214)"; built-in functions have no place."""
    if row["file"] == "~":
        return str(row["function"])
    place = "/".join(PurePath(row["file"]).parts[-_FOLDERS - 1 :])
    return f"{row['function']} ({place}:{row['line']})"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "-"


def _milliseconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.2f} ms"
