"""Signs of faults in the data: inputs and targets of the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tdcore.rules.diagnosis.evidence import CERTAIN, LIKELY, POSSIBLE, Evidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.histories import History
from tdcore.rules.measures.format import rounded

__all__ = [
    "corrupted_batches",
    "imbalance",
    "inputs_are_constant",
    "inputs_hold_nan",
    "inputs_not_normalised",
    "one_class",
    "padding",
]

_LARGE_RMS = 20.0  # of inputs; images stored as bytes have 100 or more, normalised inputs about 1
_FAR_MEAN = 5.0  # distance of the mean from zero, in standard deviations
_OUTLYING = 5.0  # limit for the distance of a batch, in units of the usual spread
_GAP = 2.0  # ratio between outlying batches and the other batches; heavy tails have no such gap
_LABELS = "labels"
_CLASSES, _PER_CLASS = 1000, 50  # maximum number of classes, and minimum mean number of labels per class
_RARE = 0.25  # limit for the share of a class, in units of an equal share
_PADDED = 0.6  # share of zeros in token ids or sequences


def inputs_hold_nan(facts: Facts) -> Iterator[Evidence]:
    """NaN or infinite elements in the inputs of the model."""
    for history in facts.inputs:
        bad = np.flatnonzero(history.bad > 0)
        masks = (history.largest == 0) & (history.bad > 0)  # attention masks hold -Inf on purpose
        if bad.size and history.is_float and not masks[bad].all():
            at = int(bad[0])
            yield Evidence(
                why=f"{history.name} holds {history.bad[at]:.0f} elements that are NaN or infinite",
                strength=CERTAIN,
                tensors=(history.name,),
                mode=history.mode,
                step=int(history.steps[at]),
            )


def inputs_are_constant(facts: Facts) -> Iterator[Evidence]:
    """Inputs whose elements are all the same number, at every step."""
    known = [one for one in facts.inputs if np.any(one.count > 1)]
    if any(np.any(one.least != one.most) for one in known):
        return  # a mask or a state of zeros next to other inputs
    for history in known:
        same = (history.least == history.most) & (history.count > 1) & (history.bad == 0)
        if len(history) >= 3 and same.all() and len(set(history.least.tolist())) == 1:
            yield Evidence(
                why=f"all elements of {history.name} are {rounded(history.least[0])} at all {len(history)} "
                "steps",
                strength=CERTAIN,
                tensors=(history.name,),
                mode=history.mode,
                step=int(history.steps[0]),
            )


def inputs_not_normalised(facts: Facts) -> Iterator[Evidence]:
    """Inputs whose magnitude or whose mean is far from that of normalised data."""
    for history in facts.inputs:
        if not _holds_data(history) or len(history) < 2 or _model_normalises(facts, history):
            continue
        large = history.rms > _LARGE_RMS
        far = (np.abs(history.mean) > _FAR_MEAN * history.std) & (history.rms > _FAR_MEAN)
        if np.mean(large | far) < 0.8 or np.any(history.std == 0):
            continue
        at = int(np.flatnonzero(large | far)[0])
        yield Evidence(
            why=f"{history.name} has mean {rounded(history.mean[at])} and standard deviation "
            f"{rounded(history.std[at])}; networks are designed for values around 0 with a standard "
            "deviation around 1",
            strength=0.85,
            tensors=(history.name,),
            mode=history.mode,
            step=int(history.steps[at]),
        )


def _model_normalises(facts: Facts, history: History) -> bool:
    """Whether the first module whose outputs have the shape of an input is a normalisation.

    Embeddings do not count, since their inputs are numbers of rows.
    """
    alike = (one for one in facts.outputs if one.shape == history.shape and "Embedding" not in one.origin)
    first = next(alike, None)
    return first is not None and "Norm" in first.origin


def _holds_data(history: History) -> bool:
    """Whether an input can be judged by its scale: no class numbers, times or additive masks."""
    return history.is_float and len(history.shape) >= 2 and bool(np.any(history.most > 0))


def corrupted_batches(facts: Facts) -> Iterator[Evidence]:
    """Some batches whose values have another scale than all others."""
    for history in facts.inputs:
        if not _holds_data(history) or len(history) < 8:
            continue
        usual = float(np.median(history.rms))
        outlying = history.rms > _OUTLYING * max(usual, 1e-12)
        apart = np.any(outlying) and history.rms[outlying].min() > _GAP * history.rms[~outlying].max(
            initial=0.0
        )
        if apart and outlying.sum() >= 3 and np.mean(outlying) < 0.4:
            at = int(np.flatnonzero(outlying)[0])
            yield Evidence(
                why=f"{history.name} has a root mean square of {rounded(history.rms[at])} at "
                f"{int(outlying.sum())} of {len(history)} steps, and {rounded(usual)} otherwise",
                strength=0.9,
                tensors=(history.name,),
                mode=history.mode,
                step=int(history.steps[at]),
            )


def _targets(facts: Facts) -> Iterator[History]:
    labels = facts.get("labels")
    if labels is not None and len(labels):
        yield labels
    for outputs, targets in facts.loss_inputs():
        if targets is not None and not targets.is_float and len(outputs.shape) >= 2:
            yield targets


def one_class(facts: Facts) -> Iterator[Evidence]:
    """Class numbers that are the same in every batch."""
    for history in _targets(facts):
        contrasts = history.name != _LABELS and not _loss_stays_high(facts)
        if contrasts:
            continue  # all samples of a contrastive loss have the same class
        if len(history) >= 3 and (history.count > 1).any() and len({*history.least, *history.most}) == 1:
            yield Evidence(
                why=f"all labels of all {len(history)} batches are {history.least[0]:.0f}",
                strength=CERTAIN,
                tensors=(history.name,),
                mode=history.mode,
                step=int(history.steps[0]),
            )
            return


def _loss_stays_high(facts: Facts) -> bool:
    """Whether the loss is close to zero for the second half of the run, as it is with a single class."""
    return any(len(one) > 10 and np.median(one.mean[len(one) // 2 :]) < 0.02 for one in facts.losses[:1])


def imbalance(facts: Facts) -> Iterator[Evidence]:
    """A class with far fewer labels than an equal share, or a finding of ClassImbalance."""
    labels = {label: count for label, count in facts.labels.items() if label >= 0}  # -100 is ignored
    total = sum(labels.values())
    if 2 <= len(labels) <= _CLASSES and total >= _PER_CLASS * len(labels):
        rarest = min(labels, key=lambda label: labels[label])
        share = labels[rarest] / total
        if share * len(labels) < _RARE:
            yield Evidence(
                why=f"class {rarest} has {labels[rarest]} of {total} labels of {len(labels)} classes",
                strength=LIKELY + 0.05,
                tensors=("labels",),
                mode=facts.training,
            )
            return
    for finding in facts.findings.get("ClassImbalance", ())[:1]:
        yield Evidence(
            why=finding.why,
            strength=LIKELY + 0.05,
            tensors=(finding.tensor,) if finding.tensor else (),
            mode=finding.mode,
            step=finding.mode_step,
        )


def padding(facts: Facts) -> Iterator[Evidence]:
    """Token ids or sequences in which most elements are zero."""
    for finding in facts.findings.get("NLPSequenceRatio", ())[:1]:
        yield Evidence(
            why=finding.why,
            strength=LIKELY,
            tensors=(finding.tensor,),
            mode=finding.mode,
            step=finding.mode_step,
        )
    for history in facts.inputs:
        words = history.dtype in ("I64", "I32") and len(history.shape) == 2 and np.any(history.most > 1)
        if not words and not (history.is_float and len(history.shape) == 3 and _has_sequences(facts)):
            continue
        if len(history) >= 3 and np.mean(history.zeros > _PADDED) > 0.8 and np.all(history.std > 0):
            yield Evidence(
                why=f"{history.zeros.mean():.0%} of the elements of {history.name} are zero: most of each "
                "sequence is padding",
                strength=LIKELY if not history.is_float else POSSIBLE,
                tensors=(history.name,),
                mode=history.mode,
                step=int(history.steps[0]),
            )


def _has_sequences(facts: Facts) -> bool:
    return any(kind in one.origin for one in facts.outputs for kind in ("LSTM", "GRU", "RNN", "Attention"))
