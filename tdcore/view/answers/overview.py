"""Answer `overview`: losses, learning rates, findings, causes, missing data and the cost of the capture."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from tdcore.format.layout import EPOCH_SCALAR
from tdcore.modes import ModeKeys
from tdcore.text.numbers import human_bytes
from tdcore.text.short_repr import cut, how_many
from tdcore.trial.missing_text import missing_lines
from tdcore.trial.run_notes import note_lines
from tdcore.view.answers.arrow import numbers
from tdcore.view.answers.curves import MOST_CURVES, curves
from tdcore.view.answers.places import cause_json, finding_json
from tdcore.view.answers.runs import run_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tdcore.view.answers.catalog import Catalog
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["CURVE_PARAMETERS", "PARAMETERS", "answer", "visible_curves"]

PARAMETERS = ("columns",)
CURVE_PARAMETERS = ("group", "mode", "from", "to", "columns")

_COLUMNS = 800
_RATE = re.compile(r"(?:^|[/_.])(?:lr|learning_rate|eta)$", re.ASCII)
_MOST_FINDINGS = 1000
_MOST_NOTICES = 200
_LONGEST = 400  # characters of an exception
_NOT_DRAWN = (
    "{:,} further losses and metrics are not drawn in the overview; the page of each tensor shows its history"
)


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Overview` of the contract."""
    columns = parameters.columns(_COLUMNS)
    catalog, judgement = run.catalog, run.judgement
    losses, rates = (group(catalog) for group in _GROUPS.values())
    counts = (
        Counter() if judgement is None else Counter(each.status.value for each in judgement.report.verdicts)
    )
    drawn = curves(run, losses, columns)
    more = len(losses) - len({each["name"] for each in drawn}) if len(drawn) == MOST_CURVES else 0
    left_out = [{"level": "warning", "text": _NOT_DRAWN.format(more)}] if more > 0 else []
    return {
        "run": run_line(run),
        "path": run.shown_path,
        "attempts": list(_attempts(run)),
        "losses": drawn,
        "learning_rates": curves(run, rates, columns),
        "findings": [finding_json(each) for each in run.findings[:_MOST_FINDINGS]],
        "causes": [] if judgement is None else [cause_json(each) for each in judgement.diagnosis.causes],
        "notices": _shortened([*left_out, *_notices(run)]),
        "cost": _cost(run),
        "verdicts": dict(counts),
    }


def visible_curves(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`VisibleCurves` of the contract: the curves of one chart of the overview, at the visible steps.

    `from` and `to` are steps of `mode`, and global steps without a mode.
    """
    group = parameters.choice("group", list(_GROUPS))
    mode = parameters.choice("mode", list(ModeKeys.__members__), "")
    names, columns = _GROUPS[group](run.catalog), parameters.columns(_COLUMNS)
    return {"group": group, "curves": curves(run, names, columns, mode=mode, steps=parameters.steps())}


def _losses(catalog: Catalog) -> list[str]:
    scalars = [name for name in catalog.of_kind("scalar") if name != EPOCH_SCALAR and not _RATE.search(name)]
    return [*catalog.of_kind("loss"), *catalog.of_kind("metric"), *scalars]


def _rates(catalog: Catalog) -> list[str]:
    return [name for name in catalog.of_kind("hyperparameter", "scalar") if _RATE.search(name)]


_GROUPS = {"losses": _losses, "learning_rates": _rates}


def _attempts(run: OpenRun) -> Iterator[dict[str, Any]]:
    """`AttemptLine` of the contract for each attempt. An attempt ends when its last worker ends."""
    trial = run.trial
    ends = trial.ends()
    current = max(trial.attempts, default=-1) if trial.status == "running" else None
    for number in trial.attempts:
        entry = trial.attempt_info(number)
        mine = [end for (_, attempt), end in ends.items() if attempt == number and number != current]
        ended = [end.document.get("ended_ns") for end in mine]
        times = [int(time) for time in ended if time is not None and _is_number(time)]
        worst = min(mine, key=lambda end: end.clean, default=None)
        yield {
            "attempt": number,
            "framework": str(entry.document.get("framework") or "") if entry else "",
            "host": entry.host if entry else "",
            "world_size": entry.world_size if entry else 1,
            "started_ns": entry.started_ns if entry else 0,
            "ended_ns": max(times, default=None),
            "clean": worst.clean if worst else None,
            "reason": worst.reason if worst else "",
        }


def _notices(run: OpenRun) -> Iterator[dict[str, str]]:
    """`Notice` of the contract: missing data first, then notes of the hook."""
    trial = run.trial
    for line in missing_lines(trial.missing(), len(trial.modes())):
        yield {"level": "lost", "text": line}
    drops: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for end in trial.ends().values():
        for reason, drop in end.drops.items():
            drops[reason] += drop.tensors
            sizes[reason] += drop.bytes
    for reason in sorted(drops):
        size = human_bytes(sizes[reason])
        yield {
            "level": "lost",
            "text": f"not kept as requested: {how_many(drops[reason], 'tensor')} ({size}): {reason}",
        }
    if run.rules_error:
        yield {"level": "warning", "text": f"the rules cannot judge the newest data: {run.rules_error}"}
    for text in trial.patterns.remarks():
        yield {"level": "warning", "text": text}
    if trial.open_hint:
        yield {"level": "note", "text": trial.open_hint}
    notes = trial.notes()
    if isinstance(notes.get("exception"), str):
        yield {"level": "warning", "text": f"the training ended by {cut(notes['exception'], _LONGEST)}"}
    for text in note_lines(notes):
        yield {"level": "warning" if text.startswith("faults") else "note", "text": text}


def _shortened(notices: list[dict[str, str]]) -> list[dict[str, str]]:
    more = len(notices) - _MOST_NOTICES
    if more <= 0:
        return notices
    return [*notices[:_MOST_NOTICES], {"level": "note", "text": f"{more:,} further notes are not listed"}]


def _is_number(value: object) -> bool:
    """Whether a value of a document is a whole number, and not too large for a time or a size."""
    return type(value) is int and 0 <= value < 1 << 63


def _cost(run: OpenRun) -> dict[str, Any] | None:
    """`Cost` of the contract, from the end files and the times of steps of all workers and attempts.

    The end files have only the time of captures, and no other time of the hook.
    """
    totals: Counter[str] = Counter()
    for end in run.trial.ends().values():
        found = end.document.get("totals")
        if isinstance(found, dict):
            totals.update({name: value for name, value in found.items() if _is_number(value)})
    if not totals:
        return None
    times = run.trial.steps_time(intervals=True)
    timed = times.num_rows > 0
    return {
        "capture_seconds": _seconds(times, "capture_ns") if timed else totals["capture_ns"] / 1e9,
        "training_seconds": _seconds(times, "duration_ns") if timed else None,
        "captured_tensors": totals["captured_tensors"],
        "captured_bytes": totals["captured_bytes"],
        "payload_bytes": totals["payload_bytes"],
        "rows": totals["rows"],
    }


def _seconds(times: pa.Table, name: str) -> float:
    return float(numbers(times, name).sum()) / 1e9
