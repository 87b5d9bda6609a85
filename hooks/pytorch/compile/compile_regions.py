"""Regions of compiled code in which no call of tdcore can be inserted.

torch.compile gives the body of cond(), checkpoint(), while_loop() and similar operators a graph of its own,
which must not change anything outside of it; vmap() and grad() have no rule for an unknown operator. A module
that is called there runs as if it had no hook. collections.json lists it under "not_in_compiled_code" with
the operator. This is detected while code is compiled, so the note exists from the first step on that would
have captured the module.

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

_RUNS_AGAIN = "tag_activation_checkpoint"  # its body can have a call of tdcore; backward repeats it
_NO_REASON = "an operator with a body"
_transforms: Callable[[], Any] | None = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None
)


class UncapturedModules:
    """Notes about such modules of one model. notes: the notes for collections.json."""

    def __init__(self, notes: dict[str, Any]) -> None:
        self._notes = notes

    def note(self, name: str, operator: str) -> None:
        """Note that a module is called in the body of an operator."""
        why = f"called inside of {operator} in code compiled by torch.compile, where nothing can be captured"
        self._notes["not_in_compiled_code"] = self._notes.get("not_in_compiled_code", {}) | {name: why}


def can_insert_call(twice: bool = False) -> bool:
    """Return whether code that is compiled now can get a call. twice: also if the code runs again."""
    try:
        around = None if is_exporting() else _enclosing_operator()
    except Exception:
        return False  # another version of the compiler
    return around == "" or (twice and around == _RUNS_AGAIN)


def report_uncaptured(label: str) -> bool:
    """Notify the observer, while code is compiled where no call can be inserted. label: its number.

    As text, since that is a constant for the compiler; numbers may not be.
    """
    with suppress(Exception):
        around = None if is_exporting() else _enclosing_operator()
        observer = observer_of(int(label))
        if observer is not None and around is not None:
            observer.report_uncaptured(around.removeprefix("tag_activation_") or _NO_REASON)
    return False


# The compiler calls these while it traces, and treats the results as constants.
can_insert_call._dynamo_marked_constant = True  # type: ignore[attr-defined]
report_uncaptured._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _enclosing_operator() -> str | None:
    """Return the name of the operator in whose body the compiler is; empty outside of any.

    None: the graph is exported, so no call may be inserted.
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
