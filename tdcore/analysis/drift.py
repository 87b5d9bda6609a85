"""Drift: which features of captured inputs or activations have another distribution than before.

There are three measures per feature. The Kolmogorov-Smirnov statistic depends only on the order of values,
and has a p-value. The population stability index compares shares of bins. The Wasserstein distance is in the
unit of the feature. Stateless functions; any thread.

Sources: N. Siddiqi, Credit risk scorecards, Wiley 2006 (population stability index). N. Smirnov, Annals of
Mathematical Statistics 19, 1948 (two-sample test). A. Ramdas, N. Garcia, M. Cuturi, On Wasserstein two-sample
testing, Entropy 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.analysis.matrices import Floats
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = [
    "FeatureDrift",
    "drift",
    "drift_of_steps",
    "kolmogorov_smirnov",
    "population_stability",
    "wasserstein",
]

_BINS = 10
_TERMS = 100  # of the series of the p-value


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDrift:
    """How the distribution of one feature differs from the reference.

    Attributes:
        feature: Name or number of the feature.
        ks: Kolmogorov-Smirnov statistic, 0 to 1: the largest difference of the two distribution functions.
        p_value: Probability of such a statistic without drift, asymptotically.
        psi: Population stability index. 0.1 is commonly called small, and 0.25 large.
        wasserstein: Wasserstein distance, in the unit of the feature.
        median_before, median: Medians of the reference and of the new values; NaN without finite values.
        missing_before, missing: Shares of values that are NaN or infinite. The measures leave them out.
        moved: Whether the p-value is below the chosen level, divided by the number of features (Bonferroni).
    """

    feature: str
    ks: float
    p_value: float
    psi: float
    wasserstein: float
    median_before: float
    median: float
    missing_before: float
    missing: float
    moved: bool

    @property
    def text(self) -> str:
        """The drift in one line."""
        return (
            f"{self.feature}: median {self.median_before:.4g} -> {self.median:.4g}, "
            f"KS {self.ks:.2f}, PSI {self.psi:.2f}"
        )


def drift(
    reference: Any, values: Any, *, features: Sequence[str] | None = None, level: float = 0.001
) -> list[FeatureDrift]:
    """Compare new values with a reference, feature by feature.

    Args:
        reference, values: Arrays (..., features) with equal numbers of features. Other axes are samples.
        features: Names of the features. None: their numbers.
        level: Level of significance of `moved`, for all features together.

    Returns:
        All features, the largest Kolmogorov-Smirnov statistic first.

    Raises:
        ValueError: The arrays have no axis, no samples, or different numbers of features.
    """
    before, now = _columns(reference, "reference"), _columns(values, "values")
    number = before.shape[1]
    if now.shape[1] != number:
        raise ValueError(f"values has {now.shape[1]} features and reference has {number}")
    names = [str(each) for each in (range(number) if features is None else features)]
    if len(names) != number:
        raise ValueError(f"features has {len(names)} names, the arrays have {number} features")
    found = [
        _compared(name, before[:, column], now[:, column], level / number)
        for column, name in enumerate(names)
    ]
    return sorted(found, key=lambda each: (-each.ks, -each.missing))


def drift_of_steps(
    trial: Trial,
    name: str,
    reference: Iterable[int],
    steps: Iterable[int],
    *,
    mode: ModeKeys = ModeKeys.PREDICT,
    features: Sequence[str] | None = None,
    level: float = 0.001,
) -> list[FeatureDrift]:
    """Compare the values of a captured tensor at some steps with its values at earlier steps.

    Args:
        trial: The run.
        name: Name of the tensor. Its last axis holds the features.
        reference, steps: Steps of the mode whose values were saved.
        mode: Mode of the steps.
        features, level: See drift().

    Raises:
        TensorUnavailable, TensorUnavailableForStep: The values were not saved.
        ValueError: See drift().
    """
    tensor = trial.tensor(name)

    def joined(chosen: Iterable[int], what: str) -> Floats:
        parts = [_columns(tensor.value(step, mode), f"{name} at step {step}") for step in chosen]
        if not parts:
            raise ValueError(f"{what} of {name} has no steps")
        return np.concatenate(parts)

    return drift(joined(reference, "reference"), joined(steps, "steps"), features=features, level=level)


def kolmogorov_smirnov(reference: Any, values: Any) -> float:
    """Largest difference between the distribution functions of two samples (n,) and (m,), 0 to 1."""
    before, now = _sample(reference, "reference"), _sample(values, "values")
    places = np.concatenate([before, now])
    shares = (np.searchsorted(np.sort(each), places, side="right") / each.size for each in (before, now))
    first, second = shares
    return float(np.abs(first - second).max())


def wasserstein(reference: Any, values: Any) -> float:
    """Wasserstein distance (order 1) of samples (n,) and (m,): area between their distribution functions."""
    before, now = np.sort(_sample(reference, "reference")), np.sort(_sample(values, "values"))
    places = np.sort(np.concatenate([before, now]))
    first = np.searchsorted(before, places[:-1], side="right") / before.size
    second = np.searchsorted(now, places[:-1], side="right") / now.size
    return float((np.abs(first - second) * np.diff(places)).sum())


def population_stability(reference: Any, values: Any, *, bins: int = _BINS) -> float:
    """Population stability index of two samples (n,) and (m,).

    The bins have equal shares of the reference; equal values are in one bin. If the smallest value fills the
    first bin, values below it are in a further bin. Half a value is added to each bin, so that an empty bin
    gives a finite index.
    """
    before, now = _sample(reference, "reference"), _sample(values, "values")
    edges = np.unique(np.quantile(before, np.linspace(0, 1, bins + 1)[1:-1]))
    if edges.size and edges[0] == before.min() and now.min() < edges[0]:
        edges = np.insert(edges, 0, np.nextafter(edges[0], -np.inf))
    shares = []
    for sample in (before, now):
        counts = np.bincount(np.searchsorted(edges, sample, side="left"), minlength=edges.size + 1) + 0.5
        shares.append(counts / counts.sum())
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def _compared(name: str, before: Floats, now: Floats, level: float) -> FeatureDrift:
    missing = [float(1 - np.isfinite(each).mean()) for each in (before, now)]
    before, now = before[np.isfinite(before)], now[np.isfinite(now)]
    if not before.size or not now.size:
        nan = float("nan")
        medians = [float(np.median(each)) if each.size else nan for each in (before, now)]
        one = before.size != now.size
        return FeatureDrift(
            feature=name, ks=1.0 if one else 0.0, p_value=0.0 if one else 1.0, psi=nan, wasserstein=nan,
            median_before=medians[0], median=medians[1], missing_before=missing[0], missing=missing[1],
            moved=one,
        )  # fmt: skip
    ks = kolmogorov_smirnov(before, now)
    p_value = _p_value(ks, before.size, now.size)
    return FeatureDrift(
        feature=name,
        ks=ks,
        p_value=p_value,
        psi=population_stability(before, now),
        wasserstein=wasserstein(before, now),
        median_before=float(np.median(before)),
        median=float(np.median(now)),
        missing_before=missing[0],
        missing=missing[1],
        moved=p_value < level,
    )


def _p_value(statistic: float, first: int, second: int) -> float:
    """Asymptotic p-value of the two-sample Kolmogorov-Smirnov test: the series of Kolmogorov."""
    size = statistic * np.sqrt(first / (first + second) * second)
    if size < 0.2:  # the series converges slowly, and the value is 1 to twelve digits
        return 1.0
    terms = np.arange(1, _TERMS + 1)
    total = 2 * ((-1.0) ** (terms - 1) * np.exp(-2 * (terms * size) ** 2)).sum()
    return float(np.clip(total, 0.0, 1.0))


def _columns(values: Any, what: str) -> Floats:
    array = np.asarray(values).astype(np.float64)
    if array.ndim == 0 or not array.size:
        raise ValueError(f"{what} of the shape {array.shape} has no samples")
    return array.reshape(-1, array.shape[-1])


def _sample(values: Any, what: str) -> Floats:
    array: Floats = np.asarray(values).astype(np.float64).ravel()
    if not array.size or not np.isfinite(array).all():
        raise ValueError(f"{what} must have at least one value, and no NaN or infinity")
    return array
