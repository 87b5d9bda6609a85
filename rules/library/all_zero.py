"""TDC119: tensors that are zero everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.biases import biases_of_weights
from tdcore.rules.measures.scope import checked, need_of, with_statistics
from tdcore.rules.measures.streaks import streaks
from tdcore.rules.measures.zero_loss import zero_loss_rows
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["AllZero"]

_DEFAULT = ("weights", "gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllZero:
    """Tensors whose elements are all, or nearly all, exactly zero.

    What it does:
        Counts the zeros of every saved weight and gradient, or of the tensors that you select.

    Why it matters:
        If a gradient is zero, its layer does not learn: the layer is cut off from the loss, or all units
        after it are dead. If a weight is zero, its layer outputs zeros and gets no gradient either.

    Decides by:
        A tensor is zero if 100 x zero_count / count >= threshold, computed from the saved statistics. Only
        exact zeros count; NaN and infinities are not zero. A tensor is reported at the `patience`-th
        consecutive saved step at which it is zero. It is reported again only after a step at which it was not
        zero.

        The rule does not judge:

        - tensors without elements, and parameters without a gradient;
        - gradients of biases if the weight of the same layer has a gradient above zero: a loss that uses only
          differences of outputs does not depend on the bias of the last layer;
        - steps whose loss is exactly zero, such as those of hinge and triplet losses if all samples satisfy
          the margin.

    Parameters:
        collection_names: names of collections to judge; a list, or one string with commas.
        tensor_regex: regular expressions for names of tensors to judge (re.search); a list, or one string
            with commas. With both parameters, the union is judged; with neither, the collections `weights`
            and `gradients`.
        threshold: minimum percentage of zeros of a tensor that is reported.
        patience: number of consecutive saved steps of zeros that make a finding; 1 in smdebug. With 3,
            weights that start at zero on purpose (the last layer of a residual branch, low-rank adapters),
            and gradients that are zero because of such weights, are not reported if the next step changes
            them, or the step after it if the first learning rate is 0.

    False alarms:
        - Experts or branches that a batch does not use.
        - Masks, labels and sparse inputs, if you select collections with such tensors.
        - A head that is trained later.

    Do:
        Look for a detach(), a frozen or unused branch, a loss that does not depend on the layer, or dead
        ReLUs before the layer (rule DeadRelu). Initialise weights of zeros with random numbers.

    Source:
        I. Goodfellow, Y. Bengio, A. Courville, Deep Learning (2016), ch. 8.4.
    """

    code: ClassVar[str] = "TDC119"
    judged_by: ClassVar[JudgedBy] = "worker"

    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    threshold: float = 100.0
    patience: int = 3

    def __post_init__(self) -> None:
        checked(self)
        require(
            0 < self.threshold <= 100, self, "threshold", self.threshold, "a percentage above 0, up to 100"
        )
        require(self.patience >= 1, self, "patience", self.patience, "1 or more")

    def needs(self) -> Need:
        """Statistics of the selected tensors."""
        return need_of(self, _DEFAULT, interval=100, keep=STATISTICS, form="statistics")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor and series of consecutive steps with zeros."""
        judged = with_statistics(self, window, _DEFAULT) & (window.columns.ints("count") > 0)
        of_learning = judged & window.kind("gradient") & (window.columns.floats("abs_max") > 0)
        judged &= ~zero_loss_rows(window)
        judged &= ~biases_of_weights(window.columns, judged & window.kind("gradient"), of_learning)
        window.judged(int(np.sum(judged)))
        zeros, count = window.columns.floats("zero_count"), window.columns.floats("count")
        run = streaks(window, judged, 100.0 * zeros >= self.threshold * count, "zero")
        for row in window.listed(np.flatnonzero(run == self.patience)):
            percent = 100.0 * float(zeros[row]) / float(count[row])
            yield window.finding(
                self,
                row,
                numbers={
                    "zero_percent": percent,
                    "threshold": self.threshold,
                    "elements": int(count[row]),
                    "saved_steps": self.patience,
                },
                why=f"{int(zeros[row])} of {int(count[row])} elements ({percent:.4g} %) are zero, for "
                f"{self.patience} saved step{'s' * (self.patience > 1)} in a row",
                do="check that the layer is connected to the loss and was not initialised with zeros",
            )
