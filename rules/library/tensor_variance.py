"""TDC120: tensors whose variance is outside given limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.scope import checked, need_of, with_statistics
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["TensorVariance"]

_DEFAULT = ("weights",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorVariance:
    """Tensors whose variance is above or below limits that you give.

    What it does:
        Compares the variance of every saved weight, or of the tensors that you select, with two limits.

    Why it matters:
        Weights or activations with a large variance saturate the next layers and make steps unstable. Weights
        or activations that are nearly equal contain no information and get equal gradients.

    Decides by:
        The variance is the population variance of the finite elements (mean of the squared distances from the
        mean), computed from the saved statistics. Kind `high`: variance > max_threshold. Kind `low`: variance
        < min_threshold. Each tensor and saved step is judged. Tensors with fewer than two finite elements are
        not judged.

        The limits have no defaults, because no variance is wrong for every tensor: the variance of a weight
        is proportional to 1 / width of the layer. Without a limit the verdict is `not evaluable`, with this
        reason.

    Parameters:
        collection_names: names of collections to judge; a list, or one string with commas.
        tensor_regex: regular expressions for names of tensors to judge (re.search); a list, or one string
            with commas. With both parameters, the union is judged; with neither, the collection `weights`.
        max_threshold: upper limit of the variance; None: no upper limit.
        min_threshold: lower limit of the variance; None: no lower limit.

    False alarms:
        - Weights of normalisation layers, which all start at 1: their variance is 0.
        - Very wide layers, whose weights have a small variance by design.
        - One limit for tensors of different kinds.

    Do:
        Compare with the neighbouring layers. High: lower the learning rate, add weight decay or
        normalisation, check the initialisation. Low: check the initialisation, and whether the layer gets
        gradients.

    Source:
        X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward neural networks,
        AISTATS 2010.
    """

    code: ClassVar[str] = "TDC120"
    judged_by: ClassVar[JudgedBy] = "tensor"

    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    max_threshold: float | None = None
    min_threshold: float | None = None

    def __post_init__(self) -> None:
        checked(self)
        for name in ("max_threshold", "min_threshold"):
            limit = getattr(self, name)
            require(limit is None or 0 <= limit < np.inf, self, name, limit, "0 or more, or None")
        low, high = self.min_threshold, self.max_threshold
        ordered = low is None or high is None or low <= high
        require(ordered, self, "min_threshold", low, f"at most max_threshold = {high}")

    def needs(self) -> Need:
        """Statistics of the selected tensors, and a limit."""
        need = need_of(self, _DEFAULT, interval=100, keep=STATISTICS, form="statistics")
        if self.max_threshold is None and self.min_threshold is None:
            return replace(need, what=f"max_threshold or min_threshold, and {need.what}")
        return need

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor and step beyond a limit."""
        rows = with_statistics(self, window, _DEFAULT) & (window.finite >= 2)
        if self.max_threshold is None and self.min_threshold is None:
            window.missing("neither max_threshold nor min_threshold is given", int(np.sum(rows)))
            return
        window.judged(int(np.sum(rows)))
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = window.columns.floats("m2") / window.finite
        high = rows & (variance > (np.inf if self.max_threshold is None else self.max_threshold))
        low = rows & (variance < (-np.inf if self.min_threshold is None else self.min_threshold))
        for row in window.listed(np.flatnonzero(high | low)):
            value, kind = float(variance[row]), "high" if high[row] else "low"
            limit = float((self.max_threshold if high[row] else self.min_threshold) or 0.0)
            yield window.finding(
                self,
                row,
                numbers={
                    "kind": kind,
                    "variance": value,
                    "limit": limit,
                    "elements": int(window.finite[row]),
                },
                why=f"variance is {value:.3g}, {'above' if high[row] else 'below'} {limit:.3g}",
                do="check initialisation and learning rate of this layer; compare with its neighbours",
            )
