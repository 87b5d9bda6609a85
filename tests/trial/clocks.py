"""Ranks that count their steps as a hook does: over all modes, and within each mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.trial.sharding import add_part, rows, workers
from tests.trial.writer import RunWriter

__all__ = ["Rank", "W", "evaluating", "ranks"]

W = np.arange(8.0).reshape(4, 2)


class Rank:
    """One worker of a job. Every step saves `x`, whose value is the mode step, and the rank's part of `w`."""

    def __init__(self, run: RunWriter, rank: int, number: int) -> None:
        self.run = run
        self.step = -1
        self._box = rows(W.shape, number)[rank]
        self._mode_steps: Counter[str] = Counter()

    def train(self, steps: int = 1) -> None:
        """Write training steps, which are the same on all ranks."""
        self._steps("TRAIN", steps)

    def evaluate(self, steps: int = 1) -> None:
        """Write steps of an evaluation."""
        self._steps("EVAL", steps)

    def add(self, name: str, value: float, **options: Any) -> None:
        """Add one more tensor to the step that began last."""
        self.run.add(name, np.array([value]), **{**self._stamp, **options})

    def forget(self) -> None:
        """Discard the step that began last."""
        self.run._pending = [each for each in self.run._pending if each.row["step"] != self.step]

    def flush(self, *, over: bool = True) -> None:
        """Write the steps so far. over: marks the last step as over."""
        if over:
            self.run.mark_step_end(self.step)
        self.run.flush()

    def end(self) -> None:
        """Write the rest and the end file."""
        self.run.flush()
        self.run.end()

    def _steps(self, mode: str, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            mode_step = self._mode_steps[mode]
            self._mode_steps[mode] += 1
            self._stamp: dict[str, Any] = {"step": self.step, "mode": mode, "mode_step": mode_step}
            self.add("x", float(mode_step))
            add_part(self.run, "w", W + mode_step, self._box, **self._stamp)


def ranks(root: Path, number: int = 2, **options: Any) -> list[Rank]:
    """Return the ranks of a job that run.json lists."""
    names = [f"worker_{rank}" for rank in range(number)]
    runs = workers(root, number, workers=names, **options)
    return [Rank(run, rank, number) for rank, run in enumerate(runs)]


def evaluating(root: Path, evaluations: Sequence[int], number: int = 2) -> None:
    """Write a finished run: three times 3 training steps and an evaluation.

    evaluations: by rank, the number of steps of each evaluation.
    """
    for rank, steps in zip(ranks(root, number), evaluations, strict=True):
        for _ in range(3):
            rank.train(3)
            rank.evaluate(steps)
        rank.end()
