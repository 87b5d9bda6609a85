"""tdcore ls: the runs in a folder, or the contents of one run."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tdcore.cli.long_table import LongTable, Styled
from tdcore.cli.output import console, human_bytes, plain, print_json, shown
from tdcore.cli.sharding import sharding_texts
from tdcore.cli.steps import spans_text
from tdcore.cli.tables import Name
from tdcore.errors import ConfigError
from tdcore.sinks import shown_place

if TYPE_CHECKING:
    from tdcore.trial import RunEnd, Trial
    from tdcore.trial.tensor_list import ListedTensor

__all__ = ["command"]

_MAX_ERROR, _MAX_LINE = 600, 2000  # maximum numbers of characters
_MAX_WORKERS = 16  # whose names are printed


def command(
    path: Annotated[
        str,
        typer.Argument(
            help="A run, as a folder or as s3://bucket/prefix, or a folder or prefix with runs below it."
        ),
    ] = "runs",
    regex: Annotated[
        str | None,
        typer.Option("--regex", "-r", help="Only tensors whose names match this regular expression."),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Only this attempt of the run; default: its latest history.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs in a folder or bucket, or the tensors, collections, attempts, drops and gaps of one run.

    Examples:

      [bold]tdcore ls runs[/]                     every run below the folder

      [bold]tdcore ls runs/demo -r ^gradient[/]   the gradients of one run

      [bold]tdcore ls s3://bucket/demo[/]         a run in a bucket
    """
    from tdcore.trial import create_trial, no_refresh
    from tdcore.trial.missing_text import missing_lines
    from tdcore.trial.run_search import runs_below

    places = runs_below(path)
    if places and attempt is not None:
        raise ConfigError(f"--attempt needs one run, and {path} is a folder of runs; give one of the runs")
    if places:
        found = [_summary_or_error(place) for place in places]
        if json_output:
            print_json({"folder": path, "runs": found})
        else:
            _print_runs(path, found)
        return
    with closing(create_trial(path, attempt=attempt)) as trial, no_refresh(trial):
        summary = _summary(trial, attempt)
        summary |= {"collections": _collections(trial), "tensors": _tensors(trial, regex)}
        missing = [each for each in trial.missing() if attempt in (None, each.attempt)]
        lost = [*missing_lines(missing, len(trial.modes())), *trial.patterns.remarks()]
        if trial.open_hint:
            lost.append(trial.open_hint)
    if json_output:
        print_json(summary)
    else:
        _print_run(summary, lost)


def _summary_or_error(place: str) -> dict[str, Any]:
    """Contents of a run, or the error if it cannot be read, so that the other runs are still listed."""
    from tdcore.errors import TdcoreError
    from tdcore.trial import create_trial, no_refresh

    try:
        with closing(create_trial(place)) as trial, no_refresh(trial):
            return _summary(trial)
    except TdcoreError as error:
        return {"run": place, "status": "unreadable", "error": str(error)}
    except Exception as error:  # a bug of tdcore: the other runs are listed
        return {"run": place, "status": "unreadable", "error": f"{type(error).__name__}: {error}"}


