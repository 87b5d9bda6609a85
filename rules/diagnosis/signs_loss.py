"""Signs of faults in the loss: its inputs, its sign and scale, and how it changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tdcore.rules.diagnosis.evidence import CERTAIN, LIKELY, POSSIBLE, Evidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.histories import History
from tdcore.rules.diagnosis.signs_steps import is_adaptive, update_ratios
from tdcore.rules.measures.format import rounded

__all__ = [
    "broadcast",
    "log_of_zero",
    "logits_before_nll",
    "loss_is_maximised",
    "loss_is_scaled_down",
    "overfitting",
    "sigmoid_before_loss",
    "softmax_before_loss",
    "targets_unrelated",
]

_NOT_NEGATIVE = ("CrossEntropy", "MSE", "L1", "BCE", "Huber", "NLL")  # losses that are never below zero
_ROUNDING = 1e-3  # rounding error of the logarithm of a probability near 1, in half precision
_GROWN = 30.0  # factor by which magnitudes have grown before a value that is not finite
_ENDLESS = 60.0  # times the first loss, or 1; likelihoods of continuous values can be a little below zero
_RISEN, _GAP = 1.08, 2.0  # limits of a validation loss, relative to its lowest value and to the training loss
_OF_VARIANCE = 0.95  # a squared error above this share of the targets' variance is as bad as a guess


def softmax_before_loss(facts: Facts) -> Iterator[Evidence]:
    """Probabilities where a cross-entropy expects logits: rows that are at least 0 and add up to 1."""
    for outputs, _ in facts.loss_inputs():
        if "CrossEntropy" not in outputs.name or "BCE" in outputs.name or len(outputs.shape) < 2:
            continue
        classes = outputs.shape[1]
        if classes >= 2 and len(outputs) >= 2 and _are_probabilities(outputs, classes):
            yield Evidence(
                why=f"{outputs.name} is between {rounded(outputs.least.min())} and "
                f"{rounded(outputs.most.max())} and has the mean 1/{classes}: these are probabilities, and "
                "the loss applies a second softmax",
                strength=0.97,
                tensors=(outputs.name,),
                mode=outputs.mode,
                step=int(outputs.steps[0]),
            )


def _are_probabilities(outputs: History, classes: int) -> bool:
    inside = bool(np.all(outputs.least >= 0) and np.all(outputs.most <= 1 + 1e-6))
    return inside and bool(np.all(np.abs(outputs.mean * classes - 1) < 2e-3))


def sigmoid_before_loss(facts: Facts) -> Iterator[Evidence]:
    """Probabilities where a binary cross-entropy expects logits."""
    for outputs, _ in facts.loss_inputs():
        inside = bool(np.all(outputs.least >= 0) and np.all(outputs.most <= 1))
        if "Logits" in outputs.name and len(outputs) >= 3 and inside and np.any(outputs.std > 0):
            yield Evidence(
                why=f"{outputs.name} stays between {rounded(outputs.least.min())} and "
                f"{rounded(outputs.most.max())}: a sigmoid was applied, and the loss applies another one",
                strength=0.93,
                tensors=(outputs.name,),
                mode=outputs.mode,
                step=int(outputs.steps[0]),
            )


def logits_before_nll(facts: Facts) -> Iterator[Evidence]:
    """Logits or probabilities where a negative log-likelihood expects logarithms, which are never above 0."""
    for outputs, _ in facts.loss_inputs():
        if "NLLLoss" not in outputs.name or "Gaussian" in outputs.name or "Poisson" in outputs.name:
            continue
        above = outputs.most > _ROUNDING  # False where the outputs are not finite
        finite = np.count_nonzero(np.isfinite(outputs.most))
        if finite >= 2 and outputs.is_float and np.count_nonzero(above) > finite / 2:
            yield Evidence(
                why=f"{outputs.name} is up to {rounded(np.nanmax(outputs.most))}: logarithms of "
                "probabilities are at most 0, so the loss has no lower bound and does not measure a "
                "likelihood",
                strength=0.97,
                tensors=(outputs.name,),
                mode=outputs.mode,
                step=int(outputs.steps[np.argmax(above)]),
            )


def broadcast(facts: Facts) -> Iterator[Evidence]:
    """Outputs and targets of different shapes, which an elementwise loss broadcasts to a larger shape."""
    for outputs, targets in facts.loss_inputs():
        if targets is None or not targets.is_float or outputs.shape == targets.shape:
            continue
        try:
            shape = np.broadcast_shapes(outputs.shape, targets.shape)
        except ValueError:
            continue
        if np.prod(shape) > max(np.prod(outputs.shape), np.prod(targets.shape)):
            yield Evidence(
                why=f"the loss gets outputs of shape {list(outputs.shape)} and targets of shape "
                f"{list(targets.shape)}, and broadcasts both to shape {list(shape)}",
                strength=CERTAIN,
                tensors=(outputs.name, targets.name),
                mode=outputs.mode,
                step=int(outputs.steps[0]),
            )


def log_of_zero(facts: Facts) -> Iterator[Evidence]:
    """A loss or gradient that is not finite, although inputs, weights and outputs are finite."""
    losses = facts.losses[:1]
    bad_loss = _first_bad(losses)
    bad_gradient = _first_bad(facts.gradients)
    first = min((step for step in (bad_loss, bad_gradient) if step is not None), default=None)
    if first is None:
        return
    if any(_bad_until(one, first) for one in (*facts.inputs, *facts.matrices)):
        return
    forward = [one for one in facts.outputs if _bad_until(one, first)]
    seen = [float(np.max(one.largest[one.steps <= first], initial=0.0)) for one in facts.outputs]
    if forward or max(seen, default=0.0) > 1e6:
        return
    if _recovers(facts, losses) or _diverges(facts, losses, first):
        return
    where = losses[0].name if bad_loss is not None and losses else facts.gradients[0].name
    what = "the loss" if bad_loss == first else "a gradient"
    yield Evidence(
        why=f"{what} is not finite at step {first}, while inputs, weights and outputs are finite and at "
        f"most {rounded(max(seen, default=0.0))}: the loss takes a logarithm or a root of zero",
        strength=0.9,
        tensors=(where,),
        mode=facts.training,
        step=first,
    )


def _recovers(facts: Facts, losses: list[History]) -> bool:
    """Whether all values are finite at the end, as after an overflow that a gradient scaler skipped."""
    return all(one.bad[-1] == 0 for one in (*facts.gradients, *losses) if len(one))


def _diverges(facts: Facts, losses: list[History], step: int) -> bool:
    """Whether magnitudes had grown before the step, so that the update is the cause."""
    for one in (*facts.matrices, *facts.gradients, *losses):
        before = np.abs(one.mean) if one in losses else one.rms
        sizes = before[(one.steps < step) & (one.bad == 0)]
        sizes = sizes[sizes > 0]
        if sizes.size >= 2 and float(np.median(sizes[-2:])) > _GROWN * sizes[0]:
            return True
    return False


def _first_bad(histories: list[History]) -> int | None:
    steps = [int(one.steps[np.flatnonzero(one.bad > 0)[0]]) for one in histories if np.any(one.bad > 0)]
    return min(steps, default=None)


def _bad_until(history: History, step: int) -> bool:
    return history.is_float and bool(np.any(history.bad[history.steps <= step] > 0))


def loss_is_maximised(facts: Facts) -> Iterator[Evidence]:
    """A loss that falls further and further below zero."""
    for loss in facts.losses[:1]:
        if len(loss) < 10:
            continue
        first = float(np.mean(loss.mean[:3]))
        rough = len(loss) // 2
        late = float(np.mean(loss.mean[-5:]))
        middle = float(np.mean(loss.mean[rough - 2 : rough + 3]))
        bounded = any(kind in loss.name for kind in _NOT_NEGATIVE)
        falls = first < 0 and late < 0 and middle < first and late < 3 * first and late < 1.2 * middle
        if falls and (bounded or late < -_ENDLESS * max(-first, 1.0)):
            below = np.flatnonzero(loss.mean < 2 * first)
            yield Evidence(
                why=f"the loss starts at {rounded(first)} and falls further and further, to {rounded(late)}: "
                "an error below zero has the wrong sign",
                strength=0.88 if bounded else LIKELY,
                tensors=(loss.name,),
                mode=loss.mode,
                step=int(loss.steps[below[0]]) if below.size else 0,
            )


def loss_is_scaled_down(facts: Facts) -> Iterator[Evidence]:
    """A loss that starts near zero, and gradients near zero."""
    ratios = [float(np.median(ratio)) for _, ratio in update_ratios(facts)]
    adaptive = is_adaptive(facts)
    for loss in facts.losses[:1]:
        largest = max((float(np.median(one.rms)) for one in facts.gradients), default=0.0)
        start = float(np.mean(np.abs(loss.mean[:3])))
        if (
            len(loss) >= 5
            and 0 < start < 1e-3
            and 0 < largest < 1e-5
            and (adaptive or np.median(ratios) < 1e-4)
        ):
            yield Evidence(
                why=f"the loss starts at {rounded(start)} and gradients are at most {rounded(largest)}: "
                "both are scaled down",
                strength=0.9 if any(kind in loss.name for kind in _NOT_NEGATIVE) else LIKELY,
                tensors=(loss.name,),
                mode=loss.mode,
                step=int(loss.steps[0]),
            )


def overfitting(facts: Facts) -> Iterator[Evidence]:
    """A validation loss that rises while the training loss continues to fall."""
    for loss in facts.losses[:1]:
        held_out = facts.get(loss.name, "EVAL")
        if held_out is None or len(loss) < 20:
            continue
        starts, means = _rounds(held_out, loss)
        if len(means) < 3:
            continue
        late = float(np.mean(loss.mean[-10:]))
        best, last = min(means), means[-1]
        start = float(np.mean(loss.mean[:5]))
        if 0 < late < 0.3 * start and best > 0 and last > 1.4 * best and last > 3 * late:
            at = starts[means.index(best)]
            yield Evidence(
                why=f"the training loss falls to {rounded(late)} while the validation loss rises from "
                f"{rounded(best)} to {rounded(last)}",
                strength=0.85,
                tensors=(held_out.name,),
                mode="EVAL",
                step=int(held_out.steps[at]),
            )
            return
    found = facts.findings.get("Overfit", ())
    if found and not _stands_still(facts, found[0].tensor):
        yield Evidence(
            why=found[0].why,
            strength=LIKELY + 0.03,
            tensors=(found[0].tensor,),
            mode=found[0].mode,
            step=found[0].mode_step,
        )


def _stands_still(facts: Facts, name: str) -> bool:
    """Whether a validation loss ends close to its lowest value and not far above the training loss."""
    training, held_out = facts.get(name), facts.get(name, "EVAL")
    if training is None or held_out is None:
        return False
    _, means = _rounds(held_out, training)
    late = float(np.mean(training.mean[-10:]))
    return 0 < means[-1] < min(_RISEN * min(means), _GAP * late)


def _rounds(held_out: History, training: History) -> tuple[list[int], list[float]]:
    """(index of the first value, mean) of each validation: batches of one validation differ in difficulty."""
    after = np.searchsorted(training.global_steps, held_out.global_steps)
    starts = np.flatnonzero(np.diff(after, prepend=-1))
    return starts.tolist(), [float(np.mean(part)) for part in np.split(held_out.mean, starts[1:])]


def _chance(facts: Facts, loss: History) -> float:
    """The loss of a constant guess (equal probabilities, or the mean); infinity if it is not known."""
    module = loss.name.rsplit("_output_", 1)[0]
    outputs, targets = facts.get(f"{module}_input_0"), facts.get(f"{module}_input_1")
    if "MSE" in module and targets is not None and targets.is_float and len(targets):
        return float(np.mean(targets.std**2)) * _OF_VARIANCE
    if "CrossEntropy" not in module or outputs is None or len(outputs.shape) < 2:
        return float("inf")
    return float(np.log(max(2, outputs.shape[1])))


def targets_unrelated(facts: Facts) -> Iterator[Evidence]:
    """A loss that stays near its first value although updates have a normal size."""
    ratios = [float(np.median(ratio)) for _, ratio in update_ratios(facts)]
    healthy = ratios and 5e-5 < float(np.median(ratios)) < 0.2
    for loss in facts.losses[:1]:
        chance = _chance(facts, loss)
        if len(loss) < 60 or not healthy or np.any(loss.bad > 0) or not np.isfinite(chance):
            continue
        parts = np.array_split(loss.mean, 10)
        first, last = float(np.mean(loss.mean[:3])), float(np.mean(parts[-1]))
        noise = float(np.std(loss.mean[len(loss) // 2 :]))
        flat = last > first - max(0.08 * abs(first), 0.5 * noise) and 0.8 * chance < first < 1.25 * chance
        if flat or 0.97 * chance < last < 1.1 * chance:
            stays = (
                f"stays at {rounded(last)}" if flat else f"ends at {rounded(last)}, as by a constant guess,"
            )
            yield Evidence(
                why=f"the loss {stays} although weights change by "
                f"{rounded(float(np.median(ratios)))} of their size at each step",
                strength=POSSIBLE + 0.1,
                tensors=(loss.name,),
                mode=loss.mode,
                step=int(loss.steps[len(parts[0])]),
            )
