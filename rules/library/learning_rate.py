"""TDC126: a learning rate that is too high or too low."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.measures.rates import StepRate, step_rates
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import STATISTICS, VALUES, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["LearningRate"]

_FALL = 0.01  # relative fall of the loss from which large steps are not a fault
_LOSSES = 5  # number of saved losses that are averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """A learning rate that is too high or too low, judged by the relative change of the weights per step.

    What it does:
        Measures the relative change of each weight per step. The rule fires if the median over all weights is
        persistently far from the usual 0.001.

    Why it matters:
        Steps that are large compared with the weights make training unstable; steps that are tiny waste time.
        Both are visible in the weights long before they are visible in the loss.

    Decides by:
        The ratio of a weight w is ||w_s - w_p|| / ||w_p|| per step, with L2 norms. w_p and w_s are the values
        of the weight at the consecutive saved steps p and s of TRAIN or GLOBAL mode. At each step the rule
        takes the median over all weights that changed.

        - `too_high`: median > too_high at `patience_high` consecutive comparisons, while the loss did not
          fall by 1 % (if a loss is saved). The mean of the last 5 saved losses is compared with the mean of
          the 5 losses before the first of these steps.
        - `too_low`: median < too_low at the first `patience_low` comparisons of an attempt (a start of the
          training). Later steps are not judged for this kind, because small steps may be the end of a
          schedule.

        Without values of the weights, the ratio is estimated or bounded. For SGD it is estimated from the
        captured learning rate: lr ||g|| / ||w||, up to 1 / (1 - momentum) times this value, where lr is the
        learning rate and g the gradient. Otherwise the lower bound comes from the change of norm, mean,
        minimum and maximum. For Adam and similar optimizers the upper bound is 3.2 lr sqrt(n) / ||w||, where
        n is the number of elements of the weight. If the bounds do not decide, the step is not judged. If two
        consecutive saved steps are k steps apart, `too_high` compares 1/k of the change and `too_low`
        1/sqrt(k) of it.

    Parameters:
        too_high: largest median relative change per step that is tolerated.
        too_low: smallest median relative change per step that is tolerated.
        patience_high: number of consecutive comparisons that must be too high. Use a small number: unstable
            weights grow, and the same steps are then small compared with the weights.
        patience_low: number of comparisons from the start that must be too low.

    False alarms:
        - Very small networks, whose weights change much before they converge.
        - A warm-up that begins near zero and takes longer than `patience_low` saved steps.
        - A model in which no captured weight is trained.

    Do:
        Too high: divide the learning rate by 3 to 10, warm up, clip gradients. Too low: multiply the learning
        rate by 3 to 10, and judge again. The ratio grows in proportion.

    Source:
        A. Karpathy, CS231n notes, Neural networks part 3: ratio of weights to updates. L. Smith, Cyclical
        learning rates for training neural networks, WACV 2017.
    """

    code: ClassVar[str] = "TDC126"
    judged_by: ClassVar[JudgedBy] = "worker"

    too_high: float = 0.1
    too_low: float = 1e-6
    patience_high: int = 5
    patience_low: int = 10

    def __post_init__(self) -> None:
        require(0 < self.too_high < np.inf, self, "too_high", self.too_high, "a number above 0")
        low = self.too_low
        require(0 <= low < self.too_high, self, "too_low", low, "from 0 to below too_high")
        for name in ("patience_high", "patience_low"):
            require(getattr(self, name) >= 1, self, name, getattr(self, name), "1 or more")

    def needs(self) -> Need:
        """Weights at consecutive steps; learning rate and gradients if values are missing; losses."""
        every = SaveConfig(save_interval=1)
        return Need(
            what=f"weights of {self.patience_low + 1} saved TRAIN steps, with their values or with "
            "gradients and hyperparameters",
            captures=(
                *captures_of(["weights"], (), save_config=every, keep=VALUES),
                *captures_of(
                    ["gradients", "hyperparameters", "losses"], (), save_config=every, keep=STATISTICS
                ),
            ),
            kinds=("weight",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per kind, attempt, worker and series of consecutive steps."""
        self._take_losses(window)
        for rate in step_rates(window):
            state = window.memory.setdefault((rate.attempt, rate.worker), LearningRateHistory())
            finding = self._judge(window, state, rate)
            if finding is not None:
                yield finding
        for state in window.memory.values():
            if isinstance(state, LearningRateHistory):
                state.trim()

    def _take_losses(self, window: Window) -> None:
        columns = window.columns
        scalar = window.counted & (columns.ints("count") == 1)
        trained = columns.where("mode", lambda mode: mode in ("TRAIN", "GLOBAL"))
        rows = np.flatnonzero(window.in_collections(["losses"]) & window.ok & trained & scalar)
        finite = np.where(window.finite == 1, columns.floats("mean"), np.inf)
        for attempt, worker, group in groups(columns, rows, "attempt", "worker"):
            state = window.memory.setdefault((attempt, worker), LearningRateHistory())
            state.steps += columns.ints("step")[group].tolist()
            state.losses += finite[group].tolist()

    def _judge(self, window: Window, state: LearningRateHistory, rate: StepRate) -> Finding | None:
        high, low = rate.low > self.too_high, rate.high < self.too_low
        fine = rate.high <= self.too_high and rate.low >= self.too_low
        if high or low or fine:
            window.judged(rate.weights)
        else:
            window.missing(
                "values of weights were not saved, and statistics and learning rate are not enough to judge",
                rate.weights,
            )
        if not high:
            state.high, state.told = 0, False
        elif state.high == 0:
            before = state.mean_loss(rate.step - 1)
            state.before = state.mean_loss(rate.step) if before is None else before
        state.high += high
        state.low = state.low + 1 if low and state.low >= 0 else -1
        if high and state.high >= self.patience_high and not state.told and state.stands(rate.step):
            state.told = True
            return self._finding(window, rate, "too_high", rate.low, self.too_high)
        if state.low == self.patience_low:
            return self._finding(window, rate, "too_low", rate.high, self.too_low)
        return None

    def _finding(self, window: Window, rate: StepRate, kind: str, ratio: float, limit: float) -> Finding:
        high = kind == "too_high"
        patience = self.patience_high if high else self.patience_low
        finding = window.finding(
            self,
            rate.row,
            numbers={
                "kind": kind,
                "ratio": ratio,
                "limit": limit,
                "weights": rate.weights,
                "how": rate.how,
                "comparisons": patience,
            },
            why=f"the median relative change of {rate.weights} weights per step is {ratio:.2g} "
            f"({rate.how}), {'above' if high else 'below'} {limit:.2g} at {patience} comparisons in a "
            f"row{'' if high else ' since the start'}; about 0.001 is usual",
            do="divide the learning rate by 3 to 10, warm up, or clip gradients"
            if high
            else "multiply the learning rate by 3 to 10, and look again",
        )
        return replace(finding, tensor="")


@dataclass(slots=True, kw_only=True)
class LearningRateHistory:
    """State of the rule for one attempt and worker.

    Attributes:
        steps, losses: The last saved losses, in order.
        high: Number of consecutive comparisons so far that were too high.
        before: Loss before these comparisons.
        told: Whether these comparisons were reported.
        low: Number of comparisons since the start if all were too low; -1 otherwise.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    high: int = 0
    before: float | None = None
    told: bool = False
    low: int = 0

    def mean_loss(self, until: int) -> float | None:
        """Mean of the last losses up to a step; None before the first loss."""
        end = bisect_right(self.steps, until)
        values = self.losses[max(0, end - _LOSSES) : end]
        return float(np.mean(values)) if values else None

    def stands(self, step: int) -> bool:
        """Whether the loss is unknown, or has not fallen since the first comparison that was too high."""
        now = self.mean_loss(step)
        if self.before is None or now is None or not np.isfinite([self.before, now]).all():
            return True
        return now > self.before - _FALL * abs(self.before)

    def trim(self) -> None:
        """Remove losses that are no longer needed."""
        del self.steps[:-_LOSSES], self.losses[:-_LOSSES]
