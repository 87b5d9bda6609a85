"""Regions of compiled code in which no call of tdcore can be inserted.

torch.compile makes a separate graph of the body of cond(), checkpoint(), while_loop() and similar operators,
and this graph must not change anything outside of it; vmap() and grad() have no rule for an unknown operator.
A module that is called there runs as if it had no hook. collections.json lists the module under
"not_in_compiled_code" with the operator. The call is detected while code is compiled, so the note exists from
the first step on that would have captured the module.

Threads: the threads that compile code; they run the model's forward.
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

_RUNS_AGAIN = "tag_activation_checkpoint"  # its body can contain a call of tdcore; backward repeats the body
_NO_REASON = "an operator with a body"
_transforms: Callable[[], Any] | None = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None
)


class UncapturedModules:
    """Notes about modules in such regions of one model. notes: the notes for collections.json."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self._notes = notes

    def note(self, name: str, operator: str) -> None:
        """Note that a module is called in the body of an operator."""
        why = f"called inside {operator} in code compiled by torch.compile, where capture is not possible"
        self._notes["not_in_compiled_code"] = self._notes.get("not_in_compiled_code", {}) | {name: why}


def can_insert_call(twice: bool = False) -> bool:
    """Return whether a call can be inserted into code that is being compiled.

    twice: Also if backward runs the code again.
    """
    try:
        around = None if is_exporting() else _enclosing_operator()
    except Exception:
        return False  # an unknown version of the compiler
    return around == "" or (twice and around == _RUNS_AGAIN)


def report_uncaptured(label: str) -> bool:
    """Notify an observer while code is compiled in which no call can be inserted.

    label: Number of the observer as text, because text is a constant for the compiler and a number may not
    be.
    """
    with suppress(Exception):
        around = None if is_exporting() else _enclosing_operator()
        observer = observer_of(int(label))
        if observer is not None and around is not None:
            observer.report_uncaptured(around.removeprefix("tag_activation_") or _NO_REASON)
    return False


# The compiler calls these functions while it traces, and treats the results as constants.
can_insert_call._dynamo_marked_constant = True  # type: ignore[attr-defined]
report_uncaptured._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _enclosing_operator() -> str | None:
    """Return the name of the operator whose body the compiler traces; empty outside of operators.

    None means that the graph is exported, so no call may be inserted.
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
