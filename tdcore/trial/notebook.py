"""A run and a tensor as HTML for notebooks. Functions without state; the thread of the Trial."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from tdcore.modes import ModeKeys
from tdcore.sinks import shown_place
from tdcore.text.html import Html, card, escaped, facts, history, joined, listing
from tdcore.text.short_repr import how_many
from tdcore.text.step_text import step_text
from tdcore.trial.missing_text import missing_lines

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.trial.tensor import Tensor
    from tdcore.trial.trial import Trial

__all__ = ["tensor_html", "trial_html"]

_MOST = 6  # losses, findings, missing data
_BAD = ("nan_count", "pos_inf_count", "neg_inf_count")
_COLUMNS = ("name", "mode", "mode_step", "step", "mean", "l1", "l2", "min", "max", "count", *_BAD)


def trial_html(trial: Trial, kinds: dict[str, str]) -> Html:
    """A run: status, steps, tensors, losses, findings and missing data. kinds: kind of each tensor."""
    numbers = Counter(kinds.values())
    missing = list(missing_lines(trial.missing(), len(trial.modes())))
    steps = [(mode.name, len(trial.steps(mode=mode, show_incomplete_steps=True))) for mode in ModeKeys]
    rows = [
        ("folder", escaped(shown_place(trial.path))),
        ("status", escaped(trial.status)),
        ("saved steps", escaped(", ".join(f"{number:,} {mode}" for mode, number in steps[:3] if number))),
        ("tensors", escaped(", ".join(f"{number:,} {kind}" for kind, number in numbers.most_common()))),
        ("workers", _workers(trial)),
        ("missing data", joined([escaped(each) for each in missing[:_MOST]], "; ")),
        *_losses(trial),
    ]
    title = joined([Html("run"), escaped(trial.name)])
    return card(title, facts(rows), _findings(trial.findings()))


def tensor_html(tensor: Tensor) -> Html:
    """A tensor: kind, dtype, shape, steps, and for each mode its newest statistics and its history."""
    table = tensor.stats()
    if not table.num_rows:
        return card(joined([Html("tensor"), escaped(tensor.name)]), facts([("saved", Html("nothing"))]))
    last = table.slice(table.num_rows - 1).to_pylist()[0]
    rows = [
        ("kind", escaped(", ".join(filter(None, [last["kind"], last["origin"]])))),
        ("values", escaped(f"{last['dtype'] or ''} {_shape(last)}".strip())),
        ("steps", escaped(how_many(len(set(table.column("step").to_pylist())), "saved step"))),
    ]
    return card(
        joined([Html("tensor"), escaped(tensor.name)]),
        facts(rows),
        listing(
            ["mode", "newest", "mean |x|", "L2", "min", "max", "NaN, Inf", "history of mean |x|"],
            [_mode_row(mode, part) for mode, part in _by_mode(table)],
        ),
    )


def _mode_row(mode: str, rows: list[dict[str, Any]]) -> list[Html]:
    last = rows[-1]
    at = step_text(last["step"], mode, last["mode_step"])
    if last["count"] is None or not last["count"] - sum(last[each] for each in _BAD):
        because = f" ({last['reason']})" if last["reason"] else ""
        bad = "" if last["count"] is None else f"{sum(last[each] for each in _BAD):,}"
        numbers = [escaped("-" if bad else f"{last['status']}{because}"), *[Html("")] * 3, escaped(bad)]
    else:
        cells = (_magnitude(last), last["l2"], last["min"], last["max"])
        numbers = [
            *(escaped(_number(each)) for each in cells),
            escaped(f"{sum(last[each] for each in _BAD):,}"),
        ]
    return [escaped(mode), escaped(at), *numbers, history([_magnitude(row) for row in rows])]


def _by_mode(table: pa.Table) -> list[tuple[str, list[dict[str, Any]]]]:
    wanted = table.select([*_COLUMNS, "status", "reason"]).to_pylist()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in wanted:
        found.setdefault(row["mode"], []).append(row)
    return list(found.items())


def _findings(findings: list[dict[str, Any]]) -> Html:
    """One line for each rule, with its first finding."""
    of_rule: dict[str, list[dict[str, Any]]] = {}
    for each in findings:
        of_rule.setdefault(str(each.get("rule", "")), []).append(each)
    rows = []
    for rule, lines in list(of_rule.items())[:_MOST]:
        first = min(lines, key=lambda each: each["step"] if isinstance(each.get("step"), int) else 0)
        tensors = {str(each.get("tensor", "")) for each in lines}
        cells = (
            rule,
            f"{len(tensors):,}",
            _step_of(first),
            first.get("tensor") or "the run",
            first.get("why", ""),
        )
        rows.append([escaped(cell) for cell in cells])
    if not rows:
        return Html("")
    return listing(
        ["rule", "tensors", "first step", "first tensor", "finding"], rows, more=len(of_rule) - len(rows)
    )


def _losses(trial: Trial) -> list[tuple[str, Html]]:
    """Name and mode of each loss, with its newest value and its history."""
    table = trial.stats(kinds="loss", columns=[*_COLUMNS])
    found: dict[tuple[str, str], list[float | None]] = {}
    for row in table.to_pylist():
        bad = row["count"] is not None and sum(row[each] for each in _BAD)
        found.setdefault((row["name"], row["mode"]), []).append(math.nan if bad else row["mean"])
    return [
        (f"{name}, {mode}", joined([history(values), escaped(_number(values[-1]))]))
        for (name, mode), values in list(found.items())[:_MOST]
    ]


def _workers(trial: Trial) -> Html:
    workers, attempts = trial.workers(), trial.attempts
    several = f" in {how_many(len(attempts), 'attempt')}" if len(attempts) > 1 else ""
    return escaped(f"{len(workers):,}{several}") if len(workers) > 1 or several else Html("")


def _step_of(finding: dict[str, Any]) -> str:
    step, mode, of_mode = (finding.get(each) for each in ("step", "mode", "mode_step"))
    if not isinstance(step, int):
        return ""
    return step_text(step, str(mode or ""), of_mode if isinstance(of_mode, int) else None)


def _magnitude(row: dict[str, Any]) -> float | None:
    """The mean magnitude of the finite elements; NaN if there are elements that are not finite."""
    if row["count"] is None or row["l1"] is None:
        return None
    return math.nan if sum(row[each] for each in _BAD) else row["l1"] / max(row["count"], 1)


def _shape(row: dict[str, Any]) -> str:
    shape = row["shape"]
    return "" if shape is None else "x".join(map(str, shape)) or "scalar"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
