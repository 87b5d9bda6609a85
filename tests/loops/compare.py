"""Compares a run on disk with the rows of a reference recorder, and a loop with and without a hook.

Differences are lines of text. Their first word is the kind: "missing", "extra", "wrong", "twice" (two rows of
one call), "absent" (without a reason), "training" (a loss or weight that differs, or an error), "time" (of
a step).
Threads: pure functions of their arguments and of the files of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tdcore as td
from tdcore.format.step_times import PHASES
from tdcore.modes import ModeKeys
from tdcore.trial import no_refresh
from tests.loops.interpreter import Outcome
from tests.loops.reference import CLEARED, NO_BACKWARD, NOT_STEPPED, SKIPPED, Expected, Key

__all__ = ["KINDS", "Result", "compare_rows", "compare_step_times", "compare_training"]

KINDS = frozenset({"weight", "bias", "gradient", "input", "output", "loss"})

# Reasons in the column `reason`, and for each the reasons of the reference that it may stand for. A reason
# that is not in this table is always accepted.
REASONS: dict[str, frozenset[str]] = {
    "no_backward": frozenset({NO_BACKWARD}),
    "not_stepped": frozenset({NOT_STEPPED}),
    "cleared": frozenset({CLEARED}),
    "scaler_skipped": frozenset({SKIPPED}),
}

_OF_THE_FIRST = -1  # the step in keys of workers other than the first


@dataclass
class Result:
    """Differences of one loop, and the number of rows that were compared."""

    differences: list[str] = field(default_factory=list)
    rows: int = 0

    def count(self, kind: str) -> int:
        """Return the number of differences of this kind."""
        return sum(line.startswith(f"{kind}:") for line in self.differences)


def compare_rows(path: Path | str, expected: Mapping[Key, Expected], worker: str = "worker_0") -> Result:
    """Compare every row of a worker with every expected row, in both directions.

    Args:
        path: The folder of the run, which is closed.
        expected: Reference.rows.
        worker: Name of the worker whose rows are compared.
    """
    result = Result()
    trial = td.create_trial(str(path))
    if worker != "worker_0":  # readers show the global steps of the first worker
        expected = {key._replace(step=_OF_THE_FIRST): want for key, want in expected.items()}
    found: dict[Key, dict[str, Any]] = {}
    for row in trial.rows().to_pylist():
        if row["worker"] != worker or row["kind"] not in KINDS:
            continue
        step = row["step"] if worker == "worker_0" else _OF_THE_FIRST
        key = Key(row["mode"], row["mode_step"], step, row["name"], row["call"])
        if key in found:
            result.differences.append(f"twice: {_text(key)} has two rows")
        found[key] = row
    with no_refresh(trial):
        for key, want in expected.items():
            row = found.pop(key, None)
            if row is None:
                if not want.optional:
                    result.differences.append(f"missing: {_text(key)}, expected {_shown(want.value)}")
                continue
            result.rows += 1
            line = _difference(trial, key, row, want, worker)
            if line is not None:
                result.differences.append(line)
    for key, row in found.items():
        result.rows += 1
        result.differences.append(f"extra: {_text(key)}, status {row['status']}")
    return result


def compare_training(with_hook: Outcome, plain: Outcome) -> list[str]:
    """Compare losses and final weights of a loop with and without a hook; every bit must be equal."""
    lines = []
    if len(with_hook.losses) != len(plain.losses):
        lines.append(f"training: {len(with_hook.losses)} losses, {len(plain.losses)} without the hook")
    for number, (one, other) in enumerate(zip(with_hook.losses, plain.losses, strict=False)):
        if not _same_bits(one, other):
            lines.append(f"training: loss {number} is {one.item()!r}, {other.item()!r} without the hook")
    for name, value in plain.weights.items():
        if not _same_bits(with_hook.weights[name], value):
            lines.append(f"training: final weight {name} is not the same as without the hook")
    return lines


def compare_step_times(path: Path | str, mode_steps: Mapping[ModeKeys, int]) -> list[str]:
    """Compare the times of steps with the steps of a hook: each step has one row, also if it saved nothing.

    mode_steps: Hook.mode_steps at the end of the run.
    """
    lines = []
    rows = td.create_trial(str(path)).steps_time().to_pylist()
    for mode in ModeKeys:
        found = sorted(row["mode_step"] for row in rows if row["mode"] == mode.name)
        if found != list(range(mode_steps[mode] + 1)):
            lines.append(f"time: {mode.name} has rows for steps {found}, expected 0 to {mode_steps[mode]}")
    if sorted(row["step"] for row in rows) != list(range(len(rows))):
        lines.append("time: the global steps are not 0, 1, 2, ...")
    for row in rows:
        phases = {phase: row[f"{phase}_ns"] for phase in PHASES}
        if min(phases.values()) < 0 or sum(phases.values()) != row["duration_ns"]:
            lines.append(f"time: {row['mode']} {row['mode_step']} lasts {row['duration_ns']} ns: {phases}")
    return lines


def _difference(trial: Any, key: Key, row: dict[str, Any], want: Expected, worker: str) -> str | None:
    if row["status"] == "absent":
        if want.value is not None and not want.absent_too:
            return (
                f"wrong: {_text(key)} has no value (reason {row['reason']!r}), expected {_shown(want.value)}"
            )
        if not row["reason"]:
            return f"absent: {_text(key)} has no reason, expected one of {sorted(want.reasons)}"
        meaning = REASONS.get(row["reason"])
        if meaning is not None and want.reasons and not meaning & want.reasons:
            return f"wrong: {_text(key)} has reason {row['reason']!r}, expected one of {sorted(want.reasons)}"
        return None
    if row["status"] != "ok":
        return f"wrong: {_text(key)} has status {row['status']!r}"
    if want.unchecked:
        return None
    if want.value is None:
        return f"wrong: {_text(key)} has a value, expected an absent row: {sorted(want.reasons)}"
    if key.step == _OF_THE_FIRST:
        mode = ModeKeys[key.mode]
        value = trial.tensor(key.name).value(key.mode_step, mode=mode, worker=worker, call=key.call)
    else:
        value = trial.tensor(key.name).value(key.step, worker=worker, call=key.call)
    reference = want.value.numpy()
    if value.dtype != reference.dtype or value.shape != reference.shape:
        return (
            f"wrong: {_text(key)} is {value.dtype}{value.shape}, expected {reference.dtype}{reference.shape}"
        )
    if not np.array_equal(value, reference, equal_nan=reference.dtype.kind == "f"):
        return f"wrong: {_text(key)} is {_shown(torch.tensor(value))}, expected {_shown(want.value)}"
    return None


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


def _text(key: Key) -> str:
    return f"{key.name} at {key.mode} {key.mode_step} (step {key.step}, call {key.call})"


def _shown(value: torch.Tensor | None) -> str:
    if value is None:
        return "an absent row"
    head = ", ".join(f"{one:.4g}" for one in value.reshape(-1)[:3].tolist())
    return f"[{head}{', ...' if value.numel() > 3 else ''}]"
