"""TDC101: gradients so small that their layers do not learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.measures.biases import biases_of_weights
from tdcore.rules.measures.streaks import streaks
from tdcore.rules.measures.zero_loss import zero_loss_rows
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["VanishingGradient"]

_ZEROS = 3  # number of consecutive saved steps at which a gradient is exactly zero
_DO = (
    "compare with the gradient of the last layer: if it is larger, use normalisation, residual connections "
    "or ReLU; if it is equally small, check the loss, its scale and weight decay"
)
_DO_ZERO = "look for a detach(), a layer whose units are all dead, or a weight of zeros after this layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishingGradient:
    """Gradients whose mean magnitude is below a threshold.

    What it does:
        Reports each gradient of each saved step whose elements have a mean magnitude below `threshold`.

    Why it matters:
        A step changes a weight by its gradient times the learning rate. In a deep stack of sigmoid or tanh
        layers each layer multiplies the gradient by a number well below 1, so the gradients of the first
        layers are almost zero. These layers keep their random weights and the loss stops falling. A log of
        the loss does not show the reason.

    Decides by:
        For each gradient and saved step, the rule computes the mean magnitude (sum of the magnitudes of the
        finite elements / number of finite elements) from the saved statistics. Every gradient whose mean
        magnitude is below threshold is reported.

        These gradients are not reported:

        - the gradient of a bias if the weight of its layer has a gradient above the threshold: before a
          normalisation layer the gradient of a bias is zero except for rounding, and this is not a fault;
        - gradients that are exactly zero, until they are zero at the third consecutive saved step: while a
          weight is still zero (the second matrix of an adapter), the gradients of earlier layers are zero;
        - gradients of steps whose loss is exactly zero.

        Parameters without a gradient at the step (unused or frozen), and gradients without a finite element,
        which ExplodingTensor reports, are not judged. compat=True applies the rule of smdebug, which reports
        all gradients below the threshold.

    Parameters:
        threshold: mean magnitude below which a gradient is reported, in units of the gradient.
        ignore_zero: True leaves out gradients whose elements are all exactly zero, such as those of frozen
            layers.
        compat: True also reports the three groups of gradients above that are otherwise not reported.

    False alarms:
        - The end of a successful training, where all gradients are small.
        - Losses or gradients that are scaled down (a mean over very many elements, a small loss weight).
        - Embeddings, if a batch uses few of their rows.
        - Trainings in fp16 whose gradients are read before they are unscaled.

    Do:
        Replace sigmoid or tanh by ReLU or GELU, add residual connections or normalisation layers, use He or
        Xavier initialisation, or check the loss scale. Compare with the gradient of the last layer: if it is
        small too, check the loss first.

    Source:
        S. Hochreiter, Untersuchungen zu dynamischen neuronalen Netzen (1991). X. Glorot and Y. Bengio,
        Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.
    """

    code: ClassVar[str] = "TDC101"
    judged_by: ClassVar[JudgedBy] = "worker"

    threshold: float = 1e-7
    ignore_zero: bool = False
    compat: bool = False

    def __post_init__(self) -> None:
        require(0 < self.threshold < np.inf, self, "threshold", self.threshold, "a number above 0")

    def needs(self) -> Need:
        """Statistics of gradients."""
        return Need(
            what="gradients with statistics",
            captures=(
                CollectionConfig(
                    name="gradients", save_config=SaveConfig(save_interval=100), reduction_config=STATISTICS
                ),
            ),
            kinds=("gradient",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per gradient and step below the threshold."""
        gradients = window.in_collections(["gradients"])
        window.missing(
            "gradient saved without statistics", int(np.sum(gradients & window.ok & ~window.counted))
        )
        window.missing(
            "gradient not captured", int(np.sum(gradients & window.columns.where("status", _skipped)))
        )
        finite = window.finite
        judged = gradients & window.ok & (finite > 0)
        window.judged(int(np.sum(judged)))

        with np.errstate(divide="ignore", invalid="ignore"):
            abs_mean = window.columns.floats("abs_sum") / finite
        small = judged & (abs_mean < self.threshold)
        zero = window.columns.floats("abs_max") == 0
        if self.ignore_zero:
            small &= ~zero
        if not self.compat:
            small &= ~biases_of_weights(window.columns, small, judged & ~small)
            small &= ~zero_loss_rows(window)
            small &= ~zero | (streaks(window, judged, small & zero, "zero") >= _ZEROS)
        for row in window.listed(np.flatnonzero(small)):
            value = float(abs_mean[row])
            yield window.finding(
                self,
                row,
                numbers={"abs_mean": value, "threshold": self.threshold, "elements": int(finite[row])},
                why=f"mean |gradient| is {value:.3g}, below {self.threshold:.3g}: these weights hardly move",
                do=_DO_ZERO if zero[row] else _DO,
            )


def _skipped(status: str) -> bool:
    return status == "skipped"
