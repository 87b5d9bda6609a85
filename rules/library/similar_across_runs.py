"""TDC114: tensors that differ from those of another run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.save_config import SaveConfig
from tdcore.errors import RunError
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.other_run import OpenedRuns, OtherRun, opened
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.trace import Trace
from tdcore.rules.window import Window, compile_pattern

__all__ = ["SimilarAcrossRuns"]

_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
_VALUES = ("min", "max", "mean", "abs_sum", "square_sum")
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarAcrossRuns:
    """Tensors that differ between this run and another run.

    What it does:
        Compares saved tensors with those of one or more other runs, at the same steps.

    Why it matters:
        Two runs of the same code, data and seed should agree. The first tensor that differs, in order of
        execution, shows the cause: a seed that was not set, another version of a library, data in another
        order, or a kernel that is not deterministic.

    Decides by:
        The rule compares tensors that have the same worker (training process), mode (such as TRAIN or EVAL),
        step number within the mode, name and call number (0, 1, ... for a module that runs several times in a
        step). The finding names the comparison that was used.

        - If both runs have the values, the tensors differ if their shapes differ, or if |a - b| <= atol +
          rtol x |b| is false for an element (b is of the other run). Equal infinities, and NaN at the same
          position, agree.
        - Otherwise the statistics are compared. The numbers of elements, NaN and infinities must be equal.
          Minimum, maximum, mean, sum of |x| and sum of x^2 must be within the same tolerances.

        Despite its name the rule fires on differences, as in smdebug. A tensor that is missing in the other
        run is counted as not judged. The other run is read once, when the rule judges the first steps. Only
        its numbers are read, and none of its content is executed.

    Parameters:
        other_trials: folders or URLs of the other runs; a list, or one string with commas. A Trace, a run in
            memory, is accepted too.
        other_trial: one additional run. smdebug uses this parameter name.
        collection_names: names of collections to judge; a list, or one string with commas.
        tensor_regex: regular expressions for names of tensors to judge (re.search); a list, or one string
            with commas. With both parameters, the union is judged; with neither, every saved tensor.
        rtol: relative tolerance.
        atol: absolute tolerance.

    False alarms:
        - GPU kernels that add in any order: differences of 1e-7 become visible within some hundred steps of
          training. Compare early steps, or raise rtol.
        - Runs with another batch size or number of workers.

    Do:
        Look at the first finding of the first step. For an input, check data order and augmentation. For a
        weight at step 0, check seed and initialisation. For a gradient, search for a kernel that is not
        deterministic.

    Source:
        P. Nagarajan, G. Warnell, P. Stone, Deterministic implementations for reproducibility in deep
        reinforcement learning, 2018.
    """

    code: ClassVar[str] = "TDC114"
    judged_by: ClassVar[JudgedBy] = "tensor"

    other_trials: str | Sequence[str | Trace] | None = None
    other_trial: str | None = None
    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    rtol: float = 1e-5
    atol: float = 1e-8

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        for name in ("rtol", "atol"):
            require(0 <= getattr(self, name) < np.inf, self, name, getattr(self, name), "0 or more")

    def needs(self) -> Need:
        """The same tensors in both runs."""
        scope = [f"collection {name!r}" for name in names_of(self.collection_names)]
        scope += [f"tensors matching {pattern!r}" for pattern in names_of(self.tensor_regex)]
        others = ", ".join(map(_name, self._others())) or "another run (give other_trials)"
        return Need(
            what=f"{' and '.join(scope) or 'tensors'} saved at the same steps here and in {others}",
            captures=captures_of(
                names_of(self.collection_names) or (() if self.tensor_regex else ("losses",)),
                names_of(self.tensor_regex),
                save_config=SaveConfig(save_interval=100),
                keep=STATISTICS,
            ),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor, step and other run in which it differs."""
        wanted = window.selected(names_of(self.collection_names), names_of(self.tensor_regex)) & window.ok
        rows = np.flatnonzero(wanted)
        others = self._others()
        if not others:
            window.missing("no other run to compare with was given (other_trials)", int(rows.size))
        if not rows.size or not others:
            return
        look = window.memory.setdefault("look", OpenedRuns())
        for number, place in enumerate(others):
            other = opened(place, look) if isinstance(place, str) else OtherRun(place.source())
            yield from self._compare(window, rows, other, number, _name(place))

    def _others(self) -> tuple[str | Trace, ...]:
        given = self.other_trials
        several = names_of(given) if given is None or isinstance(given, str) else tuple(given)
        return (*several, *names_of(self.other_trial))

    def _compare(
        self, window: Window, rows: _Ints, other: OtherRun, number: int, place: str
    ) -> Iterator[Finding]:
        partner = other.rows_like(window, rows)
        there = partner >= 0
        there[there] = other.ok(partner[there])
        window.missing(f"not saved by {place} at this step", int(np.sum(~there)))
        rows, partner = rows[there], partner[there]
        whole = window.columns.present("nbytes")[rows] & other.columns.present("nbytes")[partner]
        counted = ~whole & window.counted[rows] & other.columns.present("count")[partner]
        window.missing(
            "tensor saved without values in one of the runs, and without statistics in one of the runs",
            int(np.sum(~whole & ~counted)),
        )
        differs = np.zeros(rows.size, dtype=np.bool_)
        differs[counted] = self._statistics_differ(window, rows[counted], other, partner[counted])
        window.judged(int(np.sum(counted)))
        hits = np.flatnonzero(differs)
        told = set(hits[window.listed_at(rows[hits])].tolist())
        for at in np.flatnonzero(whole | differs).tolist():
            row, twin = int(rows[at]), int(partner[at])
            if whole[at]:
                numbers, why = self._values_differ(window, row, other, twin)
            elif at in told:
                numbers, why = self._statistics_in_words(window, row, other, twin)
            else:
                continue
            if numbers:
                kind = f"{numbers.pop('kind')}, other run {number}"
                yield window.finding(
                    self,
                    row,
                    numbers={"kind": kind, **numbers, "rtol": self.rtol, "atol": self.atol},
                    why=f"{why}, compared with {place}",
                    do="look at the first difference of the first step: check seed, data order, versions and "
                    "kernels",
                )

    def _statistics_differ(self, window: Window, rows: _Ints, other: OtherRun, partner: _Ints) -> Mask:
        found = np.zeros(rows.size, dtype=np.bool_)
        for name in _COUNTS:
            found |= window.columns.ints(name)[rows] != other.columns.ints(name)[partner]
        for name in _VALUES:
            here, there = window.columns.floats(name)[rows], other.columns.floats(name)[partner]
            found |= ~np.isclose(here, there, rtol=self.rtol, atol=self.atol, equal_nan=True)
        return found

    def _statistics_in_words(
        self, window: Window, row: int, other: OtherRun, partner: int
    ) -> tuple[dict[str, float | int | str], str]:
        for name in (*_COUNTS, *_VALUES):
            here, there = (
                float(window.columns.floats(name)[row]),
                float(other.columns.floats(name)[partner]),
            )
            if not np.isclose(here, there, rtol=self.rtol, atol=self.atol, equal_nan=True):
                break
        numbers: dict[str, float | int | str] = {"kind": "statistics", "statistic": name}
        numbers |= {"here": here, "there": there}
        return numbers, f"{name} is {here:.8g} here and {there:.8g} there (by statistics)"

    def _values_differ(
        self, window: Window, row: int, other: OtherRun, partner: int
    ) -> tuple[dict[str, float | int | str], str]:
        """The differences between two tensors; empty if there are none or if reading failed."""
        try:
            ((_, here),) = window.read([row])
            there = other.payload(partner)
        except RunError as error:
            window.missing(f"values could not be read ({type(error).__name__})", 1)
            return {}, ""
        window.judged(1)
        if here.shape != there.shape:
            shapes = f"the shape is {list(here.shape)} here and {list(there.shape)} there"
            return {"kind": "shape", "here": str(here.shape), "there": str(there.shape)}, shapes
        a, b = _wide(here), _wide(there)
        close = np.isclose(a, b, rtol=self.rtol, atol=self.atol, equal_nan=True)
        far = int(np.sum(~close))
        if not far:
            return {}, ""
        with np.errstate(invalid="ignore"):
            gaps = np.abs(a - b)[~close]
        largest = float(np.max(gaps)) if np.all(np.isfinite(gaps)) else np.inf
        numbers: dict[str, float | int | str] = {"kind": "values", "different": far, "elements": int(a.size)}
        numbers["largest_difference"] = largest
        return numbers, f"{far} of {a.size} values differ, by up to {largest:.3g}"


def _wide(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values in double precision, so that differences of small integer and float types do not overflow."""
    return values if values.dtype.kind == "c" else values.astype(np.float64)


def _name(place: str | Trace) -> str:
    return place if isinstance(place, str) else "a trace"
