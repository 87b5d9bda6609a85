"""The tables in the terminal: medians over rounds with quartiles, and ratios within a round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Rounds = dict[str, list[dict[str, float]]]  # member -> its results, one per round


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and quartiles of one number over the rounds."""

    median: float
    q1: float
    q3: float

    def text(self, form: str) -> str:
        """The numbers as short text, with quartiles only if they differ from the median."""
        middle, low, high = (format(value, form) for value in (self.median, self.q1, self.q3))
        return middle if low == middle == high else f"{middle} [{low}, {high}]"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A number of each member. of: show it as a multiple of this member's number in the same round."""

    title: str
    key: str
    form: str = ".2f"
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of the tables of a question."""

    title: str
    columns: tuple[Column, ...]
    caption: str


LAYOUTS = {
    "put": Layout(
        title="from ring to acknowledged, 16 MiB objects, 8 requests at once",
        columns=(
            Column(title="CPU s/GB", key="cpu_s_per_gb"),
            Column(title="of obstore", key="cpu_s_per_gb", of="obstore, bare"),
            Column(title="of boto3", key="cpu_s_per_gb", of="boto3, threads"),
            Column(title="upload CPU s/GB", key="upload_cpu_s_per_gb"),
            Column(title="of obstore", key="upload_cpu_s_per_gb", of="obstore, bare"),
            Column(title="of boto3", key="upload_cpu_s_per_gb", of="boto3, threads"),
            Column(title="MB/s", key="mb_per_s", form=".0f"),
            Column(title="of obstore", key="mb_per_s", of="obstore, bare"),
            Column(title="with end", key="mb_per_s_with_end", form=".0f"),
            Column(title="server CPU s/GB", key="server_cpu_s_per_gb"),
            Column(title="start s", key="start_s"),
            Column(title="start CPU s", key="start_cpu_s"),
            Column(title="then s", key="seconds"),
            Column(title="CPU s", key="cpu_s"),
            Column(title="spooled MB", key="spooled_mb", form=".0f"),
            Column(title="drops", key="drops", form=".0f"),
        ),
        caption="CPU of all client processes. Start-up, and the cost of a session that saves nothing "
        "(alone), are subtracted and reported separately. CPU of tdcore includes capture (copy, statistics, "
        "checksums), segments and index. Upload: without the trainer process. Then: everything after the "
        "start. Of obstore: relative to bare obstore",
    ),
    "loop": Layout(
        title="iterations of a GIL-bound training loop",
        columns=(
            Column(title="p50 ms", key="p50_ms", form=".3f"),
            Column(title="p99 ms", key="p99_ms", form=".3f"),
            Column(title="p99 of none", key="p99_ms", of="no uploads"),
            Column(title="p99.9 ms", key="p999_ms"),
            Column(title="max ms", key="max_ms", form=".1f"),
            Column(title="mean of none", key="mean_ms", form=".3f", of="no uploads"),
            Column(title="handing over p50 ms", key="handing_p50_ms"),
            Column(title="max ms", key="handing_max_ms", form=".1f"),
            Column(title="given MB/s", key="given_mb_per_s", form=".0f"),
            Column(title="sent MB/s", key="sent_mb_per_s", form=".0f"),
            Column(title="drops", key="drops", form=".0f"),
        ),
        caption="tensors of 4 MB are handed over between iterations, and their times do not include this",
    ),
    "stall": Layout(
        title="training thread in ring.capture()",
        columns=(
            Column(title="p50 ms", key="p50_ms"),
            Column(title="of folder", key="p50_ms", of="folder"),
            Column(title="p90 ms", key="p90_ms"),
            Column(title="of folder", key="p90_ms", of="folder"),
            Column(title="p99 ms", key="p99_ms"),
            Column(title="of folder", key="p99_ms", of="folder"),
            Column(title="max ms", key="max_ms"),
            Column(title="mean of folder", key="mean_ms", of="folder"),
            Column(title="spooled MB", key="spooled_mb", form=".0f"),
            Column(title="drops", key="drops", form=".0f"),
        ),
        caption="the same tensors at the same pace for each member",
    ),
    "open": Layout(
        title="opening a run in a bucket that answers after 50 ms",
        columns=(
            Column(title="open s", key="open_s", form=".3f"),
            Column(title="of pyarrow", key="open_s", of="pyarrow"),
            Column(title="with all statistics s", key="all_s", form=".3f"),
            Column(title="of pyarrow", key="all_s", of="pyarrow"),
            Column(title="CPU s", key="cpu_s"),
            Column(title="imports s", key="imports_s"),
            Column(title="requests", key="requests", form=".0f"),
            Column(title="rows", key="rows", form=".0f"),
        ),
        caption="pyarrow reads only the index of the run, into a table",
    ),
}


def spread(values: list[float]) -> Spread:
    """Median and quartiles of one or more values."""
    if len(values) == 1:
        return Spread(median=values[0], q1=values[0], q3=values[0])
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=median, q1=q1, q3=q3)


def numbers(rounds: Rounds, member: str, column: Column) -> Spread | None:
    """Values of one field of a table; None if nothing was measured, or if a ratio has no meaning."""
    mine = {answer["round"]: answer[column.key] for answer in rounds[member] if column.key in answer}
    if column.of:
        theirs = {
            answer["round"]: answer[column.key]
            for answer in rounds.get(column.of, ())
            if answer.get(column.key)
        }
        mine = {number: value / theirs[number] for number, value in mine.items() if number in theirs}
    return spread(list(mine.values())) if mine else None


def table(group: dict[str, Any]) -> Table:
    """The table of a group, with one row for each member."""
    layout = LAYOUTS[group["question"]]
    title, caption = f"{layout.title}: {group['name']}", layout.caption
    if "floor_s" in group:
        caption += f"; fetching every index file once, 8 in parallel, takes at least {group['floor_s']:.2f} s"
    found = {
        (member, column): numbers(group["members"], member, column)
        for member in group["members"]
        for column in layout.columns
    }
    shown = [column for column in layout.columns if any(found[member, column] for member in group["members"])]
    out = Table(title=title, caption=caption)
    out.add_column("", no_wrap=True)
    for column in shown:
        out.add_column(column.title)
    for member in group["members"]:
        texts = []
        for column in shown:
            value = found[member, column]
            texts.append("" if value is None else value.text(column.form) + (" x" if column.of else ""))
        out.add_row(member, *texts)
    return out


def show(console: Console, result: dict[str, Any]) -> None:
    """Print a table for each group of compared clients, and the problems of the measurement.

    Problems are tensors that were not recorded, clients that are not available, and errors.
    """
    for group in result["groups"]:
        console.print(table(group))
        for member, answers in group["members"].items():
            drops = sum(answer.get("drops", 0) for answer in answers)
            if drops:
                console.print(f"[red]{group['name']}: {member}: {drops:.0f} tensors were not recorded")
    for name, why in result["missing"].items():
        console.print(f"[yellow]not measured: {name}: {why}")
    for error in result["errors"]:
        console.print(f"[red]failed: {error}", markup=True)
