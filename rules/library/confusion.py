"""TDC111: a classifier that confuses classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.analysis.classes import Ints, classes_of
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import RunError
from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.pairs import PairTable, paired
from tdcore.rules.requirements import VALUES, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["Confusion"]

_PARTS = 4  # parts of a block; at the end of a run, the newest part or the newest two parts are judged
_PROGRESS = 0.01  # minimum increase of the best accuracy that counts as progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Classes that a classifier confuses: a confusion matrix with a weak diagonal or large values outside it.

    What it does:
        Fills a confusion matrix from saved labels and predictions and judges each class.

    Why it matters:
        An accuracy of 95 % may hide two classes that the model cannot distinguish. The names of these classes
        show where data, labels or features are missing.

    Decides by:
        C[l][p] is the number of pairs with label l and prediction p, for each worker and mode, in blocks of
        at least `samples` pairs.

        - normalize="column": each C[l][p] is divided by the number of all pairs with prediction p. The share
          on the diagonal (of the cell C[p][p]) is the precision of p.
        - normalize="row": each C[l][p] is divided by the number of all pairs with label l. The share on the
          diagonal (of the cell C[l][l]) is the recall of l.

        A share on the diagonal must be at least min_diag, and each other share at most max_off_diag. n is the
        number of pairs in the column (or row) of the cell. A cell is reported if n is at least
        min_class_count and the share is outside its limit by more than `standard_errors` standard errors,
        each sqrt(share x (1 - share) / n). A cell is reported again only after a block whose accuracy is at
        least 0.01 above the best earlier accuracy.

        A model that has not learned yet confuses classes without a fault. So a block is judged only if the
        classifier no longer improves: in `patience` consecutive blocks, the accuracy was less than 0.01 above
        the best earlier accuracy. When the run has ended, its newest pairs are judged: samples / 4 to samples
        / 2 pairs, or all pairs if there are fewer.

        compat=True applies the rule of smdebug: every block is judged, the share on the diagonal is C[i][i] /
        (sum of all C[j][j]), and standard errors are not used. With two or more classes, at least one of
        these shares is always below 0.9, the default of min_diag.

    Parameters:
        category_no: number of classes. Larger labels or predictions are not judged. None: all classes that
            occur.
        labels: name of the tensor with labels.
        predictions: name of the tensor with predictions. Predictions are class numbers; or scores with one
            axis more than the labels (the largest score is the prediction); or probabilities of class 1 of
            two classes (threshold 0.5).
        labels_collection: collection whose tensors are also labels.
        predictions_collection: collection whose tensors are also predictions.
        min_diag: lower limit of the shares on the diagonal, 0 to 1.
        max_off_diag: upper limit of the shares outside the diagonal, 0 to 1.
        normalize: "column" (shares of the pairs with the same prediction) or "row" (shares of the pairs with
            the same label).
        samples: number of pairs in one block.
        min_class_count: minimum number of pairs in a column or row for it to be judged.
        standard_errors: number of standard errors by which a share must be outside its limit; 0 compares the
            share with the limit directly.
        patience: number of consecutive blocks without progress before a block is judged, while the run
            continues; 0: every block is judged.
        compat: True applies the rule of smdebug.

    False alarms:
        - Tasks in which 90 % cannot be reached: set limits that the task allows.
        - Labels with noise.

    Do:
        Look at pairs of the two classes in the finding. Search for mislabelled data, classes that overlap,
        and features that do not distinguish the classes. Weight the loss, or add data of these classes.

    Source:
        R. Kohavi, F. Provost, Glossary of terms, Machine Learning 30, 1998.
    """

    code: ClassVar[str] = "TDC111"
    judged_by: ClassVar[JudgedBy] = "worker"

    category_no: int | None = None
    labels: str = "labels"
    predictions: str = "predictions"
    labels_collection: str = "labels"
    predictions_collection: str = "predictions"
    min_diag: float = 0.9
    max_off_diag: float = 0.1
    normalize: str = "column"
    samples: int = 500
    min_class_count: int = 10
    standard_errors: float = 2.0
    patience: int = 3
    compat: bool = False

    def __post_init__(self) -> None:
        classes = self.category_no
        require(classes is None or classes >= 2, self, "category_no", classes, "2 or more, or None")
        for name in ("min_diag", "max_off_diag"):
            require(0 <= getattr(self, name) <= 1, self, name, getattr(self, name), "a share, 0 to 1")
        require(self.normalize in ("column", "row"), self, "normalize", self.normalize, '"column" or "row"')
        for name in ("samples", "min_class_count"):
            require(getattr(self, name) >= 1, self, name, getattr(self, name), "1 or more")
        require(self.patience >= 0, self, "patience", self.patience, "0 or more")
        errors = self.standard_errors
        require(0 <= errors < np.inf, self, "standard_errors", errors, "0 or more")

    def needs(self) -> Need:
        """Values of labels and of predictions."""
        return Need(
            what="the values of labels and of the predictions for them, saved at the same steps",
            captures=tuple(
                CollectionConfig(
                    name=collection,
                    tensor_names=(name,),
                    save_config=SaveConfig(save_interval=10),
                    reduction_config=VALUES,
                )
                for collection, name in (
                    (self.labels_collection, self.labels),
                    (self.predictions_collection, self.predictions),
                )
            ),
            payload=True,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per cell of the matrix whose share is outside its limit."""
        labels = self._rows(window, self.labels_collection, self.labels)
        predictions = self._rows(window, self.predictions_collection, self.predictions) & ~labels
        there = window.columns.present("nbytes")
        window.missing("labels saved without their values", int(np.sum(labels & ~there)))
        window.missing("predictions saved without their values", int(np.sum(predictions & ~there)))
        rows, partners = paired(window, labels & there, predictions & there)
        window.missing("labels without predictions", int(np.sum(partners < 0)))
        for row, partner in zip(rows.tolist(), partners.tolist(), strict=True):
            if partner >= 0:
                yield from self._take(window, row, partner)
        for place, state in window.memory.items():
            if place[:2] in window.ended and (state.block.total or state.before.total):
                yield from self._last(window, place, state)

    def _rows(self, window: Window, collection: str, name: str) -> Mask:
        found: Mask = window.in_collections([collection]) | window.columns.where("name", name.__eq__)
        return found & window.ok

    def _take(self, window: Window, row: int, partner: int) -> Iterator[Finding]:
        """Add one pair of tensors. Judge the block if it is full."""
        try:
            (_, values), (_, scores) = window.read([row, partner])
            label, predicted = classes_of(values, scores, argmax=False)
        except RunError as error:
            window.missing(f"labels or predictions could not be read ({type(error).__name__})", 1)
            return
        except ValueError as error:
            window.missing(str(error), 1)
            return
        known = (label >= 0) & (predicted >= 0)
        if self.category_no is not None:
            known &= (label < self.category_no) & (predicted < self.category_no)
            window.missing(f"class of category_no = {self.category_no} or more", int(np.sum(~known)))
        columns = window.columns
        place = (int(columns.ints("attempt")[row]), columns.text("worker", row), columns.text("mode", row))
        state = window.memory.setdefault(place, _Pairs())
        state.take(label[known], predicted[known], part=max(1, self.samples // _PARTS))
        state.step, state.mode_step = int(columns.ints("step")[row]), int(columns.ints("mode_step")[row])
        state.tensor = columns.text("name", row)
        if state.block.total >= self.samples:
            yield from self._full(window, place, state)

    def _full(self, window: Window, place: tuple[int, str, str], state: _Pairs) -> Iterator[Finding]:
        block, state.block = state.block, PairTable()
        state.before = block
        accuracy = block.correct / block.total
        better = accuracy >= state.best + _PROGRESS
        state.best = max(state.best, accuracy)
        state.strikes = 0 if better else state.strikes + 1
        if better:
            state.told = set()
        window.judged(1)
        if self.compat or state.strikes >= self.patience:
            yield from self._judge(window, place, state, block)

    def _last(self, window: Window, place: tuple[int, str, str], state: _Pairs) -> Iterator[Finding]:
        """Judge the newest pairs at the end of the run. The model had learned less at earlier pairs."""
        table = state.block.merged(state.before) if self.compat else state.newest.merged(state.last)
        fresh = bool(state.block.total) or state.strikes < self.patience
        state.block, state.before, state.newest, state.last = (PairTable() for _ in range(4))
        window.judged(1)
        if fresh:
            yield from self._judge(window, place, state, table)

    def _judge(
        self, window: Window, place: tuple[int, str, str], state: _Pairs, table: PairTable
    ) -> Iterator[Finding]:
        by_row = self.normalize == "row"
        axis = table.label if by_row else table.prediction
        classes, size, hits = table.sums(by_label=by_row)
        if self.compat:
            on_diagonal = hits / max(table.correct, 1)
            errors = 0.0
        else:
            on_diagonal = hits / size
            errors = self.standard_errors
        enough = size >= (1 if self.compat else self.min_class_count)
        weak = enough & (on_diagonal + errors * _standard_error(on_diagonal, size) < self.min_diag)
        for at in np.flatnonzero(weak).tolist():
            each = int(classes[at])
            yield from self._tell(place, state, each, each, float(on_diagonal[at]), int(size[at]), table)
        at_class = np.searchsorted(classes, axis)
        share = table.count / size[at_class]
        much = share - errors * _standard_error(share, size[at_class]) > self.max_off_diag
        much &= enough[at_class] & (table.label != table.prediction)
        for at in np.flatnonzero(much).tolist():
            pair = int(table.label[at]), int(table.prediction[at])
            yield from self._tell(place, state, *pair, float(share[at]), int(size[at_class[at]]), table)

    def _tell(
        self,
        place: tuple[int, str, str],
        state: _Pairs,
        label: int,
        prediction: int,
        share: float,
        pairs: int,
        table: PairTable,
    ) -> Iterator[Finding]:
        """A finding about one cell, unless the cell was reported already."""
        if (label, prediction) in state.told:
            return
        state.told.add((label, prediction))
        diagonal = label == prediction
        limit = self.min_diag if diagonal else self.max_off_diag
        among = "labels" if self.normalize == "row" else "predictions"
        of = label if self.normalize == "row" else prediction
        if self.compat and diagonal:
            why = f"class {label} has {100 * share:.3g} % of the diagonal"
        elif diagonal:
            why = f"of {pairs} {among} of class {of} {100 * share:.3g} % are right"
        else:
            why = f"of {pairs} {among} of class {of} {100 * share:.3g} % have label {label} and prediction "
            why += f"{prediction}"
        attempt, worker, mode = place
        yield Finding(
            rule=type(self).__name__,
            code=self.code,
            step=state.step,
            mode=mode,
            mode_step=state.mode_step,
            worker=worker,
            attempt=attempt,
            tensor=state.tensor,
            numbers={
                "kind": f"label {label}, prediction {prediction}",
                "share": share,
                "limit": limit,
                "pairs": pairs,
                "accuracy": table.correct / max(table.total, 1),
            },
            why=f"{why}; {'at least' if diagonal else 'at most'} {100 * limit:g} % was expected",
            do="look at pairs of these two classes: wrong labels, classes that overlap, too little data",
        )


@dataclass(slots=True, kw_only=True)
class _Pairs:
    """State of the rule for one worker and mode, kept between windows. step, tensor: of the newest pairs."""

    block: PairTable = field(default_factory=PairTable)  # since the last judgement
    before: PairTable = field(default_factory=PairTable)  # the last full block
    newest: PairTable = field(default_factory=PairTable)  # the newest pairs, less than a part of a block
    last: PairTable = field(default_factory=PairTable)  # the part before them
    best: float = -1.0  # highest accuracy of a block
    strikes: int = 0
    told: set[tuple[int, int]] = field(default_factory=set)
    step: int = 0
    mode_step: int = 0
    tensor: str = ""

    def take(self, labels: Ints, predictions: Ints, *, part: int) -> None:
        """Add pairs. part: number of pairs in one part of a block."""
        self.block.add(labels, predictions)
        self.newest.add(labels, predictions)
        if self.newest.total >= part:
            self.last, self.newest = self.newest, PairTable()


def _standard_error(share: npt.NDArray[np.float64], size: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard error of a share among `size` pairs."""
    found: npt.NDArray[np.float64] = np.sqrt(np.clip(share * (1 - share), 0, None) / size)
    return found
