"""TDC109: a loss that jumps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.phases import PhaseCutter, as_points
from tdcore.rules.measures.series import NO_POINTS, Points, scalars, series
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["LossSpike"]

_CHUNK = 1 << 15  # number of values per computation, which limits the memory
_OF_START = 1e-3  # share of the first value; a smaller rise is the noise of a loss near zero
_SIGMA_OF_MAD = 1.4826  # standard deviation / MAD of a normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike:
    """A loss far above its recent level, for several values in a row.

    What it does:
        Compares each loss value with the median and the spread of the values before it.

    Why it matters:
        A spike shows that an update damaged the weights, because of a batch of broken data, a learning rate
        at the edge of stability, or an overflow. Some trainings recover after many lost steps, others do not
        recover. The cause is easier to find if the step is known.

    Decides by:
        The rule compares the current value with the `window_values` values before it, of the same loss in the
        same mode. m is their median. s is 1.4826 x their median absolute deviation. The rule uses medians
        because losses of mini-batches have heavy tails. The first `window_values` values are not judged.

        The current value is high if it is above all of these limits: m + factor x s; (1 + min_jump) x m; m +
        min_share x the highest m so far; m + 0.1 % of the first value of the loss. The rule has two kinds of
        findings.

        - `spike`: the number of high values in a row has reached `consecutive`. A single high value comes
          from a hard batch and does not damage the weights.
        - `step` (the loss stays at a higher level): the number of high values in a row has reached 2/5 of
          `window_values`. This finding follows the finding `spike`.

        In EVAL mode the mean of a whole validation phase counts as one value, because the batches of a phase
        come in a fixed order that may be sorted.

    Parameters:
        tensor_regex: losses to judge; a list of regular expressions, or one string with commas. None: the
            collection `losses`.
        window_values: number of earlier saved values to compare with, 10 or more.
        factor: minimum distance of a high value above the median, as a multiple of s.
        min_jump: minimum relative rise of a high value above the median.
        min_share: minimum rise of a high value above the median, as a share of the highest median so far, so
            that noise of a loss near zero is not a spike.
        consecutive: number of consecutive high values that make a spike.

    False alarms:
        - Data that is not in random order (sorted by class or length), so that many batches in a row are
          harder.
        - Intended changes: another task, a harder stage of a curriculum, new factors for the terms of a loss.

    Do:
        Look at the batches of the steps before the spike, clip gradients, lower the learning rate or lengthen
        its warm-up. Restart from a checkpoint before the spike and leave out those batches.

    Source:
        A. Chowdhery et al., PaLM: scaling language modeling with pathways, 2022, section 5.1. F. R. Hampel,
        The influence curve and its role in robust estimation, JASA 1974.
    """

    code: ClassVar[str] = "TDC109"
    judged_by: ClassVar[JudgedBy] = "worker"

    tensor_regex: str | Sequence[str] | None = None
    window_values: int = 20
    factor: float = 8.0
    min_jump: float = 0.25
    min_share: float = 0.05
    consecutive: int = 3

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        require(self.window_values >= 10, self, "window_values", self.window_values, "10 or more")
        for name in ("factor", "min_jump", "min_share"):
            require(0 <= getattr(self, name) < np.inf, self, name, getattr(self, name), "0 or more")
        limit = self._step_values
        require(
            1 <= self.consecutive < limit,
            self,
            "consecutive",
            self.consecutive,
            f"1 or more and below 2/5 of window_values, {limit}",
        )

    def needs(self) -> Need:
        """Losses, saved often."""
        patterns = names_of(self.tensor_regex)
        return Need(
            what=f"scalar losses saved at more than window_values = {self.window_values} steps",
            captures=captures_of(
                () if patterns else ("losses",),
                patterns,
                save_config=SaveConfig(save_interval=1),
                keep=STATISTICS,
            ),
            kinds=() if patterns else ("loss",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per spike, and another finding if the loss stays high."""
        patterns = names_of(self.tensor_regex)
        wanted = window.named(patterns) if patterns else window.in_collections(["losses"])
        for key, points in series(window, np.flatnonzero(scalars(window, wanted)), merge=False):
            state = window.memory.setdefault(key, _Recent())
            if key[3] == "EVAL":
                points = as_points(state.phases.take(points, np.ones(points.unit.size, dtype=np.bool_)))
            yield from self._series(window, key, state, points)
        for key, state in window.memory.items():
            if key[:2] in window.ended:
                yield from self._series(window, key, state, as_points(state.phases.end()))

    def _series(
        self, window: Window, key: tuple[int, str, str, str], state: _Recent, points: Points
    ) -> Iterator[Finding]:
        """Judge the new values, in chunks."""
        points = points.after(int(state.points.unit[-1]) if state.points.unit.size else -1)
        for begin in range(0, points.unit.size, _CHUNK):
            part = points.at(np.arange(begin, min(begin + _CHUNK, points.unit.size)))
            yield from self._judge(window, key, state, part)

    @property
    def _step_values(self) -> int:
        """Consecutive high values that make a `step`: below half a window, so the median is unchanged."""
        return 2 * self.window_values // 5

    def _judge(
        self, window: Window, key: tuple[int, str, str, str], state: _Recent, fresh: Points
    ) -> Iterator[Finding]:
        known = state.points.joined(fresh)
        size = self.window_values
        state.points = known.at(np.arange(max(0, known.unit.size - size), known.unit.size))
        first = max(size, known.unit.size - fresh.unit.size)  # first value with a full window before it
        judged = max(0, known.unit.size - first)
        window.judged(judged)
        window.missing(f"loss among the first {size} values", fresh.unit.size - judged)
        if not judged:
            return
        value = known.value[first:]
        before = np.lib.stride_tricks.sliding_window_view(known.value[first - size : -1], size)
        median = np.median(before, axis=1)
        level = np.maximum.accumulate(np.append(state.level, median))[1:]
        state.level = float(level[-1])
        if state.start is None:
            state.start = abs(float(known.value[0]))
        limit = np.maximum(median + self.min_jump * np.abs(median), median + self.min_share * level)
        limit = np.maximum(limit, median + _OF_START * state.start)
        above: Mask = value > limit
        high = np.flatnonzero(above)  # the deviation is computed for these only
        spread = _SIGMA_OF_MAD * np.median(np.abs(before[high] - median[high, np.newaxis]), axis=1)
        limit[high] = np.maximum(limit[high], median[high] + self.factor * spread)
        above[high] = value[high] > limit[high]
        runs = _run_lengths(above, state.run)
        state.run = int(runs[-1])
        for at in np.flatnonzero((runs == self.consecutive) | (runs == self._step_values)).tolist():
            kind = "spike" if runs[at] == self.consecutive else "step"
            numbers: dict[str, float | int | str] = {
                "kind": kind,
                "loss": float(value[at]),
                "median": float(median[at]),
                "limit": float(limit[at]),
                "values_above": int(runs[at]),
                "factor": self.factor,
                "min_jump": self.min_jump,
            }
            yield self._finding(key, known, first + at, numbers)

    def _finding(
        self,
        key: tuple[int, str, str, str],
        points: Points,
        at: int,
        numbers: dict[str, float | int | str],
    ) -> Finding:
        attempt, worker, name, mode = key
        stays = " and has not fallen again" if numbers["kind"] == "step" else ""
        return Finding(
            rule=type(self).__name__,
            code=self.code,
            step=int(points.step[at]),
            mode=mode,
            mode_step=int(points.mode_step[at]),
            worker=worker,
            attempt=attempt,
            tensor=name,
            numbers=numbers,
            why=f"the loss is {numbers['loss']:.4g}, and its median over the {self.window_values} values "
            f"before was {numbers['median']:.4g}; the loss is above {numbers['limit']:.4g} for "
            f"{numbers['values_above']} "
            f"values in a row{stays}",
            do="look at the batches before this step, clip gradients, lower the learning rate or lengthen "
            "its warm-up, or go back to a checkpoint before the spike",
        )


@dataclass(slots=True, kw_only=True)
class _Recent:
    """State of the rule for one loss in one mode, kept between windows."""

    points: Points = NO_POINTS  # the last window_values values
    phases: PhaseCutter = field(default_factory=PhaseCutter)  # phases of EVAL
    level: float = 0.0  # highest median so far
    start: float | None = None  # magnitude of the first value
    run: int = 0  # number of consecutive high values, up to the newest


def _run_lengths(above: Mask, before: int) -> npt.NDArray[np.int64]:
    """For each value, the number of consecutive high values that end there; `before`: number before these."""
    position = np.arange(1, above.size + 1)
    last_below = np.maximum.accumulate(np.where(above, 0, position))
    lengths: npt.NDArray[np.int64] = np.where(last_below == 0, position + before, position - last_below)
    return np.where(above, lengths, 0)
