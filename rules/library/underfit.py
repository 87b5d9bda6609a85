"""TDC106: a model that does not fit its training data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.losses import in_both_modes, loss_captures
from tdcore.rules.measures.phases import PhaseCutter
from tdcore.rules.measures.series import NO_POINTS, Points, mixed_series, scalars
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["Underfit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Underfit:
    """A training loss and a validation loss that both stay high.

    What it does:
        Compares the training loss, and the validation loss if there is one, with their starting levels, and
        reports a training that stays near these levels.

    Why it matters:
        A model that is hardly better than an untrained model is too small for its task, cannot learn (dead
        units, frozen weights, a wrong learning rate), or gets inputs that do not determine the labels. More
        steps do not help.

    Decides by:
        This definition is tdcore's own. The training loss is averaged over blocks of `window_values` saved
        values, and the validation loss over each validation phase. The starting level is the larger of two
        means: the mean of the first 3 values (or fewer, if a block is shorter), and the mean of the first
        block. The rule decides after each block whose last step is at least `warmup_steps` (of the mode).

        - `flat`: both losses are above flat_fraction x starting level. In `patience` consecutive blocks, and
          in all validation phases that ended during these blocks, neither mean fell by `min_fall_percent`
          since its last fall of this size. This kind is reported again only after progress.
        - `high`: the step is at least `high_steps`, and both losses are above high_fraction x starting level,
          even if they still fall slowly. This kind is reported once.

        A training that has converged is flat but low. A training that learns is high but falling. Neither is
        reported. Without a validation loss only the training loss decides, and the text of the finding states
        this. Losses that begin at 0 or below are not judged.

    Parameters:
        tensor_regex: losses to judge; a list of regular expressions, or one string with commas. None: the
            collection `losses`.
        warmup_steps: number of first training steps without a finding.
        window_values: number of saved values of the training loss in one block.
        patience: number of consecutive blocks without a fall that make a finding of kind `flat`.
        min_fall_percent: relative fall of the loss that counts as progress, in percent.
        flat_fraction: share of the starting level above which a constant loss is too high.
        high_steps: number of steps after which the loss should be below high_fraction x starting level.
        high_fraction: share of the starting level below which the loss should be after high_steps.
        start_level: the loss of an untrained model, such as ln(number of classes). None: it is measured.

    False alarms:
        - A training that starts from trained weights has a low starting level: set start_level.
        - Data from which little can be learned (no model reaches 75 % of the starting level).
        - Very slow schedules: raise high_steps.
        - Losses that need not fall (GANs, reinforcement learning).

    Do:
        First try to fit a single batch. Use a larger model or train frozen layers, raise the learning rate,
        reduce regularisation, and check that inputs are normalised and belong to their labels.

    Source:
        I. Goodfellow, Y. Bengio, A. Courville, Deep Learning, 2016, sections 5.2 and 11.5.
    """

    code: ClassVar[str] = "TDC106"
    judged_by: ClassVar[JudgedBy] = "worker"

    tensor_regex: str | Sequence[str] | None = None
    warmup_steps: int = 100
    window_values: int = 10
    patience: int = 10
    min_fall_percent: float = 1.0
    flat_fraction: float = 0.75
    high_steps: int = 2000
    high_fraction: float = 0.9
    start_level: float | None = None

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        for name in ("warmup_steps", "high_steps"):
            require(getattr(self, name) >= 0, self, name, getattr(self, name), "0 or more")
        for name in ("window_values", "patience"):
            require(getattr(self, name) >= 1, self, name, getattr(self, name), "1 or more")
        for name in ("flat_fraction", "high_fraction"):
            require(0 < getattr(self, name) < np.inf, self, name, getattr(self, name), "a number above 0")
        fall = self.min_fall_percent
        require(0 <= fall < 100, self, "min_fall_percent", fall, "from 0 to below 100")
        level = self.start_level
        require(level is None or 0 < level < np.inf, self, "start_level", level, "a number above 0, or None")

    def needs(self) -> Need:
        """Losses over many steps."""
        patterns = names_of(self.tensor_regex)
        return Need(
            what=f"scalar losses saved in TRAIN mode at {self.window_values} steps or more, up to step "
            f"{self.warmup_steps} or later (and in EVAL mode, if the training validates)",
            captures=loss_captures(patterns),
            kinds=() if patterns else ("loss",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per loss and kind, "flat" or "high"; another "flat" finding after progress."""
        patterns = names_of(self.tensor_regex)
        wanted = in_both_modes(window, patterns)
        for key, points, is_eval in mixed_series(window, np.flatnonzero(scalars(window, wanted))):
            state = window.memory.setdefault(key, _UnderfitMemory())
            for block in self._blocks(state, points, is_eval):
                yield from self._judge(window, key, state, block)

    def _blocks(self, state: _UnderfitMemory, points: Points, is_eval: Mask) -> Iterator[_Block]:
        """The blocks of training losses that these points complete.

        Before each block, the validation phases that ended before its last step are added.
        """
        late = int(np.searchsorted(points.step, state.phases.newest, side="right"))
        points, is_eval = points.after(state.phases.newest), is_eval[late:]
        phases = [phase for phase in state.phases.take(points, is_eval) if phase.is_eval]
        kept = state.kept.joined(points.at(np.flatnonzero(~is_eval)))
        size = self.window_values
        filled = kept.step.size // size
        if self.start_level is not None:
            state.start = self.start_level
        elif state.start is None and filled:
            state.start = max(float(kept.value[: min(3, size)].mean()), float(kept.value[:size].mean()))
        means = kept.value[: filled * size].reshape(filled, size).mean(axis=1).tolist()
        last = slice(size - 1, filled * size, size)
        steps, mode_steps = kept.step[last].tolist(), kept.mode_step[last].tolist()
        waiting = deque(phases)
        for step, mode_step, mean in zip(steps, mode_steps, means, strict=True):
            while waiting and waiting[0].step < step:
                state.validated(waiting.popleft().mean, self.min_fall_percent)
            yield _Block(step=step, mode_step=mode_step, mean=mean)
        for phase in waiting:
            state.validated(phase.mean, self.min_fall_percent)
        state.kept = kept.at(np.arange(filled * size, kept.step.size))

    def _judge(
        self, window: Window, key: tuple[int, str, str], state: _UnderfitMemory, block: _Block
    ) -> Iterator[Finding]:
        fell = block.mean < state.baseline * (1 - self.min_fall_percent / 100)
        if fell:
            state.baseline = block.mean
        fell, state.validation_fell = fell or state.validation_fell, False
        if state.start is None or state.start <= 0:
            window.missing("the loss begins at 0 or below", 1)
            return
        if block.mode_step < self.warmup_steps:
            window.missing(f"block of losses before step {self.warmup_steps} of the training", 1)
            return
        window.judged(1)
        level = block.mean / state.start
        if state.validation is not None:
            level = min(level, state.validation / state.start)
        state.strikes = 0 if fell else state.strikes + 1
        state.told_flat = state.told_flat and not fell
        if state.strikes >= self.patience and level > self.flat_fraction and not state.told_flat:
            state.told_flat = True
            yield self._finding(key, state, state.start, block, "flat", self.flat_fraction)
        if block.mode_step >= self.high_steps and level > self.high_fraction and not state.told_high:
            state.told_high = True
            yield self._finding(key, state, state.start, block, "high", self.high_fraction)

    def _finding(
        self,
        key: tuple[int, str, str],
        state: _UnderfitMemory,
        start: float,
        block: _Block,
        kind: str,
        fraction: float,
    ) -> Finding:
        attempt, worker, name = key
        numbers: dict[str, float | int | str] = {
            "kind": kind,
            "training_loss": block.mean,
            "start_level": start,
            "share_of_start": block.mean / start,
            "limit": fraction,
            "blocks_without_fall": state.strikes,
        }
        why = f"the training loss is {block.mean:.4g}, {rounded(100 * block.mean / start)} % of the "
        why += f"{start:.4g} that it began with (above {100 * fraction:g} % is too high)"
        if state.validation is None:
            why += "; there is no validation loss, so only the training loss was judged"
        else:
            numbers["validation_loss"] = state.validation
            why += f", and the validation loss is {state.validation:.4g}"
        if kind == "flat":
            why += f"; no fall by {self.min_fall_percent:g} % for {state.strikes} blocks of "
            why += f"{self.window_values} saved values"
        return Finding(
            rule=type(self).__name__,
            code=self.code,
            step=block.step,
            mode="TRAIN",
            mode_step=block.mode_step,
            worker=worker,
            attempt=attempt,
            tensor=name,
            numbers=numbers,
            why=why,
            do="check that weights get gradients and units are active, that updates are about a thousandth "
            "of the size of the weights, and that inputs belong to their labels; only then use a larger "
            "model",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Mean of a block of training losses; steps of its last value."""

    step: int
    mode_step: int
    mean: float


@dataclass(slots=True, kw_only=True)
class _UnderfitMemory:
    """State of the rule for one loss, kept between windows."""

    phases: PhaseCutter = field(default_factory=PhaseCutter)
    kept: Points = NO_POINTS  # training losses of a block that is incomplete
    start: float | None = None  # starting level, once known
    baseline: float = np.inf  # mean of the block that fell last
    validation: float | None = None  # mean of the last validation phase
    validation_baseline: float = np.inf
    validation_fell: bool = False  # whether it fell since the last block
    strikes: int = 0
    told_flat: bool = False
    told_high: bool = False

    def validated(self, mean: float, min_fall_percent: float) -> None:
        """Add the mean of a validation phase."""
        self.validation = mean
        if mean < self.validation_baseline * (1 - min_fall_percent / 100):
            self.validation_baseline, self.validation_fell = mean, True
