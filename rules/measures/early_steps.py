"""EarlySteps: evidence from the first saved steps of a training, and whether the loss falls in them.

Plain values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tdcore.rules.base import Finding

__all__ = ["PROGRESS", "EarlySteps"]

PROGRESS = 0.01  # minimum relative fall of a loss that falls


@dataclass(slots=True, kw_only=True)
class EarlySteps:
    """The first saved steps of one worker.

    Attributes:
        steps: Steps so far, of TRAIN mode.
        losses: Step -> mean of the losses saved at it.
        zeros: Weights that were all zero at the first step.
        checks: Kind of evidence -> number of steps at which it was checked.
        hits: Kind of evidence -> number of steps at which it was found.
        held: Kind of evidence -> the finding of the last step with this evidence.
        over: Whether the steps were judged.
    """

    steps: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    checks: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
    held: dict[str, Finding] = field(default_factory=dict)
    over: bool = False

    def record_check(self, kind: str, finding: Finding | None) -> None:
        """Record one check for a kind of evidence. finding: None if there is no evidence."""
        self.checks[kind] = self.checks.get(kind, 0) + 1
        if finding is not None:
            self.hits[kind] = self.hits.get(kind, 0) + 1
            self.held[kind] = finding

    def found(self) -> list[Finding]:
        """The findings of all kinds of evidence that were found in more than half of their checks."""
        return [self.held[kind] for kind, hits in self.hits.items() if 2 * hits > self.checks[kind]]

    def progress(self, patience: int) -> float | None:
        """Relative fall of the loss: mean of the last `patience` values compared with the first values.

        With fewer than 2 * patience values, the later half is compared with the earlier half. Returns None
        for fewer than two values, and minus infinity if a value is not finite.
        """
        values = np.array([self.losses[step] for step in sorted(self.losses)])
        if values.size < 2:
            return None
        if not np.isfinite(values).all():
            return -np.inf
        n = min(patience, values.size // 2)
        first, last = float(values[:n].mean()), float(values[-n:].mean())
        return (first - last) / max(abs(first), 1e-12)

    def stale(self, patience: int) -> bool:
        """Whether none of the last `patience` losses is below the lowest earlier loss."""
        values = [self.losses[step] for step in sorted(self.losses)]
        return len(values) > patience and not min(values[-patience:]) < min(values[:-patience])
