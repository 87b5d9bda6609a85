"""Notes of a hook on a run: why a tensor was not saved, or had no value.

Headings in collections.json, per attempt: "never_called", "not_tapped" and "not_in_compiled_code" (modules
with the reason), "frozen" and "not_owned" (parameters), "aliases" (tied parameters), "recomputed", "faults".
Threads: functions without state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["absent_text", "why_absent"]

_OF_A_MODULE = re.compile(r"(?:output_gradient/)?(?P<module>.+?)_(?:output|input)_[^/]*")
_OF_MODULES = ("not_in_compiled_code", "never_called", "not_tapped")
_ABSENT = {
    "no_backward": "no backward reached it in this step",
    "not_stepped": "its optimizer did not step in this step",
    "cleared": "its gradient was cleared before it was used",
    "accumulated": "a later step has it: no optimizer stepped before the next saved step",
    "scaler_skipped": "the gradient scaler held the optimizer back",
    "unknown": "the hook gave a reason that this version of tdcore does not define",
}


def absent_text(reason: str | None) -> str:
    """The reason of a row with status "absent" in words."""
    if reason is None:
        return "a parameter without gradient, for example"
    return _ABSENT.get(reason, reason)


def why_absent(notes: Mapping[str, Any], tensor_name: str) -> str:
    """The reason why nothing of the tensor was saved, from the notes of the hook; empty when they have none.

    The reason of a module counts for the modules below it.
    """
    match = _OF_A_MODULE.fullmatch(tensor_name)
    for module in _upwards(match["module"]) if match is not None else ():
        for heading in _OF_MODULES:
            reasons = notes.get(heading)
            if isinstance(reasons, Mapping) and module in reasons:
                return f"{module}: {reasons[module]}"
    parameter = tensor_name.removeprefix("gradient/")
    if parameter != tensor_name:
        if _is_listed(notes, "frozen", parameter):
            return f"{parameter} is frozen, so it has no gradient"
        if _is_listed(notes, "not_owned", parameter):
            return f"no optimizer holds {parameter}, so it has a gradient row only where it has a gradient"
    aliases = notes.get("aliases")
    if isinstance(aliases, Mapping):
        for name in aliases:
            if _is_listed(aliases, name, parameter):
                return f"{parameter} is tied to {name}, under which it was saved"
    return ""


def _upwards(module: str) -> Iterator[str]:
    """The path of a module, then the paths of the modules that hold it, from the inside out."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def _is_listed(lists: Mapping[str, Any], heading: str, name: str) -> bool:
    listed = lists.get(heading)
    return isinstance(listed, list) and name in listed
