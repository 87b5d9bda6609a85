"""EarlySteps: the first saved steps of a training, and whether its loss falls in them.

Plain values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tdcore.rules.base import Finding

__all__ = ["PROGRESS", "EarlySteps"]

PROGRESS = 0.01  # share by which the loss must fall to count as falling


@dataclass(slots=True, kw_only=True)
class EarlySteps:
    """What is remembered of one worker's first saved steps.

    steps: those seen, of TRAIN mode. losses: step -> mean of the losses saved there. zeros: weights that were
    zero everywhere at the first of them. looks: kind of evidence -> steps at which it could be looked for.
    hits: steps at which it was found; held: the finding of the last of them. over: it was judged.
    """

    steps: list[int] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    looks: dict[str, int] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
    held: dict[str, Finding] = field(default_factory=dict)
    over: bool = False

    def looked(self, kind: str, finding: Finding | None) -> None:
        """Takes in one look for a kind of evidence."""
        self.looks[kind] = self.looks.get(kind, 0) + 1
        if finding is not None:
            self.hits[kind] = self.hits.get(kind, 0) + 1
            self.held[kind] = finding

    def found(self) -> list[Finding]:
        """The evidence that was there at more than half of the looks."""
        return [self.held[kind] for kind, hits in self.hits.items() if 2 * hits > self.looks[kind]]

    def progress(self, patience: int) -> float | None:
        """By what share the loss has fallen: the mean of the last `patience` values against the first.

        With fewer than twice as many values: the later half against the earlier. None with fewer than two
        values; minus infinity when one is not finite.
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
        """Whether none of the last `patience` losses is better than the best before them."""
        values = [self.losses[step] for step in sorted(self.losses)]
        return len(values) > patience and not min(values[-patience:]) < min(values[:-patience])
