"""markdown_report: a summary of a run for a pull request or a chat. The thread of the run."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.rules.finding_groups import grouped
from tdcore.text.numbers import line_of_blocks, number
from tdcore.text.quoting import quoted
from tdcore.text.short_repr import how_many
from tdcore.view.answers import answer
from tdcore.view.answers.curves import ends_of

if TYPE_CHECKING:
    from tdcore.rules.finding_groups import FindingGroup
    from tdcore.view.answers import OpenRun

__all__ = ["markdown_report"]

# Characters with a meaning in Markdown, HTML or links; not a point before a digit, or a dash within text.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#!|~&$:]|\.(?!\d)|^[-+\d]|(?<=^\d)\.)")
_LONGEST = 300
_MOST_FINDINGS = 20
_MOST_LOSSES = 20
_MOST_TENSORS = 3
_WIDTH = 24  # of a line of blocks
_DTYPES = {"f32": "<f4", "f64": "<f8", "i32": "<i4", "u8": "u1"}


def markdown_report(run: OpenRun) -> str:
    """The report as Markdown. run: with its verdicts."""
    overview = answer(run, "overview", {"columns": str(_WIDTH * 4)})
    verdicts = answer(run, "rules", {})["verdicts"]
    parts = [
        _heading(overview),
        _causes(overview),
        _findings(run),
        _losses(run, overview),
        _notices(overview),
        _rules(verdicts),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _heading(overview: Mapping[str, Any]) -> list[str]:
    line = overview["run"]
    steps = ", ".join(f"{count:,} {_text(mode)}" for mode, count in line["steps"].items())
    started = line["started_ns"] / 1e9
    facts = [
        f"**{line['status']}**",
        f"{steps} steps saved" if steps else "no steps saved",
        how_many(line["workers"], "worker"),
        how_many(line["findings"], "finding"),
    ]
    if 0 < started < 2**33:
        facts.append(f"started {datetime.fromtimestamp(started, timezone.utc):%Y-%m-%d %H:%M} UTC")
    return [f"## Training {_code(line['name'])}", "", ", ".join(facts)]


def _causes(overview: Mapping[str, Any]) -> list[str]:
    lines = ["### Causes", ""] if overview["causes"] else []
    for cause in overview["causes"]:
        lines += [
            f"- **{_text(cause['cause'])}** ({_text(cause['confidence'])}), from {_text(cause['since'])} on",
            f"  - Seen: {_text(cause['seen'])}",
            f"  - Change: {_text(cause['change'])}",
            f"  - Check: {_text(cause['check'])}",
        ]
    return lines


def _findings(run: OpenRun) -> list[str]:
    groups = grouped(run.findings)
    if not groups:
        return []
    lines = ["### Findings", "", "| rule | first | tensors | why | do |", "|---|---|---|---|---|"]
    lines += [_finding(group) for group in groups[:_MOST_FINDINGS]]
    more = len(groups) - _MOST_FINDINGS
    return [*lines, "", f"{more:,} further groups of findings are not listed."] if more > 0 else lines


def _finding(group: FindingGroup) -> str:
    names = [name for name in group.tensors if name]
    shown = ", ".join(map(_code, names[:_MOST_TENSORS]))
    more = f" and {len(names) - _MOST_TENSORS:,} more" if len(names) > _MOST_TENSORS else ""
    first = group.first
    rule = f"{_text(first.rule)} ({_text(first.code)})"
    cells = [rule, _text(first.at), f"{shown}{more}", _text(first.why), _text(first.do)]
    return f"| {' | '.join(cells)} |"


def _losses(run: OpenRun, overview: Mapping[str, Any]) -> list[str]:
    curves = overview["losses"][:_MOST_LOSSES]
    if not curves:
        return []
    lines = ["### Losses and metrics", "", "| name | mode | first | last | smallest | history |"]
    lines.append("|---|---|---:|---:|---:|---|")
    for curve in curves:
        means = _numbers(curve["points"]["mean"])
        ends = ends_of(run, curve["name"], curve["mode"])
        first, last, least = ("NaN",) * 3 if ends is None else (number(each, 3) for each in ends)
        bad = int(_numbers(curve["points"]["bad"]).sum())
        history = line_of_blocks(means.tolist(), _WIDTH) + (f" {bad:,} x NaN or infinite" if bad else "")
        cells = [_code(curve["name"]), curve["mode"], first, last, least, history]
        lines.append(f"| {' | '.join(cells)} |")
    more = len(overview["losses"]) - len(curves)
    return [*lines, "", f"{more:,} further curves are not listed."] if more > 0 else lines


def _notices(overview: Mapping[str, Any]) -> list[str]:
    everything = overview["run"]["rows"] == 0  # a note has the reason why nothing was saved
    found = [each for each in overview["notices"] if everything or each["level"] != "note"]
    return (
        ["### Missing data and warnings", "", *(f"- {_text(each['text'])}" for each in found)]
        if found
        else []
    )


def _rules(verdicts: list[dict[str, Any]]) -> list[str]:
    """The number of verdicts, and a folded list of the rules that could not judge the run."""
    counts: dict[str, int] = {}
    for each in verdicts:
        counts[each["status"]] = counts.get(each["status"], 0) + 1
    if not counts:
        return []
    summary = f"Rules: {', '.join(f'{status}: {count}' for status, count in counts.items())}"
    failed = [
        f"- {_text(each['rule'])}: {_text(each['text'])}" for each in verdicts if each["status"] == "error"
    ]
    lacking = [_text(each["rule"]) for each in verdicts if each["status"] == "not evaluable"]
    if not failed and not lacking:
        return [summary]
    listed = [f"- Not evaluable, because the run lacks data: {', '.join(lacking)}"] if lacking else []
    return [f"<details><summary>{summary}</summary>", "", *failed, *listed, "", "</details>"]


def _numbers(packed: Mapping[str, str]) -> Any:
    return np.frombuffer(b64decode(packed["base64"]), _DTYPES[packed["type"]])


def _text(text: str) -> str:
    """Text from a run without any effect in Markdown or HTML, on one line."""
    return _SPECIAL.sub(r"\\\1", quoted(text, _LONGEST)).replace("@", "@\u200b")


def _code(text: str) -> str:
    """A name from a run as code."""
    plain = quoted(text, _LONGEST).replace("|", "\\|")
    marks = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    space = " " if plain.startswith("`") or plain.endswith("`") or not plain else ""
    return f"{marks}{space}{plain}{space}{marks}"
