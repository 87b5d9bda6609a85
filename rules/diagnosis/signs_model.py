"""Signs of faults in the model: initial weights, activations and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from tdcore.rules.diagnosis.evidence import CERTAIN, LIKELY, POSSIBLE, Evidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.histories import History
from tdcore.rules.measures.format import rounded

__all__ = [
    "capacity",
    "dead_units",
    "dropout_too_high",
    "exploding_gradients",
    "saturated_activations",
    "vanishing_gradients",
    "weights_start_alike",
    "weights_start_too_large",
    "weights_start_too_small",
]

# Root mean square of a weight times the root of its number of inputs: PyTorch's default gives 0.58, Kaiming's
# normal distribution 1.41, a standard deviation of 0.02 with 768 inputs 0.55.
_GAIN_LARGE, _GAIN_SMALL = 6.0, 0.03
_MOSTLY_DEAD = 80.0  # percent of the units of a layer
_DEAD = 0.99  # minimum share of zeros in the outputs of a dead activation
_VANISHED = 1e-4  # ratio to the gradient of the last layer


def _gains(facts: Facts) -> list[tuple[History, float]]:
    """Weights at their first step, before an optimizer has changed them much."""
    return [(one, float(one.rms[0] * np.sqrt(one.fan_in))) for one in facts.matrices if one.steps[0] < 50]


def _about_start(found: Sequence[tuple[History, float]], of: int, why: str, strength: float) -> Evidence:
    return Evidence(
        why=f"{why} in {len(found)} of {of} layers: {_listed([one.name for one, _ in found])}",
        strength=strength,
        tensors=tuple(one.name for one, _ in found),
        mode=found[0][0].mode,
        step=int(found[0][0].steps[0]),
    )


def _listed(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def weights_start_too_large(facts: Facts) -> Iterator[Evidence]:
    """Initial weights that enlarge their inputs many times."""
    gains = _gains(facts)
    large = [(one, gain) for one, gain in gains if gain > _GAIN_LARGE]
    if large and len(large) >= 0.5 * len(gains):
        largest = max(gain for _, gain in large)
        yield _about_start(
            large,
            len(gains),
            f"weights start with up to {rounded(largest)} times the usual standard deviation 1/sqrt(inputs)",
            0.9 if largest > 2 * _GAIN_LARGE else LIKELY,
        )


def weights_start_too_small(facts: Facts) -> Iterator[Evidence]:
    """Initial weights so small that the signal becomes weaker in each layer."""
    gains = _gains(facts)
    small = [(one, gain) for one, gain in gains if 0 < gain < _GAIN_SMALL]
    normalised = any("Norm" in one.origin for one in facts.outputs) and small[-1:] != gains[-1:]
    if small and len(small) >= 0.5 * len(gains) and not normalised:
        yield _about_start(
            small,
            len(gains),
            f"weights start with {rounded(min(gain for _, gain in small))} times the usual standard "
            "deviation 1/sqrt(inputs)",
            0.9,
        )


def weights_start_alike(facts: Facts) -> Iterator[Evidence]:
    """Weight matrices whose elements are all the same number, so that all units learn the same."""
    gains = _gains(facts)
    alike = [
        (one, gain)
        for one, gain in gains
        if one.least[0] == one.most[0] and one.count[0] > 1 and "lora" not in one.name.lower()
    ]
    if alike and len(alike) >= 0.5 * len(gains):
        yield _about_start(alike, len(gains), "all elements of a weight are the same number", CERTAIN)


def capacity(facts: Facts) -> Iterator[Evidence]:
    """A layer in the middle of the model that passes on almost no information."""
    every = [one for one in facts.of_kind("weight") if one.is_matrix and len(one)]
    following = {one.name: after for one, after in pairwise(every)}
    for weight in facts.matrices[1:-1]:
        after = following[weight.name]
        late = weight.zeros[-max(1, len(weight) // 2) :]
        if weight.shape[0] > 1 and late.min(initial=1.0) > 0.9 and weight.rms[-1] > 0:
            yield Evidence(
                why=f"{late.mean():.0%} of {weight.name} stays zero until the end: hardly any of its units "
                "is used",
                strength=LIKELY,
                tensors=(weight.name,),
                mode=weight.mode,
                step=int(weight.steps[0]),
            )
        elif weight.shape[0] == 1 and weight.fan_in > 4 and after.shape[1] == 1:
            yield Evidence(
                why=f"{weight.name} has a single unit, which limits the information that reaches the next "
                "layers",
                strength=LIKELY,
                tensors=(weight.name,),
                mode=weight.mode,
                step=int(weight.steps[0]),
            )


def dead_units(facts: Facts) -> Iterator[Evidence]:
    """Activations that are zero nearly everywhere."""
    dead: list[tuple[History, int]] = []
    for output in facts.outputs:
        if "ReLU" in output.origin and len(output) and not np.any(output.bad):
            zero = output.zeros >= _DEAD
            if zero[len(zero) // 2 :].all():
                dead.append((output, int(output.steps[np.flatnonzero(zero)[0]])))
    if dead:
        names = [one.name for one, _ in dead]
        share = float(np.mean([one.zeros[-1] for one, _ in dead]))
        yield Evidence(
            why=f"{share:.1%} of the outputs of {_listed(names)} are zero: these units are dead",
            strength=0.9,
            tensors=tuple(names),
            mode=dead[0][0].mode,
            step=min(step for _, step in dead),
        )
        return
    found = [
        one
        for one in facts.findings.get("DeadRelu", ())
        if float((one.last_numbers or one.numbers).get("dead_percent", 0.0)) >= _MOSTLY_DEAD
    ]
    if found:
        names = list(dict.fromkeys(finding.tensor for finding in found))
        yield Evidence(
            why=f"{found[0].tensor}: {found[0].why}",
            strength=POSSIBLE + 0.1,
            tensors=tuple(names),
            mode=found[0].mode,
            step=found[0].mode_step,
        )


def saturated_activations(facts: Facts) -> Iterator[Evidence]:
    """The findings of SaturatedActivation."""
    found = facts.findings.get("SaturatedActivation", ())
    if found:
        names = list(dict.fromkeys(finding.tensor for finding in found))
        yield Evidence(
            why=f"{found[0].tensor}: {found[0].why}",
            strength=LIKELY + 0.05 * (len(names) > 1),
            tensors=tuple(names),
            mode=found[0].mode,
            step=found[0].mode_step,
        )


def vanishing_gradients(facts: Facts) -> Iterator[Evidence]:
    """Gradients that become much smaller from the last layer to the first."""
    pairs = [(weight, facts.gradient_of(weight)) for weight in facts.matrices]
    chain = [one for _, one in pairs if one is not None and len(one) >= 3 and np.median(one.rms) > 0]
    if len(chain) < 4:
        return
    sizes = np.array([float(np.median(one.rms)) for one in chain])
    last = sizes[-1]
    if sizes[0] < _VANISHED * last and np.corrcoef(np.arange(sizes.size), np.log(sizes))[0, 1] > 0.8:
        small = [one.name for one, size in zip(chain, sizes, strict=True) if size < 1e-2 * last]
        yield Evidence(
            why=f"gradients shrink from {rounded(last)} in {chain[-1].name} to {rounded(sizes[0])} in "
            f"{chain[0].name}",
            strength=0.85,
            tensors=tuple(small),
            mode=chain[0].mode,
            step=int(chain[0].steps[0]),
        )


def exploding_gradients(facts: Facts) -> Iterator[Evidence]:
    """Gradients that grow by orders of magnitude, or recurrent weights that amplify the signal."""
    recurrent = [
        (one, gain) for one, gain in _gains(facts) if "weight_hh" in one.name and gain > 2 * _GAIN_LARGE
    ]
    for weight, gain in recurrent:
        yield Evidence(
            why=f"{weight.name} amplifies the signal {rounded(gain)} times at each position of a sequence",
            strength=CERTAIN,
            tensors=(weight.name, f"gradient/{weight.name}"),
            mode=weight.mode,
            step=int(weight.steps[0]),
        )
    for gradient in facts.gradients:
        if len(gradient) < 5:
            continue
        sizes = gradient.rms[(gradient.rms > 0) & (gradient.bad == 0)]
        usual = float(np.median(sizes[: max(3, len(gradient) // 10)])) if sizes.size else 0.0
        large = np.flatnonzero((gradient.rms > 1e4 * max(usual, 1e-8)) | (gradient.bad > 0))
        if large.size:
            at = int(large[0])
            if gradient.bad[at] > 0 and gradient.bad[-1] == 0:
                continue  # an overflow under a gradient scaler, whose step is skipped
            grown = "is not finite" if gradient.bad[at] > 0 else f"grows to {rounded(gradient.rms[at])}"
            yield Evidence(
                why=f"{gradient.name} {grown}, after {rounded(usual)} in the first steps",
                strength=POSSIBLE,
                tensors=(gradient.name,),
                mode=gradient.mode,
                step=int(gradient.steps[at]),
            )
            return


def dropout_too_high(facts: Facts) -> Iterator[Evidence]:
    """Dropout that sets nearly all outputs to zero at the first step. Later, units may be dead."""
    for previous, output in pairwise((next(iter(facts.inputs), None), *facts.outputs)):
        if output is None:
            continue
        if "Dropout" in output.origin and len(output) >= 2 and output.zeros[0] > 0.9:
            module = output.name.rpartition("_output_")[0]
            before = facts.get(f"{module}_input_0") or previous
            if before is not None and len(before) and before.zeros[0] > 0.8:
                continue
            yield Evidence(
                why=f"{output.zeros[0]:.0%} of the outputs of {module} are zero at the first step",
                strength=0.92,
                tensors=(output.name,),
                mode=output.mode,
                step=int(output.steps[0]),
            )
