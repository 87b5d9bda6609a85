"""TDC103: a loss that no longer falls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.save_config import SaveConfig
from tdcore.errors import ConfigError
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.phases import PhaseCutter, as_points
from tdcore.rules.measures.series import NO_POINTS, Points, groups, scalars, series
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["LossNotDecreasing"]

_MODES = ("EVAL", "TRAIN", "GLOBAL")
_FALLEN = 0.2  # relative fall since the first value from which a training loss counts as learning
_CONVERGED = 1e-3  # share of the first value below which a loss has converged
_AT_ONCE = 1 << 20  # maximum number of values that are averaged in one call


@dataclass(frozen=True, slots=True, kw_only=True)
class LossNotDecreasing:
    """A loss that does not fall by a given share within a given number of steps.

    What it does:
        Compares each scalar loss, every `num_steps` steps, with its value at the last evaluation that showed
        progress.

    Why it matters:
        A loss that is constant or rises is the clearest sign that a training does not work: a learning rate
        that is far too high or too low, frozen weights, broken labels. Early detection saves compute time.

    Decides by:
        The loss is evaluated at the first saved step that is at least `num_steps` after the last evaluation.
        The count starts at the first saved step. b is the baseline, which begins as the first value. c is the
        current loss. The fall in percent is d = 100 (b - c) / max(|b|, 1e-12).

        - d >= diff_percent is progress, and c becomes the baseline.
        - Otherwise the evaluation is a strike: an `increase` if d < -increase_threshold_percent, else a
          `plateau`.

        `patience` consecutive strikes make a finding. Each further strike makes another finding, until there
        is progress. A loss below 0.1 % of its first value has converged and is not reported.

        c is the mean of the values saved in the last `smoothing_steps` steps, because a single batch is too
        noisy to measure 0.1 %. In EVAL mode a whole validation phase counts as one value, at its last step,
        so that batches of one phase are not compared with each other. Several values of one step (a reused
        criterion) are averaged. Each loss tensor is judged separately. Steps are steps of the mode; for
        GLOBAL they are global steps.

        compat=True applies the rule of smdebug: losses are not averaged, one strike is enough, the baseline
        moves with every finding, a rise up to increase_threshold_percent is neither progress nor a strike,
        and losses of TRAIN mode are not judged if there is a loss of EVAL mode.

    Parameters:
        collection_names: collections to judge in addition to `losses`; a list of names, or one string with
            commas.
        tensor_regex: tensors to judge in addition; a list of regular expressions, or one string with commas.
        use_losses_collection: whether the collection `losses` is judged.
        num_steps: number of steps between two evaluations.
        diff_percent: relative fall of the loss that counts as progress, in percent.
        increase_threshold_percent: relative rise above which a strike is an `increase`, in percent.
        mode: "EVAL", "TRAIN" or "GLOBAL" (the steps of all modes, with global step numbers). None: the first
            of EVAL, TRAIN, GLOBAL that has had a loss so far. If there is an EVAL loss, a TRAIN loss is also
            judged while it is above 80 % of its first value, but needs twice as many strikes for a finding.
        patience: number of consecutive evaluations without progress that make a finding. With the defaults, a
            constant loss is found after 60 steps (median). With patience 1, healthy trainings are reported
            too.
        smoothing_steps: number of steps over which values are averaged; None: num_steps; 1: no averaging.
        compat: True applies the rule of smdebug.

    False alarms:
        - The end of a training that has converged: the finding is true, and harmless.
        - Losses that need not fall (the two losses of a GAN, reinforcement learning, a warm-up in the first
          steps).
        - Small batches with few steps between evaluations: raise num_steps to about an epoch, or raise
          patience.

    Do:
        Lower the learning rate if the loss rises or jumps; raise it if the loss falls very slowly. Check that
        the optimizer has the parameters that should learn, that these parameters get gradients (rule
        VanishingGradient), and that labels belong to their inputs.

    Source:
        L. Prechelt, Early stopping - but when?, in: Neural Networks: Tricks of the Trade, 1998.
    """

    code: ClassVar[str] = "TDC103"
    judged_by: ClassVar[JudgedBy] = "worker"

    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    use_losses_collection: bool = True
    num_steps: int = 10
    diff_percent: float = 0.1
    increase_threshold_percent: float = 5.0
    mode: str | None = None
    patience: int = 5
    smoothing_steps: int | None = None
    compat: bool = False

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        if not self._collections() and not names_of(self.tensor_regex):
            raise ConfigError(
                "LossNotDecreasing has no tensors to judge: give collection_names or tensor_regex, or set "
                "use_losses_collection to True"
            )
        require(self.num_steps >= 1, self, "num_steps", self.num_steps, "1 or more")
        require(0 <= self.diff_percent < 100, self, "diff_percent", self.diff_percent, "from 0 to below 100")
        limit = self.increase_threshold_percent
        require(0 <= limit < np.inf, self, "increase_threshold_percent", limit, "0 or more")
        require(self.mode in (None, *_MODES), self, "mode", self.mode, f"one of {', '.join(_MODES)}, or None")
        require(self.patience >= 1, self, "patience", self.patience, "1 or more")
        require(self._smoothing >= 1, self, "smoothing_steps", self.smoothing_steps, "1 or more, or None")

    def needs(self) -> Need:
        """Scalar losses at steps far enough apart."""
        mode = f" in {self.mode} mode" if self.mode not in (None, "GLOBAL") else ""
        interval = max(1, self.num_steps // 10)
        return Need(
            what=f"a scalar loss saved{mode} at steps at least num_steps = {self.num_steps} apart",
            captures=captures_of(
                self._collections(),
                names_of(self.tensor_regex),
                save_config=SaveConfig(save_interval=interval),
                keep=STATISTICS,
            ),
            kinds=("loss",) if self.use_losses_collection else (),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per loss and evaluation from the `patience`-th strike on."""
        rows = np.flatnonzero(self._scalars(window))
        self._note_modes(window, rows)
        for (attempt, worker, name, mode), points in series(window, rows, merge=self.mode == "GLOBAL"):
            key = f"{attempt}/{worker}/{mode}/{name}"
            state = window.memory.get(key)
            if state is None:
                state = window.memory[key] = _Series(attempt=attempt, worker=worker, name=name, mode=mode)
            if mode == "EVAL" and not self.compat:
                points = as_points(state.phases.take(points, np.ones(points.unit.size, dtype=np.bool_)))
            yield from self._evaluate(window, state, points)
        for state in list(window.memory.values()):
            if isinstance(state, _Series) and (state.attempt, state.worker) in window.ended:
                yield from self._evaluate(window, state, as_points(state.phases.end()))

    @property
    def _smoothing(self) -> int:
        if self.compat:
            return 1
        return self.num_steps if self.smoothing_steps is None else self.smoothing_steps

    def _collections(self) -> tuple[str, ...]:
        return (*names_of(self.collection_names), *(("losses",) if self.use_losses_collection else ()))

    def _scalars(self, window: Window) -> Mask:
        wanted = window.selected(self._collections(), names_of(self.tensor_regex))
        if self.mode in ("EVAL", "TRAIN"):
            wanted = wanted & window.columns.where("mode", lambda mode: mode == self.mode)
        elif self.mode is None:
            wanted = wanted & window.columns.where("mode", lambda mode: mode in _MODES)
        return scalars(window, wanted)

    def _note_modes(self, window: Window, rows: npt.NDArray[np.int64]) -> None:
        """Store the first global step at which each worker had a loss in each mode."""
        columns = window.columns
        for attempt, worker, mode, group in groups(columns, rows, "attempt", "worker", "mode"):
            first = window.memory.setdefault(("first", attempt, worker), {})
            first.setdefault(mode, int(columns.ints("step")[group].min()))

    def _reported(self, window: Window, state: _Series, step: int) -> bool:
        """Whether this series is judged at this step; see the parameter `mode`."""
        if self.mode is not None:
            return True
        first = window.memory[("first", state.attempt, state.worker)]
        before = _MODES[: _MODES.index(state.mode)]
        if not any(first.get(mode, step + 1) <= step for mode in before):
            return True
        return state.mode == "TRAIN" and not self.compat and self._never_fell(state)

    def _never_fell(self, state: _Series) -> bool:
        """Whether a loss has stayed near its first value for twice the usual time."""
        start = state.start
        return state.strikes >= 2 * self.patience and state.lowest > start - _FALLEN * abs(start)

    def _evaluate(self, window: Window, state: _Series, points: Points) -> Iterator[Finding]:
        """Go through the evaluations at these points, one jump each."""
        points = points.after(state.newest)  # leave out late rows
        if not points.unit.size:
            return
        state.newest = int(points.unit[-1])
        if state.evaluated is None:
            state.evaluated = state.baseline_step = int(points.unit[0])
            state.baseline = state.start = state.lowest = float(points.value[0])
        units = np.concatenate([state.recent.unit, points.unit])
        values = np.concatenate([state.recent.value, points.value])
        shift = state.recent.unit.size
        state.recent = state.recent.joined(points).after(state.newest - self._smoothing)
        ends = _jumps(units.tolist(), state.evaluated, self.num_steps)
        starts = np.searchsorted(units, units[ends] - self._smoothing, side="right")
        means = _means(values, starts, ends).tolist()
        fresh = points.at(ends - shift)
        steps, mode_steps = fresh.step.tolist(), fresh.mode_step.tolist()
        for unit, current, step, mode_step in zip(
            units[ends].tolist(), means, steps, mode_steps, strict=True
        ):
            state.evaluated = unit
            finding = self._compare(state, current, step, mode_step)
            if self._reported(window, state, step):
                window.judged(1)
                if finding is not None:
                    yield finding

    def _step_word(self, state: _Series) -> str:
        """The word for a step of the loss in messages."""
        if self.mode == "GLOBAL":
            return "global step"
        return "step" if state.mode == "GLOBAL" else f"{state.mode} step"

    def _compare(self, state: _Series, current: float, step: int, mode_step: int) -> Finding | None:
        baseline, since = state.baseline, state.baseline_step
        state.lowest = min(state.lowest, current)
        change = 100 * (baseline - current) / max(abs(baseline), 1e-12)
        rises = change < -self.increase_threshold_percent
        progress = change >= self.diff_percent
        if progress:
            state.strikes = 0
        elif not (self.compat and change < 0 and not rises):
            state.strikes += 1
        needed = 1 if self.compat else self.patience
        converged = not self.compat and 0 <= current < _CONVERGED * state.start
        fires = not progress and state.strikes >= needed and not converged
        if progress or (self.compat and fires):
            state.baseline, state.baseline_step = current, state.evaluated or 0
            state.strikes = 0
        if not fires:
            return None
        kind = "increase" if rises else "plateau"
        moved = f"rose by {rounded(-change)} %" if change < 0 else f"fell by only {rounded(change)} %"
        return Finding(
            rule=type(self).__name__,
            code=self.code,
            step=step,
            mode=state.mode,
            mode_step=mode_step,
            worker=state.worker,
            attempt=state.attempt,
            tensor=state.name,
            numbers={
                "kind": kind,
                "loss": current,
                "baseline": baseline,
                "baseline_step": since,
                "decrease_percent": change,
                "diff_percent": self.diff_percent,
                "strikes": max(state.strikes, 1),
            },
            why=f"loss {moved} since {self._step_word(state)} {since} ({baseline:.4g} to {current:.4g}); "
            f"a fall by {self.diff_percent:g} % was expected within {self.num_steps * needed} steps",
            do="change the learning rate, and check that weights get gradients and that labels belong to "
            "inputs; if the training has converged, stop it",
        )


