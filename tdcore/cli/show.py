"""tdcore show: statistics of a run's tensors over the steps, and the histogram of one tensor."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcore.cli.long_table import Cell, LongTable, Styled
from tdcore.cli.output import bar, console, number, plain, print_json, shown, sparkline
from tdcore.cli.sharding import sharding_texts
from tdcore.cli.show_time import show_time
from tdcore.cli.tables import Name
from tdcore.cli.watch import watch as follow
from tdcore.errors import ConfigError, TensorUnavailable
from tdcore.format.layout import TensorKind
from tdcore.modes import ModeKeys
from tdcore.sinks import shown_place
from tdcore.text.step_text import step_text

if TYPE_CHECKING:
    from rich.console import Console

    from tdcore.trial import Trial
    from tdcore.trial.overview import Condensed, Overview

__all__ = ["command"]

STATS = ("mean", "std", "min", "max", "l1", "l2", "abs_mean", "abs_max", "zero_percent", "nan_count")
_NEEDED = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "l1")
_BAR_WIDTH = 50
_HISTORY = 18  # cells of a line of history
_WIDE, _MIDDLE = 130, 100  # minimum columns of a terminal to list more statistics
_MAX_LINE = 2000  # maximum number of characters


def command(
    run: Annotated[str, typer.Argument(help="Folder of the run, or s3://bucket/prefix.")],
    tensor: Annotated[str | None, typer.Argument(help="A tensor's name, or a regular expression.")] = None,
    step: Annotated[
        int | None,
        typer.Option(help="Step of the histogram: a step of --mode, else a global step; default: the last."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="Only steps of this mode (train, eval, predict); --step then counts its steps."),
    ] = None,
    stat: Annotated[
        str, typer.Option(help=f"Statistic in the line of history: {', '.join(STATS)}.")
    ] = "abs_mean",
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, help="Number of steps of a tensor that are listed.")
    ] = 20,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Only this attempt of the run; default: its latest history.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print again when new rows arrive, until the run ends.")
    ] = False,
    time: Annotated[bool, typer.Option("--time", help="Show where the time of the steps goes.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the statistics and history of each tensor; for one tensor also its steps and a histogram.

    Examples:

      [bold]tdcore show runs/demo[/]                                  all tensors

      [bold]tdcore show runs/demo gradient/Net_fc.weight --step 40[/]  one tensor, and its histogram at step
      40

      [bold]tdcore show runs/demo --watch[/]                           the same while the training runs

      [bold]tdcore show runs/demo --time[/]                            time of the steps, by phase
    """
    if stat not in STATS:
        raise ConfigError(f"--stat is {stat!r}; it can be {', '.join(STATS)}")
    if watch and (time or json_output):
        raise ConfigError(f"--watch and {'--time' if time else '--json'} are given: use only one of them")
    from tdcore.trial import create_trial
    from tdcore.trial.missing_text import missing_lines

    with closing(create_trial(run, attempt=attempt)) as trial:
        of_mode = _mode(mode)
        if time:
            show_time(trial, of_mode, attempt, json_output=json_output)
            return
        out = console()

        def draw() -> None:
            names = _chosen(trial, tensor)
            if not json_output:
                missing = [each for each in trial.missing() if attempt in (None, each.attempt)]
                hint = "" if watch else trial.open_hint
                for line in filter(None, [*missing_lines(missing, len(trial.modes())), hint]):
                    out.print(f"[yellow]{shown(line, _MAX_LINE)}[/]")
            if tensor is not None and len(names) == 1:
                _show_one(trial, out, names[0], step, of_mode, stat, last, json_output)
            else:
                _show_all(trial, out, names, step, of_mode, stat, json_output)

        if watch:
            follow(trial, out, draw)
        else:
            draw()


def _mode(text: str | None) -> ModeKeys | None:
    if text is None or text.upper() in ModeKeys.__members__:
        return None if text is None else ModeKeys[text.upper()]
    raise ConfigError(f"--mode is {text!r}; it can be {', '.join(each.name.lower() for each in ModeKeys)}")


def _chosen(trial: Trial, tensor: str | None) -> list[str]:
    """Names in the order of the model. Tensors whose values are all absent are included."""
    if tensor is not None and trial.has_tensor(tensor):
        return [tensor]
    recorded = trial.names_and_kinds(tensor)
    if tensor is None:
        recorded = [each for each in recorded if each[1] != TensorKind.REDUCTION.label]
    names = trial.in_model_order(list(dict.fromkeys(name for name, _ in recorded)))
    hint = f". It may still appear: {trial.open_hint}" if trial.open_hint else ""
    if not names and tensor is not None:
        raise TensorUnavailable(
            f"no tensor of {shown_place(trial.path)} has the name {tensor!r} or matches it"
            f"{trial.why_absent(tensor)}; see tdcore ls {shlex.quote(trial.path)}{hint}"
        )
    return names


