"""TDC110: classes that are rare among the labels, or that the model does not learn to predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.analysis.classes import classes_of, label_classes
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import RunError
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.pairs import PairTable, paired
from tdcore.rules.requirements import VALUES, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["ClassImbalance"]

_CLASSES = 1 << 16  # more distinct numbers are not classes
_PER_CLASS = 50  # minimum mean number of labels per class to compare counts
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassImbalance:
    """Classes with far fewer labels than others, or whose labels are mostly predicted wrong.

    What it does:
        Counts the labels of each class, and the wrong predictions of these labels.

    Why it matters:
        If one class is rare, a model that always predicts the frequent class is nearly always right. Loss and
        accuracy then look good although the rare class is never predicted.

    Decides by:
        The rule counts labels from the start of the run, for each worker and mode, and judges the counts
        after every block of `samples` labels.

        - Imbalance: largest count / smallest count > threshold_imbalance, over the classes that occurred. The
          ratio is judged when there are 50 labels per class on average, so that it is not due to chance. It
          is reported once.
        - Misprediction: in `patience` consecutive blocks, the share of a class's labels that are predicted
          wrong > threshold_misprediction. In addition, labels of the other classes must be predicted wrong at
          most half as often; otherwise the whole model has not learned yet. A class is reported again only
          after a block without this condition. Classes with fewer than min_class_count labels in the block
          are not judged.
        - `one_class`: all labels so far are of one class. It is reported once.

        Negative labels are ignored, as losses ignore them. Counts of more than 65536 classes are not judged.
        The rule needs the values of labels and predictions; statistics are not enough.

        compat=True applies the rule of smdebug: it judges any number of labels, and one block with a
        mispredicted class is enough, even if the other classes are mispredicted too.

    Parameters:
        labels_regex: regular expressions for names of tensors with labels. Labels are class numbers (whole
            numbers of any type, or bool), or one-hot.
        predictions_regex: regular expressions for names of tensors with predictions. Predictions are class
            numbers; or scores with one axis more than the labels (the largest score is the prediction); or
            probabilities of class 1 of two classes (threshold 0.5). Without predictions only the counts are
            judged.
        threshold_imbalance: largest tolerated ratio of class counts.
        threshold_misprediction: largest tolerated share of wrong predictions of a class, 0 to 1.
        samples: number of labels in one block.
        argmax: whether the last axis of labels and predictions is the axis of classes (one-hot labels).
        min_class_count: minimum number of labels of a class in a block for its predictions to be judged.
        patience: number of consecutive blocks with a mispredicted class that make a finding.
        compat: True applies the rule of smdebug.

    False alarms:
        - Labels that are rare by nature (fraud, faults): the finding is true but may be accepted. Raise the
          threshold.
        - The rule counts the labels of the saved steps, not of the data set. A sampler that balances the
          classes can therefore hide an imbalance.
        - A loss whose labels are all equal on purpose (contrastive pairs).

    Do:
        Weight the loss by class or sample classes evenly, collect more data of the rare class, and use recall
        per class or average precision instead of accuracy. With PyTorch losses, use the inputs of the loss
        module: labels_regex=CrossEntropyLoss_input_1, predictions_regex=CrossEntropyLoss_input_0.

    Source:
        H. He, E. A. Garcia, Learning from imbalanced data, IEEE TKDE 2009.
    """

    code: ClassVar[str] = "TDC110"
    judged_by: ClassVar[JudgedBy] = "worker"

    labels_regex: str | Sequence[str] = ".*labels"
    predictions_regex: str | Sequence[str] = ".*predictions"
    threshold_imbalance: float = 10.0
    threshold_misprediction: float = 0.7
    samples: int = 500
    argmax: bool = False
    min_class_count: int = 10
    patience: int = 3
    compat: bool = False

    def __post_init__(self) -> None:
        for pattern in (*names_of(self.labels_regex), *names_of(self.predictions_regex)):
            compile_pattern(pattern)
        require(bool(names_of(self.labels_regex)), self, "labels_regex", self.labels_regex, "a pattern")
        ratio, share = self.threshold_imbalance, self.threshold_misprediction
        require(1 <= ratio < np.inf, self, "threshold_imbalance", ratio, "1 or more")
        require(0 <= share <= 1, self, "threshold_misprediction", share, "a share, 0 to 1")
        for name in ("samples", "min_class_count", "patience"):
            require(getattr(self, name) >= 1, self, name, getattr(self, name), "1 or more")

    def needs(self) -> Need:
        """Values of labels, and of predictions if there are any."""
        patterns = {"labels": names_of(self.labels_regex), "predictions": names_of(self.predictions_regex)}
        return Need(
            what=f"the values of labels (and of predictions), {self.samples} labels or more",
            captures=tuple(
                CollectionConfig(
                    name=name,
                    include_regex=regex,
                    save_config=SaveConfig(save_interval=10),
                    reduction_config=VALUES,
                )
                for name, regex in patterns.items()
                if regex
            ),
            payload=True,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per imbalance, and per class that is predicted wrong for `patience` blocks."""
        there = window.ok & window.columns.present("nbytes")
        labels = window.named(names_of(self.labels_regex)) & window.ok
        window.missing("labels saved without their values", int(np.sum(labels & ~there)))
        predictions: Mask = window.named(names_of(self.predictions_regex)) & there & ~labels
        rows, partners = paired(window, labels & there, predictions)
        for row, partner in zip(rows.tolist(), partners.tolist(), strict=True):
            label, predicted = self._read(window, row, partner)
            if label is not None:
                yield from self._take(window, row, label, predicted)
        for key, state in window.memory.items():
            if key[:2] in window.ended and state.seen:
                window.missing(f"labels that do not fill a block of {self.samples}", state.seen)
                state.seen = 0

    def _read(self, window: Window, row: int, partner: int) -> tuple[_Ints | None, _Ints | None]:
        """The labels of a row and their predictions; None for missing labels or predictions."""
        try:
            ((_, values),) = window.read([row])
            if partner < 0:
                window.missing("labels without predictions: their counts alone are judged", 1)
                label, predicted = label_classes(values, argmax=self.argmax), None
            else:
                ((_, scores),) = window.read([partner])
                label, predicted = classes_of(values, scores, argmax=self.argmax)
        except (RunError, ValueError) as error:
            window.missing(_why_not(error), 1)
            return None, None
        known = label >= 0
        return label[known], None if predicted is None else predicted[known]

    def _take(self, window: Window, row: int, label: _Ints, predicted: _Ints | None) -> Iterator[Finding]:
        columns = window.columns
        place = (int(columns.ints("attempt")[row]), columns.text("worker", row), columns.text("mode", row))
        state = window.memory.setdefault(place, _Seen())
        if not state.too_many:
            state.classes.add(label, label)
        if state.classes.label.size > _CLASSES:
            state.classes, state.too_many = PairTable(), True
        if predicted is not None:
            state.block.add(label, predicted)
        state.seen += label.size
        if state.seen < self.samples:
            return
        window.judged(1)
        yield from self._imbalance(window, row, state)
        yield from self._mispredicted(window, row, state)
        state.block, state.seen = PairTable(), 0

    def _imbalance(self, window: Window, row: int, state: _Seen) -> Iterator[Finding]:
        classes, counts, _ = state.classes.sums(by_label=True)
        if state.too_many:
            window.missing(f"more than {_CLASSES} classes: are the labels classes?", 1)
            return
        if counts.sum() < _PER_CLASS * classes.size and not self.compat:
            window.missing(f"fewer than {_PER_CLASS} labels per class so far", 1)
            return
        if classes.size == 1 and not self.compat and not state.told_imbalance:
            state.told_imbalance = True
            yield self._one_class(window, row, int(classes[0]), int(counts[0]))
            return
        most, least = int(counts.argmax()), int(counts.argmin())
        ratio = float(counts[most] / counts[least])
        if ratio <= self.threshold_imbalance or state.told_imbalance:
            return
        state.told_imbalance = True
        yield window.finding(
            self,
            row,
            numbers={
                "kind": "imbalance",
                "ratio": ratio,
                "threshold_imbalance": self.threshold_imbalance,
                "most_frequent": int(classes[most]),
                "most_frequent_count": int(counts[most]),
                "rarest": int(classes[least]),
                "rarest_count": int(counts[least]),
                "labels": int(counts.sum()),
            },
            why=f"of {counts.sum()} labels {counts[most]} are of class {classes[most]} and {counts[least]} "
            f"of class {classes[least]}: {rounded(ratio)} to 1; {self.threshold_imbalance:g} to 1 is "
            "tolerated",
            do="weight the loss by class, sample classes evenly, or gather more of the rare class",
        )

    def _one_class(self, window: Window, row: int, label: int, labels: int) -> Finding:
        return window.finding(
            self,
            row,
            numbers={"kind": "one_class", "class": label, "labels": labels},
            why=f"all {labels} labels are of class {label}",
            do="shuffle the data set before it is split and sampled, and check how labels are read",
        )

    def _mispredicted(self, window: Window, row: int, state: _Seen) -> Iterator[Finding]:
        classes, counts, hits = state.block.sums(by_label=True)
        wrong = counts - hits
        rest = np.maximum(counts.sum() - counts, 1)
        share, others = wrong / counts, (wrong.sum() - wrong) / rest
        bad = (share > self.threshold_misprediction) & (counts >= self.min_class_count)
        patience = 1 if self.compat else self.patience
        if not self.compat:
            bad &= others <= share / 2
        names = classes[bad].tolist()
        state.strikes = {each: state.strikes.get(each, 0) + 1 for each in names}
        for at in np.flatnonzero(bad).tolist():
            strikes = state.strikes[int(classes[at])]
            if strikes != patience:
                continue
            yield window.finding(
                self,
                row,
                numbers={
                    "kind": f"misprediction of class {classes[at]}",
                    "class": int(classes[at]),
                    "mispredicted": float(share[at]),
                    "threshold_misprediction": self.threshold_misprediction,
                    "mispredicted_elsewhere": float(others[at]),
                    "labels_of_class": int(counts[at]),
                },
                why=f"{100 * share[at]:.3g} % of the {counts[at]} newest labels of class {classes[at]} are "
                f"predicted wrong ({100 * self.threshold_misprediction:g} % is tolerated), and "
                f"{100 * others[at]:.3g} % of the labels of the other classes, for {strikes} blocks of "
                f"{self.samples} labels in a row",
                do="weight the loss by class, sample classes evenly, or look at the labels of this class",
            )


@dataclass(slots=True, kw_only=True)
class _Seen:
    """State of the rule for one worker and mode, kept between windows."""

    classes: PairTable = field(default_factory=PairTable)  # labels of the whole run
    block: PairTable = field(default_factory=PairTable)  # labels and predictions since the last judgement
    seen: int = 0  # labels since the last judgement
    strikes: dict[int, int] = field(default_factory=dict)  # class -> number of consecutive blocks
    told_imbalance: bool = False
    too_many: bool = False  # more classes than can be counted


def _why_not(error: Any) -> str:
    """Why a row could not be judged; the same text for the same reason."""
    if isinstance(error, RunError):
        return f"labels or predictions could not be read ({type(error).__name__})"
    return str(error)
