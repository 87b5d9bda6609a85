"""Answer `tensors`: the tensors of a run, in the order of the model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tdcore.view.answers.names import matching

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

PARAMETERS = ("pattern",)


def answer(run: OpenRun, parameters: Parameters) -> dict[str, Any]:
    """`Tensors` of the contract."""
    tensors, saved = run.catalog.tensors, run.saved_steps
    findings = Counter(each.tensor for each in run.findings)
    return {
        "tensors": [
            {
                **tensors[name].to_json(),
                "steps": saved[name].steps,
                "has_values": saved[name].has_values,
                "findings": findings[name],
            }
            for name in matching(tensors, parameters.text("pattern"))
        ]
    }