def _show_all(
    trial: Trial,
    out: Console,
    names: list[str],
    step: int | None,
    mode: ModeKeys | None,
    stat: str,
    json_output: bool,
) -> None:
    if json_output:
        rows = trial.overviews(names, stat, steps=step, mode=mode)
        gaps = [asdict(gap) for gap in trial.gaps]
        tensors = [_entry(name, rows[name]) for name in names if name in rows]
        print_json({"run": trial.path, "stat": stat, "gaps": gaps, "tensors": tensors})
        return
    layout = _layout(out.width, stat)
    table = LongTable(title=f"{shown(shown_place(trial.path))}: last saved step of each tensor")
    table.add_column("tensor", overflow="fold", min_width=min(24, out.width // 4))
    for column in (*layout.before, *layout.statistics, "nan/inf"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(layout.title, overflow="fold", min_width=layout.history)
    found = trial.condensed(names, stat, layout.history, steps=step, mode=mode)
    for name in names:
        if name in found:
            table.add_row(*_row(name, found[name], layout))
    out.print(table)


def _entry(name: str, of_tensor: Overview) -> dict[str, Any]:
    return {
        "tensor": name,
        "kind": of_tensor.last["kind"],
        "status": of_tensor.last["status"],
        "reason": of_tensor.last["reason"],
        "last": _numbers(of_tensor.last),
        "history": of_tensor.values(),
        "steps": of_tensor.steps.tolist(),
        "modes": of_tensor.modes,
        "mode_steps": of_tensor.mode_steps.tolist(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Layout of a line: columns before the statistics, of statistics; cells and title of the history."""

    before: tuple[str, ...]
    statistics: tuple[str, ...]
    history: int
    title: str


def _layout(width: int, stat: str) -> _Layout:
    if width < _MIDDLE:
        return _Layout(
            before=("step",), statistics=(stat,), history=min(_HISTORY, width // 5), title="history"
        )
    wide = ("mean", "std", "abs_mean", "abs_max") if width >= _WIDE else ("abs_mean", "abs_max")
    return _Layout(before=("kind", "step"), statistics=wide, history=_HISTORY, title=f"history of {stat}")


def _row(name: str, of_tensor: Condensed, layout: _Layout) -> list[Cell]:
    last = of_tensor.last
    before = {"kind": plain(last["kind"]), "step": _last_step(last)}
    numbers = _numbers(last)
    cells: list[Cell]
    bad: Cell
    if numbers["count"] is None:  # absent, skipped or lost without statistics: printed instead of numbers
        cells = [Styled(plain(last["status"]), "yellow"), *[""] * (len(layout.statistics) - 1)]
        bad = "-"
    else:
        cells = [number(numbers[each], 3) for each in layout.statistics]
        count = (numbers["nan_count"] or 0) + (numbers["inf_count"] or 0)
        bad = Styled(f"{count:,}", "red") if count else "0"
    return [
        Name(name),
        *(before[each] for each in layout.before),
        *cells,
        bad,
        sparkline(of_tensor.means, layout.history),
    ]


def _last_step(last: Mapping[str, Any]) -> str:
    """The step of the mode, with the mode if it is not TRAIN. last: the last row of a tensor."""
    mode, step = last["mode"], last["mode_step"]
    return str(step) if mode in ("TRAIN", "GLOBAL") else f"{plain(mode)} {step}"


def _show_one(
    trial: Trial,
    out: Console,
    name: str,
    step: int | None,
    mode: ModeKeys | None,
    stat: str,
    last: int,
    json_output: bool,
) -> None:
    sharding = sharding_texts(trial, [name]).get(name)
    who = "worker" if sharding is None else "workers"
    rows = trial.stats([name], mode=mode, merged=sharding is not None).to_pylist()
    if not rows:
        raise TensorUnavailable(f"{name!r} was not saved in mode {mode.name if mode else '?'}")
    histogram = _histogram_row(trial, rows, step, mode, name)
    if json_output:
        entries = [
            {"step": row["step"], "mode": row["mode"], "mode_step": row["mode_step"], who: row[who],
             "call": row["call"],
             "status": row["status"], "shape": row["shape"], "dtype": row["dtype"], **_numbers(row)}
            for row in rows
        ]  # fmt: skip
        drawn = None
        if histogram is not None:
            at = {key: histogram[key] for key in ("step", "mode", "mode_step")}
            drawn = {**at, "log2": _bins(histogram)}
        gaps = [asdict(gap) for gap in trial.gaps]
        head = {"run": trial.path, "tensor": name, "gaps": gaps, "sharding": sharding}
        print_json({**head, "rows": entries, "histogram": drawn})
        return
    with_statistics = [row for row in rows if row["count"] is not None]
    shape = with_statistics[-1]["shape"] if with_statistics else None
    dtype = with_statistics[-1]["dtype"] if with_statistics else None
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    counts_differ = any(row["step"] != row["mode_step"] for row in rows)
    of_mode = f"  {modes[0]} steps" if len(modes) == 1 and counts_differ else ""
    out.print(
        f"[bold]{shown(name)}[/]  {shown(rows[-1]['kind'])}  {shown(dtype or '-')} "
        + (shown(shape) if shape is not None else "")
        + of_mode
    )
    if sharding is not None:
        out.print(f"{sharding}; the statistics are of the whole tensor")
    out.print(f"{stat} over {len(rows)} rows: {sparkline([_numbers(row)[stat] for row in rows], 60)}")
    told = [key for key in (who, "call") if len({row[key] for row in rows}) > 1]  # else equal
    if sharding is not None and who not in told:
        told.insert(0, who)
    table = LongTable(title=f"last {last} of {len(rows)}" if len(rows) > last else None)
    columns = ["mean", "std", "abs_mean", "min", "max", "l2", "zero_percent", "nan_count", "inf_count"]
    if out.width < _WIDE:
        columns = ["mean", "abs_mean", "min", "max", "nan_count", "inf_count"]
    if out.width < _MIDDLE:
        columns.remove("abs_mean")
    places = ["mode"] if len(modes) > 1 else []
    places += ["mode_step", *(["step"] if counts_differ else []), *told]
    titles = {"step": "global", "mode_step": "step"}
    for column in [*(titles.get(place, place) for place in places), *columns]:
        table.add_column(
            column.replace("_percent", " %").replace("_count", ""), justify="right", no_wrap=True
        )
    table.add_column("status", justify="right", overflow="fold")
    for row in rows[-last:]:
        numbers = _numbers(row)
        status = row["status"] + (f" ({plain(row['reason'])})" if row["reason"] else "")
        place = (str(row[key]) for key in places)
        table.add_row(*place, *(number(numbers[c]) for c in columns), status)
    out.print(table)
    if histogram is not None:
        which = "".join(f", {key} {str(histogram[key]).removeprefix('worker_')}" for key in told)
        at_step = step_text(histogram["step"], histogram["mode"], histogram["mode_step"])
        out.print(f"magnitudes at {at_step}{which}: number of values in each power of two")
        for label, count, line in _bars(_bins(histogram), _numbers(histogram)["zero_count"] or 0):
            out.print(f"{label:>16} {count:>12,} {line}")


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of one row by the names of STATS; None for missing statistics."""
    if any(row[name] is None for name in _NEEDED):
        return dict.fromkeys((*STATS, "inf_count", "zero_count", "count"))
    inf = row["pos_inf_count"] + row["neg_inf_count"]
    finite = row["count"] - row["nan_count"] - inf
    found = {
        name: row[name]
        for name in ("mean", "std", "min", "max", "l1", "l2", "abs_max", "nan_count", "zero_count", "count")
    }
    found["inf_count"] = inf
    found["abs_mean"] = row["l1"] / finite if finite else math.nan
    found["zero_percent"] = 100 * row["zero_count"] / row["count"] if row["count"] else math.nan
    return found


def _histogram_row(
    trial: Trial, rows: list[dict[str, Any]], step: int | None, mode: ModeKeys | None, name: str
) -> dict[str, Any] | None:
    number_of = "step" if mode in (None, ModeKeys.GLOBAL) else "mode_step"
    there = [row for row in rows if row["count"] is not None and step in (None, row[number_of])]
    if step is not None and not there:
        steps = sorted({row[number_of] for row in rows if row["count"] is not None})
        near = min(steps, key=lambda other: abs(other - step)) if steps else None
        raise TensorUnavailable(
            f"{name!r} has no statistics at {'global step' if mode is None else mode.name + ' step'} {step}: "
            f"{trial.why_absent(name, step, mode or ModeKeys.GLOBAL)}"
            + (f"; the nearest is {near}" if steps else "")
        )
    return there[-1] if there else None


def _bins(row: dict[str, Any]) -> dict[int, int]:
    """Exponent -> number of values with 2^exponent <= |x| < 2^(exponent + 1)."""
    first = row["log2_first"] or 0
    return {first + at: count for at, count in enumerate(row["log2_counts"] or [])}


def _bars(bins: dict[int, int], zeros: int) -> list[tuple[str, int, str]]:
    """(label, count, bar), largest magnitudes first, zeros last."""
    most = max([zeros, *bins.values()], default=0) or 1
    lines = [(f"2^{exponent}", count) for exponent, count in sorted(bins.items(), reverse=True)]
    if zeros:
        lines.append(("0", zeros))
    return [
        (label, count, bar(max(int(count > 0), round(_BAR_WIDTH * count / most)))) for label, count in lines
    ]
