"""TDC101: gradients so small that their layers do not learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.window import Columns, Mask, Window

__all__ = ["VanishingGradient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VanishingGradient:
    """Gradients whose mean magnitude is below a threshold.

    What it does:
        Reports each gradient of each saved step whose mean of |g| is below `threshold`.

    Why it matters:
        A step changes a weight by its gradient times the learning rate. In a deep stack of sigmoid or tanh
        layers each layer multiplies the gradient by a number well below 1, so the gradients of the first
        layers are almost zero. These layers keep their random weights and the loss stops falling, without
        another sign in the log.

    Decides by:
        mean |g| = abs_sum / (number of finite elements) < threshold (strictly), per tensor and step, from the
        statistics in the index. All such tensors of a step are reported. Not judged: parameters without a
        gradient at the step (unused or frozen: row `absent`), and gradients without a finite element, which
        ExplodingTensor reports. The bias of a layer whose weight has a gradient above the threshold is not
        reported: before a normalisation layer the gradient of a bias is zero except for rounding, and this is
        no fault. compat=True applies the older rule, which reports it.

    Parameters:
        threshold: in units of the gradient.
        ignore_zero: True leaves out gradients whose elements are all exactly zero, such as those of frozen
            layers.
        compat: True reports every bias, for any gradient of the weight of its layer.

    False alarms:
        The end of a successful training, where all gradients are small. Losses or gradients scaled down (a
        mean over very many elements, a small loss weight). Embeddings, if a batch uses few of their rows.
        fp16 training whose gradients are read before they are unscaled.

    Do:
        Replace sigmoid or tanh by ReLU or GELU, add residual connections or normalisation layers, use He or
        Xavier initialisation, or check the loss scale. Compare with the gradient of the last layer: if it is
        small too, check the loss first.

    Source:
        S. Hochreiter, Untersuchungen zu dynamischen neuronalen Netzen (1991). X. Glorot and Y. Bengio,
        Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.
    """

    code: ClassVar[str] = "TDC101"

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
        if self.ignore_zero:
            small &= window.columns.floats("abs_max") > 0
        if not self.compat:
            small &= ~_beside_healthy_weight(window.columns, small, healthy=judged & ~small)
        for row in window.listed(np.flatnonzero(small)):
            value = float(abs_mean[row])
            yield window.finding(
                self,
                row,
                numbers={"abs_mean": value, "threshold": self.threshold, "elements": int(finite[row])},
                why=f"mean |gradient| is {value:.3g}, below {self.threshold:.3g}: these weights hardly move",
                do="use ReLU or GELU, residual connections or normalisation, or a better initialisation",
            )


def _skipped(status: str) -> bool:
    return status == "skipped"


def _beside_healthy_weight(columns: Columns, rows: Mask, healthy: Mask) -> Mask:
    """Mask of the biases among `rows` whose layer's weight is among `healthy` at the same step."""
    codes, texts = columns.codes("name")
    position = {text: code for code, text in enumerate(texts)}
    partner = [position.get(_weight_of(text), -1) for text in texts]
    biases = np.flatnonzero(rows & (np.array(partner, dtype=np.int64)[codes] >= 0))
    found = np.zeros(len(rows), dtype=np.bool_)
    if not biases.size:
        return found
    workers, _ = columns.codes("worker")
    place = np.stack([columns.ints("attempt"), workers, columns.ints("step"), codes])
    wanted = place[:, biases].copy()
    wanted[3] = np.array(partner, dtype=np.int64)[codes[biases]]
    there = set(map(tuple, place[:, np.flatnonzero(healthy & np.isin(codes, wanted[3]))].T.tolist()))
    found[biases] = [tuple(each) in there for each in wanted.T.tolist()]
    return found


def _weight_of(name: str | None) -> str | None:
    """Name of the weight of a bias's layer; None if the tensor is not a bias."""
    return name.removesuffix("bias") + "weight" if name is not None and name.endswith("bias") else None
