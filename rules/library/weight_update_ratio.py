"""TDC118: weights that move too far, or hardly at all, in one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.streaks import streaks
from tdcore.rules.measures.updates import Gradients, WeightChanges, trained_weights, updates
from tdcore.rules.requirements import STATISTICS, VALUES, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["WeightUpdateRatio"]

_FROM_ZERO = "the earlier norm of the weight was below epsilon (weights that start at zero)"
_NO_GRADIENT = "the weight did not change, and its gradient was not captured, so it may be frozen or stuck"
_UNDECIDED = "the weight was saved without its values, and its statistics are not enough to judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdateRatio:
    """Weights that change too much or too little per step, compared with their size.

    What it does:
        Compares every saved weight with the same weight at an earlier saved step, and measures the relative
        change per step.

    Why it matters:
        A healthy step changes weights by about 0.001 of their size. Steps as large as the weights destroy the
        learned values. Steps far below the resolution of the number type are lost in rounding, so the layer
        does not change.

    Decides by:
        For a weight w, ratio = ||w_s - w_p|| / (||w_p|| + epsilon) / (s - p), with L2 norms. w_s and w_p are
        the values of the weight at the saved steps s and p of TRAIN or GLOBAL mode. s is the current step. p
        is the previous saved step or, if num_steps is set, the oldest saved step with p >= s - num_steps.

        - `large`: ratio > large_threshold, for each weight and saved step.
        - `small`: 0 < ratio < small_threshold, for each weight and saved step.
        - `stuck`: a weight did not change at all at `still_steps` consecutive comparisons, although its
          gradient was not zero at any of them. A weight without a gradient, or with a gradient of zero, is
          frozen or unused, which is not a fault.

        A weight whose earlier norm was below epsilon is not judged, because the relative change of a weight
        of zeros is infinite.

        Weights that were saved without values are judged by bounds of the ratio. | ||w_s|| - ||w_p|| | and
        the differences of minimum, maximum and mean are at most ||w_s - w_p||, which is at most ||w_s|| +
        ||w_p||. If the bounds do not decide, the weight is not judged at this step.

        compat=True applies the rule of smdebug: the change is not divided by s - p, weights that start at
        zero are judged, and a weight that did not change is `small`.

    Parameters:
        num_steps: None: compare with the previous saved step. A number n: compare with the oldest saved step
            that is at most n steps earlier.
        large_threshold: ratio above which a weight is reported.
        small_threshold: ratio below which a weight is reported.
        epsilon: added to the earlier norm; a weight with a smaller norm is not judged.
        still_steps: number of consecutive comparisons without a change after which a weight is `stuck`.
        compat: True applies the rule of smdebug.

    False alarms:
        - The end of a schedule whose learning rate falls to zero.
        - Gradient accumulation over more than `still_steps` saved steps.

    Do:
        Large: lower the learning rate, warm up, or clip gradients. Small or stuck: raise the learning rate,
            check that the optimizer has this weight, and keep a float32 copy of weights that are stored in
            half precision.

    Source:
        A. Karpathy, CS231n notes, Neural networks part 3: ratio of weights to updates. P. Micikevicius et
        al., Mixed precision training, ICLR 2018, for updates lost in rounding.
    """

    code: ClassVar[str] = "TDC118"
    judged_by: ClassVar[JudgedBy] = "worker"

    num_steps: int | None = None
    large_threshold: float = 10.0
    small_threshold: float = 1e-8
    epsilon: float = 1e-9
    still_steps: int = 10
    compat: bool = False

    def __post_init__(self) -> None:
        n = self.num_steps
        require(n is None or n >= 1, self, "num_steps", n, "1 or more, or None")
        large, small = self.large_threshold, self.small_threshold
        require(0 < large < np.inf, self, "large_threshold", large, "a number above 0")
        require(0 <= small < large, self, "small_threshold", small, "from 0 to below large_threshold")
        require(0 < self.epsilon < np.inf, self, "epsilon", self.epsilon, "a number above 0")
        require(self.still_steps >= 1, self, "still_steps", self.still_steps, "1 or more")

    def needs(self) -> Need:
        """Values of weights at two steps, and statistics of gradients."""
        often = SaveConfig(save_interval=self.num_steps or 100)
        return Need(
            what="weights of TRAIN mode at two saved steps or more, best with their values",
            captures=(
                *captures_of(["weights"], (), save_config=often, keep=VALUES),
                *captures_of(["gradients"], (), save_config=often, keep=STATISTICS),
            ),
            kinds=("weight",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per weight and saved step beyond a limit; one per series of steps without a change."""
        found = updates(window, trained_weights(window), self.num_steps)
        scale = (found.norm + self.epsilon) * (1 if self.compat else found.steps)
        low, high = found.least / scale, found.most / scale
        started = np.ones(found.rows.size, dtype=np.bool_)
        still = np.zeros(found.rows.size, dtype=np.bool_)
        if not self.compat:
            started = found.norm >= self.epsilon
            still = started & (found.most == 0)
            window.missing(_FROM_ZERO, int(np.sum(~started)))
            yield from self._stuck(window, found, still, moved=started & ~still)
        large = started & (low > self.large_threshold)
        small = started & ~still & (high < self.small_threshold)
        fine = started & ~still & (high <= self.large_threshold) & (low >= self.small_threshold)
        window.missing(_UNDECIDED, int(np.sum(started & ~still & ~large & ~small & ~fine)))
        window.judged(int(np.sum(large | small | fine)))
        hits = np.flatnonzero(large | small)
        for at in hits[window.listed_at(found.rows[hits])].tolist():
            yield self._finding(window, found, at, bool(large[at]), (float(low[at]), float(high[at])))

    def _finding(
        self, window: Window, found: WeightChanges, at: int, large: bool, ratio: tuple[float, float]
    ) -> Finding:
        value = ratio[0] if large else ratio[1]
        limit = self.large_threshold if large else self.small_threshold
        bound = "" if ratio[0] == ratio[1] else "at least " if large else "at most "
        return window.finding(
            self,
            int(found.rows[at]),
            numbers={
                "kind": "large" if large else "small",
                "ratio": value,
                "threshold": limit,
                "norm_before": float(found.norm[at]),
                "since_step": int(found.since[at]),
                "steps": int(found.steps[at]),
            },
            why=f"the weight changed by {bound}{value:.3g} of its size per step, "
            f"{'above' if large else 'below'} {limit:.3g}",
            do="lower the learning rate, warm up or clip gradients"
            if large
            else "raise the learning rate, and check that the optimizer has this weight",
        )

    def _stuck(self, window: Window, found: WeightChanges, still: Mask, moved: Mask) -> Iterator[Finding]:
        """Weights that did not change `still_steps` times in a row although their gradients were not zero."""
        gradients = Gradients(window)
        asked, judged = (np.zeros(len(window), dtype=np.bool_) for _ in range(2))
        judged[found.rows[moved]] = True
        unknown = 0
        for at in np.flatnonzero(still).tolist():
            row = int(found.rows[at])
            answer = gradients.moved(row, int(found.since[at]))
            unknown += answer is None
            judged[row], asked[row] = answer is not None, bool(answer)
        gradients.keep()
        window.missing(_NO_GRADIENT, unknown)
        window.judged(int(np.sum(still)) - unknown)
        run = streaks(window, judged, asked, "stuck")
        for row in window.listed(np.flatnonzero(run == self.still_steps)):
            yield window.finding(
                self,
                row,
                numbers={"kind": "stuck", "ratio": 0.0, "comparisons": self.still_steps},
                why=f"the weight did not change in {self.still_steps} comparisons in a row, although it had "
                "a gradient",
                do="check the learning rate, that the optimizer has this weight, and the number type of the "
                "weight",
            )
