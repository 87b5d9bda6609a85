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
from tdcore.rules.window import Window

__all__ = ["AllZero"]

_DEFAULT = ("weights", "gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllZero:
    """Tensors whose elements are all, or nearly all, exactly zero.

    What it does:
        Counts the zeros of every saved weight and gradient, or of the tensors you name.

    Why it matters:
        A gradient of zeros means that a layer does not learn: it is cut off from the loss, or everything
        behind it is dead. A weight of zeros passes nothing on, and its layer gets no gradient either.

    Decides by:
        100 x zero_count / count >= threshold, from the statistics in the index; exact zeros, NaN and
        infinities are not zero. Reported at the `patience`-th saved step in a row at which it holds, once
        until it has ceased to hold. Not judged: tensors without elements, parameters without a gradient (row
        `absent`), gradients of biases whose weight has one that is not zero (a loss of differences does not
        depend on the last bias), and steps whose loss is exactly zero, as hinge and triplet losses are where
        all samples are right.

    Parameters:
        collection_names: names of collections, or one string with commas.
        tensor_regex: regular expressions searched for in names, or one string with commas. Given with
            collection_names: the union. Neither: collections `weights` and `gradients`.
        threshold: per cent of zeros from which a tensor is reported.
        patience: saved steps in a row. The older rule is 1; with 3, weights that start at zero on purpose
            (the last layer of a residual branch, low-rank adapters) and gradients that are zero because of
            them are not reported if the next step moves them, or the one after a first step at the learning
            rate 0.

    False alarms:
        Experts or branches that a batch does not use. Masks, labels and sparse inputs, when collections are
        named that hold them. A head that is trained later.

    Do:
        Look for a detach(), a frozen or unused branch, a loss that does not depend on the layer, or dead
        ReLUs before it (DeadRelu). Give weights that start at zero a random start.

    Source:
        I. Goodfellow, Y. Bengio, A. Courville, Deep Learning (2016), ch. 8.4.
    """

    code: ClassVar[str] = "TDC119"

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
        """Statistics of the tensors it was pointed at."""
        return need_of(self, _DEFAULT, interval=100, keep=STATISTICS, form="statistics")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor and stretch of steps of zeros."""
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
