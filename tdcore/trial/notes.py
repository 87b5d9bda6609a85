"""Notes: what a hook said about a run beside its collections, and why a tensor is not there.

In collections.json, per attempt: "never_called", "not_tapped" and "not_in_compiled_code" (modules with the
reason), "frozen", "aliases" (tied parameters), "recomputed", "faults", ... Threads: functions without state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["why_absent"]

_OF_A_MODULE = re.compile(r"(?:output_gradient/)?(?P<module>.+?)_(?:output|input)_[^/]*")


def why_absent(notes: Mapping[str, Any], tensor_name: str) -> str:
    """The reason why nothing of the tensor was saved, as the hook gave it; empty when it gave none."""
    match = _OF_A_MODULE.fullmatch(tensor_name)
    if match is not None:
        for heading in ("not_in_compiled_code", "never_called", "not_tapped"):
            reasons = notes.get(heading)
            if isinstance(reasons, Mapping) and match["module"] in reasons:
                return f"{match['module']}: {reasons[match['module']]}"
    parameter = tensor_name.removeprefix("gradient/")
    frozen, aliases = notes.get("frozen"), notes.get("aliases")
    if parameter != tensor_name and isinstance(frozen, list) and parameter in frozen:
        return f"{parameter} is frozen, so it has no gradient"
    if isinstance(aliases, Mapping):
        for name, others in aliases.items():
            if isinstance(others, list) and parameter in others:
                return f"{parameter} is tied to {name}, under which it was saved"
    return ""
