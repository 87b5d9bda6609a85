"""TDC121: tensors that do not change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.biases import biases_of_weights
from tdcore.rules.measures.previous_step import StepPairs, forget, step_pairs
from tdcore.rules.measures.reading import read_values
from tdcore.rules.measures.scope import checked, need_of, with_statistics
from tdcore.rules.measures.streaks import streaks
from tdcore.rules.measures.zero_loss import zero_loss_rows
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["UnchangedTensor"]

_DEFAULT = ("losses", "gradients")
_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
_SIZES = ("min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_min", "abs_max")
_COLUMNS = (*_COUNTS, "zero_count", *_SIZES)
_SLACK = 1e-9  # relative tolerance of sums that were computed in another order
_NOISE = 10  # in units of atol; smaller tensors are compared bitwise
_UNDECIDED = "statistics agree within the tolerance, and the values were not saved"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedTensor:
    """Tensors that do not change over several saved steps.

    What it does:
        Compares every saved loss and gradient, or the tensors that you select, with the same tensor at the
        previous saved step.

    Why it matters:
        If a loss or a gradient is constant, the model does not learn: the learning rate is zero, the
        optimizer has other parameters, every step gets the same batch, or the graph is cut.

    Decides by:
        A tensor is unchanged if, over `num_steps` saved steps including the current step, each pair of
        consecutive values is equal within the tolerances: numpy.allclose(older, newer, rtol, atol, equal_nan)
        is true. The tensor is reported once, until it has changed.

        In most cases the saved statistics decide. If minimum, maximum, mean or a norm differ by more than the
        tolerance, the tensor has changed. If all of them are bitwise equal, it has not changed (kind
        `statistics`: "unchanged by its statistics"). For scalars the statistics are the value.

        In all other cases, and for integers, whose statistics do not change when they are shuffled, the
        values are compared (kind `values`). This begins with the second consecutive pair for which the
        statistics do not decide, because the first such pair only shows that the values will be needed.
        Without values such a pair is not judged.

        A tensor whose largest magnitude is below 10 x atol is unchanged only if it is bitwise equal.
        Otherwise every tensor of rounding errors, such as the gradient of a bias before a normalisation
        layer, would count as unchanged.

        Tensors without elements, steps whose loss is exactly zero, and gradients of biases whose weight has a
        gradient above zero are not judged. compat=True applies the rule of smdebug, which judges all of these
        tensors.

    Parameters:
        collection_names: names of collections to judge; a list, or one string with commas.
        tensor_regex: regular expressions for names of tensors to judge (re.search); a list, or one string
            with commas. With both parameters, the union is judged; with neither, the collections `losses` and
            `gradients`.
        num_steps: number of saved steps over which a tensor must be the same.
        rtol: tolerance relative to the newer value.
        atol: absolute tolerance.
        equal_nan: whether two NaN count as equal.
        compat: True compares tensors of rounding errors by numpy.allclose too, and leaves out no tensors.

    False alarms:
        - Layers that are frozen on purpose, if `weights` are selected.
        - Zero gradients of unused branches, which AllZero reports too.

    Do:
        Check the learning rate and the parameters of the optimizer. Check that the data loader returns new
        batches and shuffles. Look for a detach(), or a no_grad() around the forward pass.

    Source:
        Documentation of numpy.allclose for the comparison.
    """

    code: ClassVar[str] = "TDC121"
    judged_by: ClassVar[JudgedBy] = "worker"

    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    num_steps: int = 3
    rtol: float = 1e-5
    atol: float = 1e-8
    equal_nan: bool = False
    compat: bool = False

    def __post_init__(self) -> None:
        checked(self)
        require(self.num_steps >= 2, self, "num_steps", self.num_steps, "2 or more")
        for name in ("rtol", "atol"):
            require(0 <= getattr(self, name) < np.inf, self, name, getattr(self, name), "0 or more")

    def needs(self) -> Need:
        """Statistics of the selected tensors."""
        return need_of(
            self,
            _DEFAULT,
            interval=100,
            keep=STATISTICS,
            form=f"statistics at {self.num_steps} steps or more",
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor and series of steps without a change."""
        wanted = with_statistics(self, window, _DEFAULT) & (window.columns.ints("count") > 0)
        if not self.compat:
            gradients = wanted & window.kind("gradient")
            of_learning = gradients & (window.columns.floats("abs_max") > 0)
            wanted &= ~zero_loss_rows(window) & ~biases_of_weights(window.columns, gradients, of_learning)
        found = step_pairs(window, wanted, _COLUMNS, "before")
        same, maybe = self._by_statistics(window, found)
        by_values = self._by_values(window, found, same, maybe)
        close = np.zeros(len(window), dtype=np.bool_)
        close[found.rows[same | by_values]] = True
        run = streaks(window, wanted, close, "same")
        values_read = np.zeros(len(window), dtype=np.bool_)
        values_read[found.rows[by_values]] = True
        for row in window.listed(np.flatnonzero(run == self.num_steps - 1)):
            kind = "values" if values_read[row] else "statistics"
            how = "" if kind == "values" else " by its statistics"
            yield window.finding(
                self,
                row,
                numbers={
                    "kind": kind,
                    "saved_steps": self.num_steps,
                    "rtol": self.rtol,
                    "atol": self.atol,
                    "elements": int(window.columns.ints("count")[row]),
                },
                why=f"unchanged{how} over {self.num_steps} saved steps",
                do="check the learning rate, the parameters of the optimizer, and that the data loader "
                "returns new batches",
            )

    def _by_statistics(self, window: Window, found: StepPairs) -> tuple[Mask, Mask]:
        """(pairs that are equal, pairs that may be close), by statistics only."""
        now, before = found.now, found.before
        with np.errstate(invalid="ignore", over="ignore"):
            counts = np.all([now[name] == before[name] for name in _COUNTS], axis=0)
            possible = found.known & counts & (self.equal_nan | (now["nan_count"] == 0))
            same = np.all([_same(now[name], before[name]) for name in _COLUMNS], axis=0)
            noise = np.maximum(now["abs_max"], before["abs_max"]) < _NOISE * self.atol
            near = self._within(now, before) & (same | ~noise | self.compat)
        scalar = (now["count"] == 1) & (now["nan_count"] + now["pos_inf_count"] + now["neg_inf_count"] == 0)
        shuffled = window.columns.where("dtype", _is_integer)[found.rows] & (now["min"] != now["max"])
        decided = np.where(scalar, near, same & ~shuffled)
        return possible & decided, possible & near & ~decided & ~scalar

    def _within(self, now: dict[str, Any], before: dict[str, Any]) -> Mask:
        """Mask of pairs whose elements may all be within the tolerance, judged by the statistics.

        |a - b| <= atol + rtol |b| for all elements bounds the difference of every statistic below.
        """
        n, largest = now["count"], np.nan_to_num(now["abs_max"])
        tight = self.atol + self.rtol * largest
        slack = _SLACK * largest
        close = np.ones(n.size, dtype=np.bool_)
        for name in ("min", "max", "abs_min", "abs_max"):
            close &= ~(np.abs(now[name] - before[name]) > tight)
        total = n * self.atol + self.rtol * now["abs_sum"] + n * slack
        close &= ~(np.abs(now["mean"] - before["mean"]) * n > total)
        close &= ~(np.abs(now["abs_sum"] - before["abs_sum"]) > total)
        norm, norm_before = np.sqrt(now["square_sum"]), np.sqrt(before["square_sum"])
        limit = np.sqrt(n) * (self.atol + slack) + self.rtol * norm
        close &= ~(np.abs(norm - norm_before) > limit)
        return close

    def _by_values(self, window: Window, found: StepPairs, same: Mask, maybe: Mask) -> Mask:
        """Mask of pairs whose values are close. Counts the judged and missing rows."""
        close = np.zeros(found.rows.size, dtype=np.bool_)
        anchors: dict[tuple[object, ...], npt.NDArray[Any]] = window.memory.setdefault("values", {})
        saved = window.columns.present("nbytes")[found.rows]
        undecided = maybe & ~saved
        window.missing(_UNDECIDED, int(np.sum(undecided)))
        window.judged(int(np.sum(~undecided)))
        followed = {layer[3] for layer in anchors}
        codes, texts = window.columns.codes("name")
        in_play = np.array([text in followed for text in texts], dtype=np.bool_)
        in_play[codes[found.rows[maybe & saved]]] = True
        for at in np.flatnonzero(in_play[codes[found.rows]]).tolist():
            row = int(found.rows[at])
            layer = window.layer(row)
            if same[at]:
                continue
            older = anchors.pop(layer, None)
            values = read_values(window, row, "tensor", complex_too=True) if maybe[at] and saved[at] else None
            if values is None:
                continue
            anchors[layer] = np.array(values)
            close[at] = older is not None and older.shape == values.shape and self._close(older, values)
        forget(window, anchors)
        return close

    def _close(self, older: npt.NDArray[Any], newer: npt.NDArray[Any]) -> bool:
        kind = np.complex128 if older.dtype.kind == "c" else np.float64
        old, new = older.astype(kind), newer.astype(kind)
        return bool(np.allclose(old, new, rtol=self.rtol, atol=self.atol, equal_nan=self.equal_nan))


def _same(now: npt.NDArray[np.float64], before: npt.NDArray[np.float64]) -> Mask:
    same: Mask = (now == before) | (np.isnan(now) & np.isnan(before))
    return same


def _is_integer(dtype: str) -> bool:
    return dtype == "BOOL" or dtype.startswith(("I", "U"))
