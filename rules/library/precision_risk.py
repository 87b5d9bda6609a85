"""TDC124: values near the limits of a number type of low precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Floats, Mask
from tdcore.rules.measures.scope import checked, need_of, with_statistics
from tdcore.rules.measures.streaks import streaks
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["PrecisionRisk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberType:
    """A number type of low precision.

    Attributes:
        stored: The name of the type in the index.
        normal: Exponent of its smallest normal number.
        lost: A value below 2^lost becomes zero.
        largest: The largest number of the type.
        scaled: Whether tensors of this type are scaled to its range on purpose.
    """

    stored: str
    normal: int
    lost: int
    largest: float
    scaled: bool = False


_TYPES = {
    "float16": NumberType(stored="F16", normal=-14, lost=-25, largest=65504.0),
    "bfloat16": NumberType(stored="BF16", normal=-126, lost=-134, largest=2.0**127 * (2 - 2.0**-7)),
    "float8_e4m3": NumberType(stored="F8_E4M3", normal=-6, lost=-10, largest=448.0, scaled=True),
    "float8_e5m2": NumberType(stored="F8_E5M2", normal=-14, lost=-17, largest=57344.0, scaled=True),
}
_DEFAULT = ("gradients", "optimizer_variables", "weights", "biases", "inputs", "outputs")
_UNDERFLOW_KINDS = ("gradient", "optimizer_state")
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRisk:
    """Tensors whose values underflow, or nearly overflow, in float16, bfloat16 or float8.

    What it does:
        Compares the histogram of the magnitudes of tensors with the range of a number type: the type in which
        they are stored, or a type that you want to use.

    Why it matters:
        Values below the smallest normal number of a type lose digits, and values below the smallest number
        become zero, so small gradients never reach the weights. Values above the largest number become
        infinite. The rule finds both risks early.

    Decides by:
        - `underflow`: 100 x (non-zero elements below the smallest normal number) / (non-zero elements) >
          underflow_percent.
        - `overflow`: largest magnitude x headroom > the largest number of the type.

        A tensor is reported at the `patience`-th consecutive saved step with one of these conditions. It is
        reported again only after a step without the condition. The smallest normal and the largest numbers
        are: float16 6.1e-5 and 65504, bfloat16 1.2e-38 and 3.4e38, float8_e4m3 0.016 and 448, float8_e5m2
        6.1e-5 and 57344.

        The percentages come from the saved histogram and the saved count of subnormal numbers. If a tensor is
        stored in the checked type, elements that were already rounded to zero cannot be counted. If it is
        stored in a wider type, `lost_percent` is the percentage of elements that the checked type would round
        to zero (not computed for bfloat16).

        Tensors stored in float8 are not judged for overflow, because they are scaled to fill its range.
        Tensors stored in float64 are not judged for underflow of bfloat16, because the histogram does not
        reach down to the smallest normal number of bfloat16.

    Parameters:
        dtype: "auto" judges each tensor for the type in which it is stored, except float32 and float64; a
            name ("float16", "bfloat16", "float8_e4m3", "float8_e5m2") judges all tensors for that type.
        collection_names: names of collections to judge; a list, or one string with commas.
        tensor_regex: regular expressions for names of tensors to judge (re.search); a list, or one string
            with commas. If both parameters are set, the union is judged. If neither is set, gradients and
            optimizer state are judged for underflow and overflow; weights, biases, inputs and outputs are
            judged for overflow only, because small weights and activations do no harm.
        underflow_percent: tolerated percentage of non-zero elements below the smallest normal number.
        headroom: factor by which values must be able to grow without overflow; 2 is one bit.
        patience: number of consecutive saved steps with the condition that make a finding.

    False alarms:
        - Attention masks that are filled with the largest number of the type.
        - Gradients that a gradient scaler has scaled up in the backward pass and that the hook has scaled
          down again: use dtype="auto".
        - The end of a successful training, where all gradients are small.

    Do:
        Underflow: scale the loss (a gradient scaler), use bfloat16, or keep this tensor in float32. Overflow:
        use bfloat16 or float32 for this tensor, normalise its input, or lower the loss scale.

    Source:
        P. Micikevicius et al., Mixed precision training, ICLR 2018, and FP8 formats for deep learning, 2022.
    """

    code: ClassVar[str] = "TDC124"
    judged_by: ClassVar[JudgedBy] = "tensor"
    columns: ClassVar[tuple[str, ...]] = ("log2_first", "log2_counts")

    dtype: str = "auto"
    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    underflow_percent: float = 25.0
    headroom: float = 2.0
    patience: int = 3

    def __post_init__(self) -> None:
        checked(self)
        names = ("auto", *_TYPES)
        require(self.dtype in names, self, "dtype", self.dtype, f"one of {', '.join(names)}")
        percent = self.underflow_percent
        require(0 <= percent <= 100, self, "underflow_percent", percent, "a percentage, 0 to 100")
        require(1 <= self.headroom < np.inf, self, "headroom", self.headroom, "a number of 1 or more")
        require(self.patience >= 1, self, "patience", self.patience, "1 or more")

    def needs(self) -> Need:
        """Statistics of the selected tensors."""
        need = need_of(self, _DEFAULT[:2], interval=100, keep=STATISTICS, form="statistics")
        if self.dtype == "auto":
            stored = "stored in float16, bfloat16 or float8 (name a dtype to judge those in float32)"
            return replace(need, what=f"{need.what}, {stored}")
        return need

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor, kind and series of consecutive saved steps."""
        rows = with_statistics(self, window, _DEFAULT) & (window.finite > 0)
        everything = bool(names_of(self.collection_names) or names_of(self.tensor_regex))
        small_matters = rows if everything else rows & window.kind(*_UNDERFLOW_KINDS)
        judged = np.zeros_like(rows)
        for name, kind in _TYPES.items():
            if self.dtype not in ("auto", name):
                continue
            of_kind = rows & window.columns.where("dtype", self._stored(kind))
            if of_kind.any():
                judged |= of_kind & (small_matters | (not (kind.scaled and self.dtype == "auto")))
                yield from self._underflow(window, name, of_kind & small_matters)
                yield from self._overflow(window, name, of_kind)
        window.judged(int(np.sum(judged)))

    def _stored(self, kind: NumberType) -> Callable[[str], bool]:
        wanted = {kind.stored} if self.dtype == "auto" else _FLOATS | {kind.stored}
        return lambda dtype: dtype in wanted

    def _underflow(self, window: Window, name: str, rows: Mask) -> Iterator[Finding]:
        some = window.finite - window.columns.floats("zero_count")
        small, lost = _below(window, _TYPES[name], rows)
        risky = rows & (some > 0) & (100.0 * small > self.underflow_percent * some)
        run = streaks(window, rows, risky, f"underflow {name}")
        for row in window.listed(np.flatnonzero(run == self.patience)):
            percent = 100.0 * float(small[row] / some[row])
            yield window.finding(
                self,
                row,
                numbers={
                    "kind": "underflow",
                    "dtype": name,
                    "small_percent": percent,
                    "lost_percent": 100.0 * float(lost[row] / some[row]),
                    "underflow_percent": self.underflow_percent,
                    "elements": int(some[row]),
                },
                why=f"{percent:.3g} % of the non-zero elements are below the smallest normal number of "
                f"{name}, 2^{_TYPES[name].normal}, for {self.patience} saved steps in a row",
                do="scale the loss, use bfloat16, or keep this tensor in float32",
            )

    def _overflow(self, window: Window, name: str, rows: Mask) -> Iterator[Finding]:
        kind = _TYPES[name]
        if kind.scaled and self.dtype == "auto":
            return
        largest = window.columns.floats("abs_max")
        run = streaks(window, rows, rows & (largest > kind.largest / self.headroom), f"overflow {name}")
        for row in window.listed(np.flatnonzero(run == self.patience)):
            value = float(largest[row])
            yield window.finding(
                self,
                row,
                numbers={
                    "kind": "overflow",
                    "dtype": name,
                    "abs_max": value,
                    "largest": kind.largest,
                    "headroom": self.headroom,
                },
                why=f"the largest magnitude is {value:.4g}, and the largest number of {name} is "
                f"{kind.largest:.4g}, "
                f"for {self.patience} saved steps in a row",
                do="use bfloat16 or float32 for this tensor, normalise its input, or lower the loss scale",
            )


def _below(window: Window, kind: NumberType, rows: Mask) -> tuple[Floats, Floats]:
    """(elements below the smallest normal number, elements that would be zero) of each row of the window."""
    small, lost = np.zeros(len(window)), np.zeros(len(window))
    at = np.flatnonzero(rows)
    if kind.stored == "BF16":  # has the range of float32, which is larger than that of the histogram
        single = rows & window.columns.where("dtype", lambda dtype: dtype in ("BF16", "F32"))
        small[single] = window.columns.floats("subnormal_count")[single]
    elif at.size:
        histograms = window.columns.histograms(at)
        small[at], lost[at] = histograms.below(kind.normal), histograms.below(kind.lost)
    return small, lost
