"""Absence: the reason why a tensor has no value at a step, in words.

Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tdcore.errors import TensorUnavailableForStep
from tdcore.modes import ModeKeys
from tdcore.trial.index import Rows
from tdcore.trial.run_notes import absent_text, why_absent
from tdcore.trial.step_state import StepState
from tdcore.trial.tensor_history import TensorHistory

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader

__all__ = ["why_no_value"]

_MOST_STEPS = 10  # maximum number of steps in a reason


def why_no_value(
    reader: Reader,
    notes: Mapping[str, Any],
    name: str,
    step: int,
    mode: ModeKeys = ModeKeys.GLOBAL,
    worker: str | None = None,
) -> str:
    """The reason why the tensor has no value at the step; empty if it has one.

    Args:
        reader: The run, as it was last read.
        notes: Notes of the hook.
        name: Name of the tensor.
        step: Step of the mode; a global step with ModeKeys.GLOBAL.
        mode: Mode of the step.
        worker: Name of the worker; None: the first worker that saved tensors.

    Raises:
        InvalidWorker: The run has no worker of this name.
    """
    history = TensorHistory(reader, name)
    if worker is not None:
        history.check_worker(worker)
    if len(_of_worker(reader, history.rows_at(step, mode), worker)) == 0:
        return why_absent(notes, name) or _not_saved(history, step, mode, worker)
    rows = history.capture(step, mode, worker, None)
    try:
        history.check_present(rows, step)
    except TensorUnavailableForStep as error:
        kind, text = history.why_unavailable(rows)
        if kind == "absent":
            (reason, *_) = reader.index.wide("reason", rows[:1]).to_pylist()
            return absent_text(reason) if reason else why_absent(notes, name) or f"it {text}"
        hint = ": its statistics were saved" if error.has_statistics else ""
        return f"it {text}{hint}"
    return ""


def _of_worker(reader: Reader, rows: Rows, worker: str | None) -> Rows:
    if worker is None:
        return rows
    code = reader.index.dictionaries["worker"].code(worker)
    found: Rows = rows[reader.index.column("worker")[rows] == code]
    return found


def _not_saved(history: TensorHistory, step: int, mode: ModeKeys, worker: str | None) -> str:
    reader = history.reader
    by = f" by {worker}" if worker else ""
    text = f"not saved{by} at this step"
    if reader.state(step, mode) is StepState.NOT_YET_AVAILABLE:
        text += f", which is not complete yet (last: {reader.last_step(mode)})"
    steps = reader.steps_of(_of_worker(reader, reader.saved(history.rows()), worker), mode)
    if not steps:
        return f"{text}, nor at any other step"
    near = sorted(sorted(steps, key=lambda each: abs(each - step))[:_MOST_STEPS])
    which = (
        "it was saved at"
        if len(near) == len(steps)
        else f"it was saved at {len(steps):,} steps, and the nearest are"
    )
    return f"{text}; {which} {', '.join(map(str, near))}"
