"""Reader of the notes of a hook: as lines of text, and as the reason why a tensor was not saved.

The notes are in collections.json, for each attempt, by heading: "never_called", "not_tapped" and
"not_in_compiled_code" (modules with the reason), "frozen" and "not_owned" (parameters), "aliases" (tied
parameters), "recomputed", "faults". Threads: any (functions without state).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tdcore.format.layout import LEFT_OUT_NOTE
from tdcore.text.quoting import quoted

__all__ = ["absent_text", "note_lines", "why_absent"]

_MODULE_TENSOR = re.compile(r"(?:output_gradient/)?(?P<module>.+?)_(?:output|input)_[^/]*")
_MODULE_HEADINGS = ("not_in_compiled_code", "never_called", "not_tapped")
_MAX_CHARS = 400  # per entry
_SHOWN = 4  # number of shown entries of a long list
_SHOWN_ELSEWHERE = {"exception", LEFT_OUT_NOTE}  # with the attempt, and with missing data
_SENTENCES = {
    "not_captured",
    "not_recorded",
    "capture_requests",
    "old_framework",
    "ring_sizes",
    "slow_sink",
}  # one line for each entry
_ABSENT = {
    "no_backward": "no backward reached it in this step",
    "not_stepped": "its optimizer did not step in this step",
    "cleared": "its gradient was cleared before it was used",
    "accumulated": "a later step has the gradient: no optimizer stepped before the next saved step",
    "scaler_skipped": "the gradient scaler skipped the optimizer's step",
    "unknown": "the hook gave a reason that this version of tdcore does not define",
}


def absent_text(reason: str | None) -> str:
    """Text for the reason of a row with status "absent"."""
    if reason is None:
        return "a parameter without gradient, for example"
    return _ABSENT.get(reason, reason)


def why_absent(notes: Mapping[str, Any], tensor_name: str) -> str:
    """Why the tensor was never saved, from the notes of the hook; empty if they have no reason.

    The reason for a module applies to its submodules too.
    """
    match = _MODULE_TENSOR.fullmatch(tensor_name)
    for module in _with_parents(match["module"]) if match is not None else ():
        for heading in _MODULE_HEADINGS:
            reasons = notes.get(heading)
            if isinstance(reasons, Mapping) and module in reasons:
                return f"{module}: {reasons[module]}"
    parameter = tensor_name.removeprefix("gradient/")
    if parameter != tensor_name:
        if _is_listed(notes, "frozen", parameter):
            return f"{parameter} is frozen, so it has no gradient"
        if _is_listed(notes, "not_owned", parameter):
            return f"no optimizer holds {parameter}, so it has a gradient row only at steps with a gradient"
    aliases = notes.get("aliases")
    if isinstance(aliases, Mapping):
        for name in aliases:
            if _is_listed(aliases, name, parameter):
                return f"{parameter} is tied to {name}, under which it was saved"
    return ""


def _with_parents(module: str) -> Iterator[str]:
    """The path of a module, then the paths of its parents, from the inside out."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def _is_listed(lists: Mapping[str, Any], heading: str, name: str) -> bool:
    listed = lists.get(heading)
    return isinstance(listed, list) and name in listed


def note_lines(notes: Mapping[str, Any]) -> Iterator[str]:
    """One or more lines for each heading. Long lists are shortened; Trial.notes() has all entries."""
    for heading, note in sorted(notes.items()):
        what = quoted(heading.replace("_", " "), _MAX_CHARS)
        entries = _requests(note) if heading == "capture_requests" else _entries(note)
        if heading in _SHOWN_ELSEWHERE or not entries:
            continue
        if heading in _SENTENCES:
            yield from (f"{what}: {entry}" for entry in entries)
        else:
            more = [f"... ({len(entries):,} in all)"] if len(entries) > _SHOWN else []
            yield f"{what}: {', '.join([*entries[:_SHOWN], *more])}"


def _requests(note: Any) -> list[str]:
    """Requests of readers for tensors or profiles, in words."""
    return [
        quoted(_request(one) if isinstance(one, Mapping) else one, _MAX_CHARS)
        for one in (note if isinstance(note, list) else [note])
    ]


def _request(note: Mapping[str, Any]) -> str:
    number, by, reason = (note.get(name, "") for name in ("number", "by", "reason"))
    of = f"request {number}{f' of {by}' if by else ''}"
    for outcome in ("ignored", "skipped"):
        if note.get(outcome):
            return f"{of} was {outcome}: {note[outcome]}"
    because = f" ({reason})" if reason else ""
    if note.get("kind") == "profile":
        return f"{of}: a profile of {_number_of(note.get('steps'), 'step')}{because}"
    tensors, steps = note.get("tensors"), note.get("steps")
    names = [str(name) for name in tensors] if isinstance(tensors, list) else []
    listed = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
    spans = [
        f"{mode} steps {span[0]} to {span[1] - 1}"
        for mode, span in (steps.items() if isinstance(steps, Mapping) else ())
        if isinstance(span, list) and len(span) == 2 and all(type(each) is int for each in span)
    ]
    what = "statistics" if note.get("level") == "statistics" else "values"
    at = f" at {', '.join(spans)}" if spans else ""
    return f"{of}: {what} of {_number_of(len(names), 'tensor')} ({listed}){at}{because}"


def _number_of(count: Any, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _entries(note: Any) -> list[str]:
    if isinstance(note, Mapping):
        return [quoted(_entry(name, reason), _MAX_CHARS) for name, reason in note.items()]
    return [quoted(one, _MAX_CHARS) for one in (note if isinstance(note, list) else [note])]


def _entry(name: str, reason: Any) -> str:
    text = ", ".join(map(str, reason)) if isinstance(reason, list) else reason
    return f"{name} ({text})" if isinstance(text, (str, int)) else name