def _summary(trial: Trial, only: int | None = None) -> dict[str, Any]:
    """Contents of a run.

    Args:
        trial: A frozen trial, which reads no new data.
        only: The attempt for which the trial was opened; None: the latest history.
    """
    totals = trial.totals()
    ends = {place: end for place, end in trial.ends().items() if only in (None, place[1])}
    gaps = [gap for gap in trial.gaps if only in (None, gap.attempt)]
    drops: dict[str, dict[str, int]] = {}
    for end in ends.values():
        for reason, drop in end.drops.items():
            total = drops.setdefault(reason, {"tensors": 0, "bytes": 0})
            total["tensors"] += drop.tensors
            total["bytes"] += drop.bytes
    counted = set(drops)
    for gap in gaps:
        if gap.reason not in counted and gap.tensors is not None:  # tensors with io_error are among the drops
            total = drops.setdefault(gap.reason, {"tensors": 0, "bytes": 0})
            total["tensors"] += gap.tensors
            total["bytes"] += gap.bytes or 0
    steps = trial.steps(show_incomplete_steps=True)
    return {
        "run": trial.path,
        "run_id": trial.run_id,
        "status": trial.status,
        "attempts": _attempts(trial, only),
        "workers": trial.workers(),
        "modes": [mode.name for mode in trial.modes()],
        "first_step": steps[0] if steps else None,
        "last_step": steps[-1] if steps else None,
        "steps": len(steps),
        "mode_steps": {
            mode: {"first": first, "last": last, "steps": steps}
            for mode, (first, last, steps) in totals.modes.items()
        },
        "rows": totals.rows,
        "payload_bytes": totals.payload_bytes,
        "drops": drops,
        "lost_rows": any(not gap.statistics_kept for gap in gaps),
        "gaps": [asdict(gap) for gap in gaps],
        "missing": [asdict(each) for each in trial.missing() if only in (None, each.attempt)],
        "findings": sum(only in (None, finding.get("attempt")) for finding in trial.findings()),
        "notes": trial.notes(),
    }


def _attempts(trial: Trial, only: int | None) -> list[dict[str, Any]]:
    ends: dict[int, list[RunEnd]] = {}
    for (_, attempt), end in trial.ends().items():
        ends.setdefault(attempt, []).append(end)
    gaps = Counter(gap.attempt for gap in trial.gaps)
    notes = trial.all_notes()
    found = []
    for number in trial.attempts:
        if only not in (None, number):
            continue
        info, mine = trial.attempt_info(number), ends.get(number, [])
        found.append(
            {
                "attempt": number,
                "started_ns": info.started_ns if info else None,
                "world_size": info.world_size if info else None,
                "framework": info.document.get("framework") if info else None,
                "host": info.host if info else None,
                "ended": len(mine) > 0,
                "clean": all(end.clean for end in mine) if mine else None,
                "reason": "; ".join(sorted({end.reason for end in mine})),
                "exception": notes.get(number, {}).get("exception"),
                "gaps": gaps[number],
            }
        )
    return found


def _collections(trial: Trial) -> list[dict[str, Any]]:
    collections = trial.collections()
    counts = {
        name: len(trial.tensor_names(collection=collection)) for name, collection in collections.items()
    }
    return [{"collection": name, "tensors": count} for name, count in sorted(counts.items()) if count]


def _tensors(trial: Trial, regex: str | None) -> list[dict[str, Any]]:
    """One entry per tensor, in the order of the model: kind, dtype, steps, bytes, sharding."""
    sharding = sharding_texts(trial, regex)
    listed: dict[str, list[ListedTensor]] = {}
    for tensor in trial.list_tensors(regex):
        listed.setdefault(tensor.name, []).append(tensor)
    return [
        {
            "tensor": each.name,
            "kind": each.kind,
            "dtype": "/".join(each.dtypes) or None,
            "first_step": each.steps[0],
            "last_step": each.steps[1],
            "steps": each.steps[2],
            "mode_steps": {
                mode: {"first": first, "last": last, "steps": steps}
                for mode, (first, last, steps) in each.mode_steps.items()
            },
            "payload_bytes": each.payload_bytes,
            "sharding": sharding.get(each.name),
            "notes": ", ".join(status for status in each.statuses if status != "ok"),
        }
        for name in trial.in_model_order(listed)
        for each in listed[name]
    ]


def _print_runs(path: str, runs: list[dict[str, Any]]) -> None:
    table = LongTable(title=f"{len(runs)} runs in {shown(shown_place(path))}")
    for column in ("run", "status", "attempts", "steps", "rows", "payload", "drops", "findings"):
        table.add_column(column, justify="left" if column in ("run", "status") else "right", overflow="fold")
    for run in runs:
        if "error" in run:
            table.add_row(Name(shown_place(run["run"])), _status(run), *"------")
            continue
        dropped = sum(drop["tensors"] for drop in run["drops"].values())
        table.add_row(
            Name(shown_place(run["run"])), _status(run), str(len(run["attempts"])), f"{run['steps']:,}",
            f"{run['rows']:,}", human_bytes(run["payload_bytes"]), f"{dropped:,}", f"{run['findings']:,}",
        )  # fmt: skip
    out = console()
    out.print(table)
    for run in runs:
        if "error" in run:
            out.print(f"[red]{shown(shown_place(run['run']))}: {shown(run['error'], _MAX_ERROR)}[/]")


