"""TDC107: a training that continues although its losses no longer improve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.measures.losses import in_both_modes, loss_captures
from tdcore.rules.measures.phases import PhaseCutter
from tdcore.rules.measures.series import NO_POINTS, Points, mixed_series, scalars
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern
from tdcore.text.step_text import step_text

__all__ = ["Overtraining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtraining:
    """Training that continues long after the losses stopped improving.

    What it does:
        Counts the values since the last new optimum of the training loss, and of the validation loss.

    Why it matters:
        Steps after the last improvement cost as much as the steps before it, and have no benefit. If the
        validation loss rises, these steps even make the model worse.

    Decides by:
        A loss has a new optimum if best - loss > delta, where best is the loss at the last optimum. The rule
        compares means, because a single lucky batch may have a loss that is never reached again. It uses
        means of `smoothing_values` saved values for the training loss, and the mean of each validation phase
        for the validation loss. delta is in units of the loss. If a loss begins below 1, delta is multiplied
        by its first mean, so that small losses can improve.

        Each mean that is not a new optimum adds one to the counter of its loss. Each new optimum resets the
        counter to zero. The rule fires when the training counter has reached patience_train and the
        validation counter has reached patience_validation; with require="any", when one of them has reached
        its limit. There is no further finding until a new optimum. Without a validation loss only the
        training counter decides, and the text of the finding states this.

        compat=True applies the rule of smdebug: it compares single saved values of both modes, and delta is
        never multiplied.

    Parameters:
        tensor_regex: losses to judge; a list of regular expressions, or one string with commas. None: the
            collection `losses`.
        patience_train: limit of the training counter: number of means without a new optimum.
        patience_validation: limit of the validation counter: number of validation phases without a new
            optimum.
        delta: minimum improvement that counts, in units of the loss.
        require: "both" if both counters must reach their limits, "any" if one counter is enough.
        smoothing_values: number of saved training losses in one mean.
        compat: True applies the rule of smdebug.

    False alarms:
        - Long plateaus that end (schedules that drop the learning rate late, grokking).
        - Losses that need not fall (the two losses of a GAN, reinforcement learning).
        - The end of a training that was planned with some reserve: the finding is true, and shows how much
          shorter the next training can be.

    Do:
        Stop, and keep the weights of the step with the lowest validation loss. Use early stopping. Lower the
        learning rate if the loss should still fall.

    Source:
        L. Prechelt, Early stopping - but when?, in: Neural Networks: Tricks of the Trade, 1998.
    """

    code: ClassVar[str] = "TDC107"
    judged_by: ClassVar[JudgedBy] = "worker"

    tensor_regex: str | Sequence[str] | None = None
    patience_train: int = 5
    patience_validation: int = 10
    delta: float = 0.01
    require: str = "both"
    smoothing_values: int = 20
    compat: bool = False

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        for name in ("patience_train", "patience_validation", "smoothing_values"):
            require(getattr(self, name) >= 1, self, name, getattr(self, name), "1 or more")
        require(0 <= self.delta < np.inf, self, "delta", self.delta, "0 or more")
        require(self.require in ("both", "any"), self, "require", self.require, '"both" or "any"')

    def needs(self) -> Need:
        """Losses over many steps."""
        patterns = names_of(self.tensor_regex)
        values = 1 if self.compat else self.smoothing_values
        return Need(
            what=f"scalar losses saved in TRAIN mode at {2 * values} steps or more (and in EVAL mode, if the "
            "training validates)",
            captures=loss_captures(patterns),
            kinds=() if patterns else ("loss",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per loss and series of means without improvement."""
        patterns = names_of(self.tensor_regex)
        wanted = in_both_modes(window, patterns)
        for key, points, is_eval in mixed_series(window, np.flatnonzero(scalars(window, wanted))):
            state = window.memory.setdefault(key, _OvertrainingMemory())
            for is_validation, step, mode_step, mean in self._means(state, points, is_eval):
                yield from self._take(window, key, state, is_validation, step, mode_step, mean)
        for key, state in window.memory.items():
            if key[:2] in window.ended and not self.compat:
                for phase in state.phases.end():
                    if phase.is_eval:
                        place = (phase.step, phase.mode_step, phase.mean)
                        yield from self._take(window, key, state, True, *place)

    def _means(
        self, state: _OvertrainingMemory, points: Points, is_eval: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> list[tuple[bool, int, int, float]]:
        """(is validation, step, mode step, mean) of each mean that these points complete, in order."""
        late = int(np.searchsorted(points.step, state.phases.newest, side="right"))
        points, is_eval = points.after(state.phases.newest), is_eval[late:]
        if self.compat:
            state.phases.newest = int(points.step[-1]) if points.step.size else state.phases.newest
            rows = zip(
                is_eval.tolist(),
                points.step.tolist(),
                points.mode_step.tolist(),
                points.value.tolist(),
                strict=True,
            )
            return list(rows)
        found = [
            (True, phase.step, phase.mode_step, phase.mean)
            for phase in state.phases.take(points, is_eval)
            if phase.is_eval
        ]
        kept = state.kept.joined(points.at(np.flatnonzero(~is_eval)))
        size = self.smoothing_values
        whole = kept.step.size // size * size
        ends = np.arange(size - 1, whole, size)
        means = kept.value[:whole].reshape(-1, size).mean(axis=1)
        found += zip(
            [False] * ends.size,
            kept.step[ends].tolist(),
            kept.mode_step[ends].tolist(),
            means.tolist(),
            strict=True,
        )
        state.kept = kept.at(np.arange(whole, kept.step.size))
        return sorted(found, key=lambda each: each[1])

    def _take(
        self,
        window: Window,
        key: tuple[int, str, str],
        state: _OvertrainingMemory,
        is_validation: bool,
        step: int,
        mode_step: int,
        mean: float,
    ) -> Iterator[Finding]:
        """Add one mean: of a block of training losses, or of a validation phase."""
        which = state.validation if is_validation else state.train
        if which.means == 0:
            which.first = abs(mean)
        which.means += 1
        delta = self._delta_of(which)
        if which.best - mean > delta:
            which.best, which.count = mean, 0
            which.best_step, which.best_mode_step = step, mode_step
        else:
            which.count += 1
        window.judged(int(which.means > 1))
        stale = [
            state.train.count >= self.patience_train,
            state.validation.count >= self.patience_validation,
        ]
        alone = not state.validation.means
        over = stale[0] if alone else any(stale) if self.require == "any" else all(stale)
        again, state.told = state.told, over
        if over and not again:
            yield self._finding(key, state, is_validation, step, mode_step)

    def _delta_of(self, which: _Counter) -> float:
        """The improvement that counts, in units of this loss."""
        return self.delta if self.compat else self.delta * min(1.0, which.first)

    def _finding(
        self,
        key: tuple[int, str, str],
        state: _OvertrainingMemory,
        is_validation: bool,
        step: int,
        mode_step: int,
    ) -> Finding:
        attempt, worker, name = key
        train, validation = state.train, state.validation
        unit = "saved values" if self.compat else f"means of {self.smoothing_values} saved values"
        why = f"the training loss has not improved by more than {self._delta_of(train):.2g} on its "
        why += f"best value {train.best:.4g} for {train.count} {unit} (since {train.since('TRAIN')})"
        numbers: dict[str, float | int | str] = {
            "training_best": train.best,
            "training_count": train.count,
            "patience_train": self.patience_train,
            "delta": self._delta_of(train),
        }
        if validation.means:
            unit = "saved values" if self.compat else "phases"
            why += f", and the validation loss has not improved on its best value {validation.best:.4g} "
            why += f"for {validation.count} {unit} (since {validation.since('EVAL')})"
            numbers |= {
                "validation_best": validation.best,
                "validation_count": validation.count,
                "patience_validation": self.patience_validation,
            }
        else:
            why += "; there is no validation loss, so only the training loss was judged"
        return Finding(
            rule=type(self).__name__,
            code=self.code,
            step=step,
            mode="EVAL" if is_validation else "TRAIN",
            mode_step=mode_step,
            worker=worker,
            attempt=attempt,
            tensor=name,
            numbers=numbers,
            why=why,
            do="stop and keep the weights of the step with the best validation loss, or lower the learning "
            "rate",
        )


@dataclass(slots=True, kw_only=True)
class _Counter:
    """Best mean of one of the two losses, and the number of later means."""

    means: int = 0
    first: float = 0.0
    best: float = np.inf
    best_step: int = 0  # global
    best_mode_step: int = 0
    count: int = 0  # means since the last optimum

    def since(self, mode: str) -> str:
        """The step of the best mean in words."""
        return step_text(self.best_step, mode, self.best_mode_step)


@dataclass(slots=True, kw_only=True)
class _OvertrainingMemory:
    """State of the rule for one loss, kept between windows."""

    phases: PhaseCutter = field(default_factory=PhaseCutter)
    kept: Points = NO_POINTS  # training losses of a block that is incomplete
    train: _Counter = field(default_factory=_Counter)
    validation: _Counter = field(default_factory=_Counter)
    told: bool = False  # reported, without a new optimum since