def _jumps(units: list[int], evaluated: int, num_steps: int) -> npt.NDArray[np.int64]:
    """Positions of the evaluations: each is the first at num_steps or more after the previous one."""
    found: list[int] = []
    at = bisect_left(units, evaluated + num_steps)
    while at < len(units):
        found.append(at)
        at = bisect_left(units, units[at] + num_steps, at + 1)
    return np.array(found, dtype=np.int64)


def _means(
    values: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Mean of values[start : end + 1] for each pair. Pairs of equal length are computed together."""
    found = np.empty(ends.size)
    sizes = ends + 1 - starts
    for size in np.unique(sizes).tolist():
        these = np.flatnonzero(sizes == size)
        for part in np.split(these, range(_AT_ONCE // size + 1, these.size, _AT_ONCE // size + 1)):
            found[part] = values[starts[part, np.newaxis] + np.arange(size)].mean(axis=1)
    return found


@dataclass(slots=True, kw_only=True)
class _Series:
    """State of the rule for one loss in one mode, kept between windows."""

    attempt: int
    worker: str
    name: str
    mode: str
    newest: int = -1  # the last unit that was added
    evaluated: int | None = None  # step of the last evaluation
    start: float = 0.0  # the first value
    lowest: float = 0.0  # the lowest value of an evaluation
    baseline: float = 0.0
    baseline_step: int = 0
    strikes: int = 0
    recent: Points = NO_POINTS  # the last smoothing_steps steps
    phases: PhaseCutter = field(default_factory=PhaseCutter)  # phases of EVAL
