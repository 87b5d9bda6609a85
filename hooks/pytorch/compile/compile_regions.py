"""Bodies of operators: where compiled code can hold no call of ours, and what is said about it instead.

torch.compile gives the body of cond(), checkpoint(), while_loop() and their like a graph of its own, which
may change nothing outside of it; and vmap() and grad() have no rule for an operator that they do not know.
A module that is called there runs as if it carried nothing. collections.json names it under
"not_in_compiled_code", with the operator: this is asked while code is compiled, so it is there from the
first step on that would have captured it.

Threads: those that compile, which is where a model's forward runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from tdcore.hooks.pytorch.compile.operator import observer_of
from tdcore.hooks.pytorch.compile.tracing import is_exporting

__all__ = ["UncapturedModules", "can_insert_call", "report_uncaptured"]

_RUNS_AGAIN = "tag_activation_checkpoint"  # its body may call us; it does so once more in backward
_NO_REASON = "an operator with a body"
_transforms: Callable[[], Any] | None = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None
)


class UncapturedModules:
    """What one model says about such modules. notes: of collections.json."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self._notes = notes

    def note(self, name: str, operator: str) -> None:
        """A module is called in such a body."""
        why = f"called inside of {operator} in code compiled by torch.compile, where nothing can be captured"
        self._notes["not_in_compiled_code"] = self._notes.get("not_in_compiled_code", {}) | {name: why}


def can_insert_call(twice: bool = False) -> bool:
    """Asked while code is compiled: whether a call of ours may stand here. twice: also if it runs again."""
    try:
        around = None if is_exporting() else _enclosing_operator()
    except Exception:
        return False  # a compiler that is not as we know it
    return around == "" or (twice and around == _RUNS_AGAIN)


def report_uncaptured(label: str) -> bool:
    """Asked while code is compiled, where it is not traceable(): tells the observer. label: its number.

    As text, since that is a constant for the compiler; numbers may not be.
    """
    with suppress(Exception):
        around = None if is_exporting() else _enclosing_operator()
        observer = observer_of(int(label))
        if observer is not None and around is not None:
            observer.report_uncaptured(around.removeprefix("tag_activation_") or _NO_REASON)
    return False


# The compiler calls them while it traces, and takes the answers for constants.
can_insert_call._dynamo_marked_constant = True  # type: ignore[attr-defined]
report_uncaptured._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _enclosing_operator() -> str | None:
    """The operator in whose body the compiler is, by name; empty outside of any.

    None: a graph is made that is to leave the process, where no call of ours may stand.
    """
    if _transforms is not None and _transforms() is not None:
        return "a function transform (vmap, grad, ...)"
    translator = getattr(sys.modules.get("torch._dynamo.symbolic_convert"), "InstructionTranslator", None)
    try:
        graph = translator.current_tx().output if translator is not None else None
    except AttributeError:
        return None  # the compiler does not run: torch.export calls the model itself
    if getattr(graph, "export", False):
        return None
    tracer = getattr(graph, "current_tracer", None)
    if getattr(tracer, "parent", None) is None:
        return ""
    target = getattr(tracer, "source_target", None)
    return str(getattr(target, "_name", None) or target or _NO_REASON)
