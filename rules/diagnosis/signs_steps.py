"""Signs of faults in the update: learning rate, clipping, weight decay, precision, steps without effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.diagnosis.evidence import CERTAIN, LIKELY, POSSIBLE, Evidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.histories import History
from tdcore.rules.measures.format import rounded

__all__ = [
    "clipping_too_tight",
    "decay_too_high",
    "is_adaptive",
    "lost_in_half_precision",
    "rate_too_high",
    "rate_too_low",
    "training_stopped",
    "update_ratios",
]

Floats = npt.NDArray[np.float64]
_EARLY = 40  # number of first steps in which a learning rate that is far too high has effects
_TOO_HIGH, _TOO_LOW = 0.25, 1e-5  # relative size of an update; about 1e-3 is healthy
_SLOW = 2e-4  # relative size of an update below which a loss that hardly falls is caused by the learning rate
_FALLEN, _SAVED = 0.05, 40  # maximum relative fall of such a loss, and minimum number of saved steps
_STILL = 5  # saved steps without a change before a weight counts as unchanged
_CLIPPED_SPREAD = 1e-3  # relative spread of a norm that is clipped at each step


def update_ratios(facts: Facts) -> list[tuple[History, Floats]]:
    """Size of an update relative to its weight, for each weight matrix and step, from rate and gradient.

    For Adam and similar optimizers, an update is about as large as the learning rate. For SGD it is rate
    times gradient, divided by 1 - momentum. Rows whose weight or gradient is not finite are left out. The
    result is empty for other optimizers, and for groups with different rates.
    """
    rate = facts.hyperparameter("lr")
    if rate is None or not len(rate):
        return []
    adaptive = any(facts.hyperparameter(name) is not None for name in ("betas", "alpha"))  # Adam, RMSprop
    if not adaptive and (facts.hyperparameter("momentum") is None or is_adaptive(facts)):
        return []  # Adadelta and Adagrad scale the rate themselves
    momentum = facts.hyperparameter("momentum")
    factor = 1.0
    if momentum is not None and len(momentum) and 0 < momentum.mean[0] < 1:
        factor = 1 / (1 - float(momentum.mean[0]))
    found = []
    for weight in facts.matrices:
        gradient = facts.gradient_of(weight)
        if gradient is None:
            continue
        sound, usable = weight.bad == 0, gradient.bad == 0
        common, at, of_gradient = np.intersect1d(
            weight.steps[sound], gradient.steps[usable], return_indices=True
        )
        sizes, changes = weight.rms[sound][at], gradient.rms[usable][of_gradient]
        if common.size < 3:
            continue
        rates = np.interp(common, rate.steps, rate.mean)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            update = rates if adaptive else rates * factor * changes
            ratio = np.where((changes > 0) & (sizes > 0), update / sizes, 0.0)
        found.append((weight, ratio))
    return found


def is_adaptive(facts: Facts) -> bool:
    """Whether the size of an update does not depend on the size of the gradient."""
    return any(facts.hyperparameter(name) is not None for name in ("betas", "alpha", "rho", "lr_decay"))


def rate_too_high(facts: Facts) -> Iterator[Evidence]:
    """Updates as large as the weights, weights that grow by a large factor, and a loss that jumps."""
    ratios = update_ratios(facts)
    signs: list[str] = []
    names: list[str] = []
    early = [(one, float(np.median(ratio[:_EARLY]))) for one, ratio in ratios]
    large = [(one, ratio) for one, ratio in early if ratio > _TOO_HIGH and one.rms[0] > 1e-4]
    if large and len(large) >= 0.5 * len(early):
        names += [one.name for one, _ in large]
        signs.append(
            f"an update is {rounded(_middle(ratio for _, ratio in large))} times as large as its weight"
        )
    grown = [one for one in facts.matrices if _growth(one) > 3]
    if grown and len(grown) >= 0.5 * len(facts.matrices):
        names += [one.name for one in grown]
        signs.append(
            f"weights grow by a factor of up to {rounded(max(_growth(one) for one in grown))} in "
            f"{_EARLY} steps"
        )
    leap = _leap(facts)
    if leap:
        signs.append(leap)
    if not signs or (len(signs) == 1 and not large):
        return
    strength = {1: 0.7, 2: 0.88, 3: 0.94}[len(signs)]
    yield Evidence(
        why="; ".join(signs),
        strength=strength if large else 0.72,
        tensors=tuple(dict.fromkeys(names)),
        mode=facts.training,
        step=facts.first_step,
    )


def _middle(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _growth(weight: History) -> float:
    early = weight.rms[weight.until(_EARLY) & (weight.bad == 0)]
    return float(np.nanmax(early) / weight.rms[0]) if early.size > 1 and weight.rms[0] > 1e-6 else 1.0


def _leap(facts: Facts) -> str:
    for loss in facts.losses[:1]:
        early = loss.mean[loss.until(2 * _EARLY) & (loss.bad == 0)]
        finite = early[np.isfinite(early)]
        if finite.size >= 3 and finite.max() > 5 * abs(finite[0]) + 1e-9:
            return f"the loss jumps from {rounded(finite[0])} to {rounded(finite.max())}"
    return ""


def rate_too_low(facts: Facts) -> Iterator[Evidence]:
    """Updates that are far too small to change the weights, or under which the loss hardly falls."""
    rate = facts.hyperparameter("lr")
    ratios = [
        (one, float(np.median(ratio[ratio > 0]))) for one, ratio in update_ratios(facts) if np.any(ratio > 0)
    ]
    if not ratios or rate is None or rate.mean[-1] > 1.05 * rate.mean[len(rate) // 2]:
        return  # the learning rate is unknown, or still in its warm-up
    for limit, sure in ((_TOO_LOW, float(rate.mean.max()) <= 1e-4), (_SLOW, _hardly_falls(facts, rate))):
        low = [(one, ratio) for one, ratio in ratios if ratio < limit]
        if sure and len(low) >= 0.8 * len(ratios):
            yield Evidence(
                why=f"an update changes a weight by {rounded(_middle(ratio for _, ratio in low))} of its "
                f"size with the learning rate {rounded(float(np.median(rate.mean)))}",
                strength=0.9 if limit == _TOO_LOW else POSSIBLE + 0.1,
                tensors=tuple(one.name for one, _ in low),
                mode=facts.training,
                step=int(low[0][0].steps[0]),
            )
            return


def _hardly_falls(facts: Facts, rate: History) -> bool:
    """Whether the loss is nearly the same at the end, under a rate that no schedule has lowered."""
    losses = [one for one in facts.losses if one.mode == facts.training]
    if not losses or len(losses[0]) < _SAVED or rate.mean[-1] < 0.5 * rate.mean.max():
        return False
    values = losses[0].mean
    first, last = float(np.mean(values[:10])), float(np.mean(values[-10:]))
    return bool(np.all(np.isfinite(values))) and first > 0 and (first - last) < _FALLEN * first


def _norm(facts: Facts) -> tuple[npt.NDArray[np.int64], Floats]:
    """(steps, norm of all gradients together) at the steps at which all gradients were saved."""
    gradients = [one for one in facts.gradients if len(one) >= 5]
    if not gradients:
        return np.empty(0, dtype=np.int64), np.empty(0)
    steps = gradients[0].steps
    for one in gradients[1:]:
        steps = np.intersect1d(steps, one.steps)
    total = np.zeros(steps.size)
    for one in gradients:
        total += one.square_sum[np.searchsorted(one.steps, steps)]
    return steps, np.sqrt(total)


def clipping_too_tight(facts: Facts) -> Iterator[Evidence]:
    """A norm of all gradients that is the same at nearly every step, and so small that nothing is learned."""
    steps, norms = _norm(facts)
    if steps.size < 10 or not np.all(np.isfinite(norms)) or np.median(norms) == 0:
        return
    usual = float(np.median(norms))
    clipped = float(np.mean(np.abs(norms / usual - 1) < _CLIPPED_SPREAD))
    ratios = [float(np.median(ratio)) for _, ratio in update_ratios(facts)]
    if is_adaptive(facts):
        return  # Adam divides by the size of the gradient
    if clipped > 0.8 and ratios and (np.median(ratios) < 1e-4 or usual < 1e-3):
        yield Evidence(
            why=f"the norm of all gradients is {rounded(usual)} at {clipped:.0%} of the steps: it is "
            f"clipped, and an update changes a weight by {rounded(_middle(ratios))} of its size",
            strength=0.93,
            tensors=tuple(one.name for one in facts.gradients),
            mode=facts.training,
            step=int(steps[0]),
        )


def decay_too_high(facts: Facts) -> Iterator[Evidence]:
    """Weights that weight decay shrinks."""
    decay, rate = facts.hyperparameter("weight_decay"), facts.hyperparameter("lr")
    if decay is None or rate is None or decay.mean[0] <= 0:
        return
    shrinking = float(decay.mean[0]) * float(np.median(rate.mean))
    shrunk = [
        one
        for one in facts.matrices
        if len(one) > 5 and one.rms[0] > 0 and np.min(one.rms[one.until(150)]) < 0.3 * one.rms[0]
    ]
    if shrinking > 2e-3 and len(shrunk) >= 0.5 * len(facts.matrices):
        smallest = min(float(np.min(one.rms[one.until(150)]) / one.rms[0]) for one in shrunk)
        yield Evidence(
            why=f"weights shrink to {smallest:.1%} of their size; weight decay {rounded(decay.mean[0])} "
            f"times the learning rate takes {shrinking:.1%} of each weight at every step",
            strength=0.92,
            tensors=tuple(one.name for one in shrunk),
            mode=facts.training,
            step=int(shrunk[0].steps[0]),
        )


def lost_in_half_precision(facts: Facts) -> Iterator[Evidence]:
    """Weights of a half-precision type that are too coarse for their updates."""
    spacing = {"BF16": 2.0**-9, "F16": 2.0**-12}
    lost = []
    for weight, ratio in update_ratios(facts):
        finest = spacing.get(weight.dtype)
        if finest is None or not np.any(ratio > 0):
            continue
        same = np.mean(np.diff(weight.square_sum) == 0)
        if float(np.median(ratio[ratio > 0])) < finest and same > 0.2:
            lost.append((weight, float(same)))
    if lost:
        yield Evidence(
            why=f"{lost[0][0].name} is {lost[0][0].dtype} and does not change at {lost[0][1]:.0%} of the "
            "steps: updates are smaller than the spacing of the numbers of this type",
            strength=0.9,
            tensors=tuple(one.name for one, _ in lost),
            mode=facts.training,
            step=int(lost[0][0].steps[1]),
        )
        return
    risks = facts.findings.get("PrecisionRisk", ())
    for finding in [one for one in risks if "underflow" in str(one.numbers.get("kind", ""))][:1]:
        yield Evidence(
            why=finding.why,
            strength=POSSIBLE + 0.1,
            tensors=(finding.tensor,),
            mode=finding.mode,
            step=finding.mode_step,
        )


def training_stopped(facts: Facts) -> Iterator[Evidence]:
    """A learning rate that becomes zero, or weights that no longer change, in the middle."""
    rate = facts.hyperparameter("lr")
    if rate is not None and len(rate) > 5 and rate.mean.max() > 0:
        begun = int(np.argmax(rate.mean > 0))  # a warm-up may begin at zero
        zero = begun + np.flatnonzero(rate.mean[begun:] == 0)
        if zero.size > 3 and np.all(rate.mean[zero[0] :] == 0):
            yield Evidence(
                why=f"the learning rate is 0 from step {rate.steps[zero[0]]} on",
                strength=CERTAIN,
                tensors=(rate.name, *(one.name for one in facts.matrices)),
                mode=rate.mode,
                step=int(rate.steps[zero[0]]),
            )
            return
    trained = [one for one in facts.matrices if facts.gradient_of(one) is not None]
    still = [(one, at) for one in trained if (at := _still_from(one)) is not None]
    if still and len(still) == len(trained) and any(_has_gradient(facts, one) for one, _ in still):
        at = max(step for _, step in still)
        yield Evidence(
            why=f"no weight changes after step {at}, though gradients arrive",
            strength=LIKELY,
            tensors=tuple(one.name for one, _ in still),
            mode=facts.training,
            step=at,
        )


def _still_from(weight: History) -> int | None:
    """The step from which a weight stays the same, for a quarter of the run and _STILL saved steps or more.

    None: the weight continues to change.
    """
    if np.any(weight.bad > 0):
        return None
    moved = np.flatnonzero(np.diff(weight.square_sum) != 0)
    if not moved.size or moved[-1] + 1 > min(0.75 * len(weight), len(weight) - 1 - _STILL):
        return None
    return int(weight.steps[moved[-1] + 1])


def _has_gradient(facts: Facts, weight: History) -> bool:
    gradient: Any = facts.gradient_of(weight)
    return gradient is not None and bool(np.any(gradient.largest[-3:] > 0))
