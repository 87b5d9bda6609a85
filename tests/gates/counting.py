"""Counts instructions and calls of the hooks' Python code; the counts are equal on all machines.

Only code in hooks/ counts. Native code (the capture itself, loops of itertools) does not; benchmarks measure
its cost. Threads: before Python 3.12 only the counting thread is counted. The garbage collector is off,
because each of its pauses calls a function in hooks/ at a random moment.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import tdcore.hooks.base
from tests.freezing import codes_of_functions

__all__ = ["HOOKS", "Counting"]

HOOKS = Path(tdcore.hooks.base.__file__).resolve().parent
_TOOL = 4  # an id that sys.monitoring does not reserve


class Counting:
    """Counts while the context is active. instructions, calls: by name of the function."""

    def __init__(self) -> None:
        self.instructions: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._names = {code: f"{path.name}:{code.co_firstlineno} {code.co_name}" for code, path in _codes()}
        self._before: Any = None
        self._collects = False

    def __enter__(self) -> Counting:
        self._collects = gc.isenabled()
        gc.disable()
        if sys.version_info >= (3, 12):
            self._monitor(sys.monitoring)
        else:
            self._before = sys.gettrace()
            sys.settrace(self._enter_frame)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.version_info >= (3, 12):
            for code in self._names:
                sys.monitoring.set_local_events(_TOOL, code, 0)
            sys.monitoring.free_tool_id(_TOOL)
        else:
            sys.settrace(self._before)
        if self._collects:
            gc.enable()

    def where(self, most: int = 12) -> str:
        """Return the functions with the largest counts, as a table."""
        lines = [f"{'instructions':>12} {'calls':>7}  function"]
        for name, count in self.instructions.most_common(most):
            lines.append(f"{count:12} {self.calls[name]:7}  {name}")
        return "\n".join(lines)

    def _enter_frame(self, frame: FrameType, event: str, arg: object) -> Any:
        name = self._names.get(frame.f_code)
        if name is None:
            return None
        self.calls[name] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True

        def on_event(frame: FrameType, event: str, arg: object) -> Any:
            if event == "opcode":
                self.instructions[name] += 1
            return on_event

        return on_event

    def _monitor(self, monitoring: Any) -> None:
        """Count with sys.monitoring: since Python 3.12 opcodes of a running frame cannot be traced."""

        def on_start(code: CodeType, offset: int) -> None:
            self.calls[self._names[code]] += 1

        def on_instruction(code: CodeType, offset: int) -> None:
            self.instructions[self._names[code]] += 1

        events = monitoring.events
        monitoring.use_tool_id(_TOOL, "tdcore gates")
        monitoring.register_callback(_TOOL, events.PY_START, on_start)
        monitoring.register_callback(_TOOL, events.INSTRUCTION, on_instruction)
        for code in self._names:
            monitoring.set_local_events(_TOOL, code, events.PY_START | events.INSTRUCTION)


def _codes() -> Iterator[tuple[CodeType, Path]]:
    """Return the code objects of all functions in hooks/, including nested ones."""
    pending = codes_of_functions()
    seen: set[CodeType] = set()
    while pending:
        code = pending.pop()
        if not _is_ours(code.co_filename) or code in seen:
            continue
        seen.add(code)
        yield code, Path(code.co_filename)
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


@cache
def _is_ours(file: str) -> bool:
    path = Path(file)
    return HOOKS.name in path.parts and HOOKS in path.resolve().parents