def _print_run(run: dict[str, Any], lost: list[str]) -> None:
    """Print the contents of a run. lost: a line for each kind of missing data."""
    from tdcore.trial.run_notes import note_lines  # imports tdcore.trial and pyarrow

    out = console()
    status, colour = _status(run)
    spans = spans_text(run["mode_steps"])
    steps = f"steps {spans}" if spans else "no steps"
    if len(run["mode_steps"]) > 1:
        steps += f", global {run['first_step']}..{run['last_step']}"
    out.print(f"[bold]{shown(shown_place(run['run']))}[/]  [{colour}]{status}[/]")
    out.print(f"{steps} saved; modes {', '.join(run['modes']) or '-'}; {_workers_text(run['workers'])}")
    out.print(
        f"{run['rows']:,} rows, {human_bytes(run['payload_bytes'])} of values, {run['findings']:,} findings"
    )
    for attempt in run["attempts"]:
        out.print(_attempt_line(attempt))
    for reason, drop in sorted(run["drops"].items()):
        what = f"{drop['tensors']:,} tensors ({human_bytes(drop['bytes'])})"
        out.print(f"[yellow]not kept as requested: {what}: {shown(reason)}[/]")
    for line in lost:
        out.print(f"[yellow]{shown(line, _MAX_LINE)}[/]")
    for line in note_lines(run["notes"]):
        out.print(shown(line, _MAX_LINE))
    if run["collections"]:
        out.print(
            "collections: "
            + ", ".join(f"{shown(c['collection'])} ({c['tensors']})" for c in run["collections"])
        )
    table = LongTable()
    for column in ("tensor", "kind", "dtype", "steps", "values", "notes"):
        justify: Literal["left", "right"] = "right" if column in ("steps", "values") else "left"
        width = min(24, out.width // 4) if column == "tensor" else None
        table.add_column(column, justify=justify, overflow="fold", min_width=width)
    for tensor in run["tensors"]:
        text = spans_text(tensor["mode_steps"], between="\n")
        values = human_bytes(tensor["payload_bytes"]) if tensor["payload_bytes"] else "statistics"
        notes = ", ".join(filter(None, (tensor["sharding"], tensor["notes"])))
        table.add_row(
            Name(tensor["tensor"]), plain(tensor["kind"]), plain(tensor["dtype"] or "-"), text, values, notes
        )
    out.print(table)


def _workers_text(workers: list[str]) -> str:
    """The workers as text: all names, or the first and the last of many."""
    if len(workers) <= _MAX_WORKERS:
        return f"workers {', '.join(workers) or '-'}"
    return f"{len(workers):,} workers, {workers[0]} to {workers[-1]}"


def _attempt_line(attempt: dict[str, Any]) -> str:

    started = attempt["started_ns"]
    when = _time_text(started)
    if not attempt["ended"]:
        how = "not ended yet"
    elif attempt["clean"]:
        by = f"[yellow]ended by {shown(attempt['exception'])}[/]" if attempt["exception"] else ""
        if attempt["gaps"]:
            how = f"{by or 'closed'}, [yellow]but its record has gaps[/]"
        else:
            how = f"{by}, its record is complete" if by else "ended clean"
    else:
        how = f"[yellow]ended unclean: {shown(attempt['reason'])}[/]"
    return f"attempt {attempt['attempt']}: {shown(attempt['framework'] or '?')}, started {when}, {how}"


def _time_text(time_ns: int | None) -> str:
    if not time_ns:
        return "?"
    try:
        return datetime.fromtimestamp(time_ns / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # an invalid year
        return "?"


def _status(run: dict[str, Any]) -> Styled:
    """The status of a run in its colour."""
    colours = {"running": "cyan", "ended": "green", "died": "red", "unreadable": "red"}
    return Styled(run["status"], colours[run["status"]])
