"""TDC218: a training that spends much of its time writing checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.scans import duration_text, require_counts
from tdcore.rules.measures.step_halves import (
    Half,
    half_finding,
    judged_halves,
    require_step_counts,
    step_need,
)
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["CheckpointStall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStall:
    """A training that stops for a large part of its time to write checkpoints.

    What it does:
        Judges the time of the steps that is spent in torch.save and similar functions. The rule computes the
        cost of one checkpoint, and an interval at which checkpoints cost less.

    Why it matters:
        A training does not train while it writes a checkpoint, and all GPUs wait. Checkpoints that are
        written too often cost more time than a failure does.

    Decides by:
        At each scan the rule judges the newest half of the steps of a worker and mode. Scans take place eight
        times while the number of steps doubles, for example after 64, 72, 80, ..., 128, 144, ... steps. The
        rule fires if checkpoints take at least `threshold` percent of the time, and if there are at least
        `min_checkpoints`.

        The advised interval is that of Young: the square root of 2 * C * F. C is the time of one checkpoint,
        and F the mean time between failures, `failure_hours`. If checkpoints are already as rare as this, the
        finding contains only the advice to write each checkpoint faster or in the background.

    Parameters:
        threshold: share of the time above which the rule fires, in percent.
        min_checkpoints: smallest number of checkpoints in the judged steps.
        failure_hours: mean time between two failures of the training, in hours.
        patience: number of steps at the start of each mode that are not judged.
        min_steps: smallest number of judged steps.
        min_seconds: smallest duration of the judged steps, in seconds.

    False alarms:
        - A checkpoint that is written with several calls, such as one torch.save for the model and one for
          the optimizer. Each call counts as a checkpoint, so the advised interval is too short.
        - A short training that is used to test checkpoints.
        - Preemptible machines that end often, if `failure_hours` has its default.

    Do:
        Write checkpoints less often. Write them in the background (torch.distributed.checkpoint.async_save),
        on a faster or local disk, or with each rank's own part of the weights only.

    Source:
        J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 1974.
    """

    code: ClassVar[str] = "TDC218"
    judged_by: ClassVar[JudgedBy] = "run"
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)

    threshold: float = 10.0
    min_checkpoints: int = 2
    failure_hours: float = 24.0
    patience: int = 20
    min_steps: int = 32
    min_seconds: float = 10.0

    def __post_init__(self) -> None:
        require(0 < self.threshold <= 100, self, "threshold", self.threshold, "a percentage, above 0 to 100")
        require(0 < self.failure_hours < np.inf, self, "failure_hours", self.failure_hours, "above 0")
        require_counts(self, "min_checkpoints")
        require_step_counts(self)

    def needs(self) -> Need:
        """Times of steps."""
        return step_need(self)

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per worker, mode and scan."""
        for half in judged_halves(window, self):
            share, number = half.share("checkpoint_ns"), half.total("checkpoints")
            if share >= self.threshold and number >= self.min_checkpoints:
                yield self._finding(half, share, number)

    def _finding(self, half: Half, share: float, number: int) -> Finding:
        stopped = half.total("checkpoint_ns") / 1e9
        cost = stopped / number
        present = half.seconds / number
        interval = float(np.sqrt(2 * cost * 3600 * self.failure_hours))
        too_often = interval > present
        failures = f"one failure every {self.failure_hours:g} hours"
        return half_finding(
            self,
            half,
            numbers={
                "checkpoint_percent": share,
                "threshold": self.threshold,
                "checkpoints": number,
                "seconds_per_checkpoint": cost,
                "interval_seconds": present,
                "advised_interval_seconds": interval,
            },
            why=f"the training stops for {share:.0f} % of the time to write checkpoints (limit "
            f"{self.threshold:g} %): {number:,} checkpoints in {half.span}, each {_short_text(cost)}, and "
            f"one every {_short_text(present)}. "
            + (
                f"With {failures}, an interval of {duration_text(interval)} costs the least time"
                if too_often
                else f"With {failures}, a longer interval would cost more time than it saves"
            ),
            do=(
                f"write a checkpoint about every {duration_text(interval)}; write it"
                if too_often
                else "write each checkpoint"
            )
            + " in the background (torch.distributed.checkpoint.async_save), or on a faster disk",
        )


def _short_text(seconds: float) -> str:
    """A duration as text; below a second in milliseconds."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else duration_text(seconds)
