"""TDC105: a model that fits its training data but not its validation data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import hypot
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.measures.evaluation_sets import SetPairs
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.losses import in_both_modes, loss_captures
from tdcore.rules.measures.phases import Phase, PhaseCutter
from tdcore.rules.measures.series import mixed_series, scalars
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["Overfit"]

_PAIRS = ("evaluation sets",)  # key in the memory of the rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfit:
    """A validation loss that is well above the training loss and no longer improves.

    What it does:
        Compares the mean loss of each validation phase with the mean loss of the training phase before it.

    Why it matters:
        A model that memorises its training data becomes worse on other data with each further step. An
        earlier step has the best weights. The training loss does not show this, because it still falls.

    Decides by:
        The rule computes r = (mean validation loss - mean training loss) / mean training loss, once for each
        validation phase that has ended (a training step follows, or the training has ended). A phase counts
        if all of these are true:

        - r > ratio_threshold;
        - the difference is more than `standard_errors` standard errors, from the variance of the saved losses
          in both phases;
        - the mean validation loss is not the lowest so far, because a model whose validation loss still falls
          is still learning.

        `patience` consecutive phases that count make a finding. There is no further finding until a phase
        does not count. The first phase never counts, because its loss is the lowest so far. Each loss tensor
        is judged separately. A phase without a training phase immediately before it, or with a mean training
        loss of 0 or less, is not judged.

        Gradient boosting evaluates its sets after each round and has no phases. The rule compares a loss
        "<validation set>-<metric>" with "<training set>-<metric>" in blocks of ten rounds, and each block
        counts as one phase.

        compat=True applies the rule of smdebug: only r decides, one phase is enough, and each further phase
        is also a finding.

    Parameters:
        tensor_regex: losses to judge; a list of regular expressions, or one string with commas. None: the
            collection `losses`.
        start_step: first global step of the phases that are compared.
        patience: number of consecutive phases that make a finding. None: 3, or 1 with compat.
        ratio_threshold: limit of r, the relative distance of the two losses.
        standard_errors: number of standard errors that the difference must exceed; 0: the difference is not
            compared with its noise.
        training_sets: names of evaluation sets with training data, for gradient boosting; a list, or one
            string with commas. The estimators of XGBoost name their sets validation_0, validation_1, ...
        compat: True applies the rule of smdebug.

    False alarms:
        - A validation set that is harder than the training set: r is large from the start.
        - A model that has converged with a training loss near zero: r is large although the validation loss
          is only constant.

        Dropout and augmentation raise the training loss, so they hide overfitting but cause no false alarms.

    Do:
        Stop the training, or use the weights of the step with the lowest validation loss. Add data or
        augmentation, weight decay or dropout, or use a smaller model.

    Source:
        L. Prechelt, Early stopping - but when?, in: Neural Networks: Tricks of the Trade, 1998. I.
        Goodfellow, Y. Bengio, A. Courville, Deep Learning, 2016, section 5.2.
    """

    code: ClassVar[str] = "TDC105"
    judged_by: ClassVar[JudgedBy] = "run"
    reads: ClassVar[tuple[str, ...]] = (
        "count",
        "nan_count",
        "pos_inf_count",
        "neg_inf_count",
        "mean",
    )

    tensor_regex: str | Sequence[str] | None = None
    start_step: int = 0
    patience: int | None = None
    ratio_threshold: float = 0.1
    standard_errors: float = 2.0
    training_sets: str | Sequence[str] = ("train", "training")
    compat: bool = False

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        require(self.start_step >= 0, self, "start_step", self.start_step, "0 or more")
        require(self._patience >= 1, self, "patience", self.patience, "1 or more, or None")
        limit = self.ratio_threshold
        require(0 <= limit < np.inf, self, "ratio_threshold", limit, "0 or more")
        errors = self.standard_errors
        require(0 <= errors < np.inf, self, "standard_errors", errors, "0 or more")

    def needs(self) -> Need:
        """Losses of training and of validation."""
        patterns = names_of(self.tensor_regex)
        return Need(
            what="scalar losses saved in TRAIN and in EVAL mode, phase after phase (or losses of a training "
            "set and a validation set of gradient boosting)",
            captures=loss_captures(patterns),
            kinds=() if patterns else ("loss",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per loss and series of consecutive phases that count."""
        patterns = names_of(self.tensor_regex)
        wanted = in_both_modes(window, patterns)
        wanted = wanted & (window.columns.ints("step") >= self.start_step)
        for key, points, is_eval in mixed_series(window, np.flatnonzero(scalars(window, wanted))):
            state = window.memory.setdefault(key, _OverfitMemory())
            for phase in state.phases.take(points, is_eval):
                yield from self._take(window, key, state, phase)
        for key, state in window.memory.items():
            if key != _PAIRS and key[:2] in window.ended:
                for phase in state.phases.end():
                    yield from self._take(window, key, state, phase)
        yield from self._evaluation_sets(window)

    def _evaluation_sets(self, window: Window) -> Iterator[Finding]:
        """Judge losses of gradient boosting: each block of rounds is a phase of both sets."""
        patterns = names_of(self.tensor_regex)
        wanted = window.named(patterns) if patterns else window.in_collections(["losses"])
        wanted = wanted & (window.columns.ints("step") >= self.start_step)
        pairs = window.memory.setdefault(_PAIRS, SetPairs(training_sets=names_of(self.training_sets)))
        wanted = wanted & window.columns.where(
            "name", pairs.chosen(window.columns.texts("name")).__contains__
        )
        ended = [*pairs.take(window, np.flatnonzero(scalars(window, wanted)))]
        for attempt, worker in window.ended:
            ended += pairs.end(attempt, worker)
        for key, train, validation in ended:
            state = window.memory.setdefault((*key, "sets"), _OverfitMemory())
            for phase in (train, validation):
                yield from self._take(window, key, state, phase)

    @property
    def _patience(self) -> int:
        if self.patience is None:
            return 1 if self.compat else 3
        return self.patience

    def _take(
        self, window: Window, key: tuple[int, str, str], state: _OverfitMemory, phase: Phase
    ) -> Iterator[Finding]:
        """Add a phase that has ended."""
        if not phase.is_eval:
            state.train = phase
            return
        train, state.train = state.train, None
        best, state.best = state.best, min(state.best, phase.mean)
        if train is None:
            window.missing("no training loss was saved in the phase before a validation phase", 1)
        elif train.mean <= 0:
            window.missing("mean training loss is 0 or less", 1)
        else:
            window.judged(1)
            ratio = (phase.mean - train.mean) / train.mean
            counts = ratio > self.ratio_threshold
            if not self.compat:
                error = hypot(phase.standard_error, train.standard_error)
                beyond_noise = phase.mean - train.mean > self.standard_errors * error
                counts = counts and beyond_noise and phase.mean >= best
            state.strikes = state.strikes + 1 if counts else 0
            again = self.compat and state.strikes > self._patience
            if state.strikes == self._patience or again:
                yield self._finding(key, state, phase, train)

    def _finding(
        self, key: tuple[int, str, str], state: _OverfitMemory, phase: Phase, train: Phase
    ) -> Finding:
        attempt, worker, name = key
        ratio = (phase.mean - train.mean) / train.mean
        return Finding(
            rule=type(self).__name__,
            code=self.code,
            step=phase.step,
            mode="EVAL",
            mode_step=phase.mode_step,
            worker=worker,
            attempt=attempt,
            tensor=name,
            numbers={
                "validation_loss": phase.mean,
                "training_loss": train.mean,
                "ratio": ratio,
                "ratio_threshold": self.ratio_threshold,
                "best_validation_loss": state.best,
                "phases": state.strikes,
            },
            why=f"the mean validation loss {phase.mean:.4g} is {rounded(100 * ratio)} % above the mean "
            f"training loss {train.mean:.4g} ({100 * self.ratio_threshold:g} % is tolerated), for "
            f"{state.strikes} phases in a row; the lowest mean validation loss was {state.best:.4g}",
            do="go back to the weights of the step with the lowest validation loss; add data, augmentation, "
            "weight decay or dropout, or use a smaller model",
        )


@dataclass(slots=True, kw_only=True)
class _OverfitMemory:
    """State of the rule for one loss, kept between windows."""

    phases: PhaseCutter = field(default_factory=PhaseCutter)
    train: Phase | None = None  # the training phase that has just ended
    best: float = np.inf  # lowest mean of a validation phase
    strikes: int = 0
