"""TDC123: the first NaN or infinity of a training, and the values before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Ints, Mask
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.scope import checked, need_of, with_statistics
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["FirstNonFinite"]

_DEFAULT = ("all",)
_CAPTURED = ("weights", "gradients", "outputs", "losses")
_WHERE = {
    "input": "forward pass", "output": "forward pass", "loss": "loss", "metric": "loss",
    "gradient": "backward pass", "output_gradient": "backward pass", "weight": "weights", "bias": "weights",
    "optimizer_state": "optimizer",
}  # fmt: skip
_LABEL = {"nan": "NaN", "pos_inf": "+Inf", "neg_inf": "-Inf"}
_GROWN = 1e4  # growth above which the cause is an overflow
_OVERFLOW = (
    "lower the learning rate, clip gradients, or lengthen the warm-up: values grew until they overflowed"
)
_ADVICE = {
    "forward pass": "look at the layer of this tensor: log, division, square root, exp, inputs out of range",
    "loss": "look at the loss function: log of zero, division by zero, labels out of range",
    "backward pass": "clip gradients, lower the learning rate, or check the loss scale",
    "weights": "look at the step before: its gradients or learning rate were too large",
    "optimizer": "look at the step before: its gradients or learning rate were too large",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNonFinite:
    """The first tensor of a training that contains NaN or infinity, and the earlier growth of its values.

    What it does:
        Goes through all saved tensors in the order in which they were computed, and reports the first tensor
        with NaN or infinity, with the earlier magnitudes of this tensor and of the tensors before it.

    Why it matters:
        A NaN spreads to all tensors within a step. The origin of the NaN and the earlier values show the
        cause: either the values grew until they overflowed (a learning rate that is too high), or a single
        operation produced the NaN (log, division, square root, a broken input).

    Decides by:
        The rule searches for the first tensor with nan_count + pos_inf_count + neg_inf_count > 0, from the
        saved statistics, in order of steps. Within a step, optimizer state and weights come first, because
        the step began with them. Outputs, losses and gradients follow in the order in which they were
        captured. There is one finding for each attempt (start of the training) and worker.

        The finding has these numbers:

        - `where`: forward pass, loss, backward pass, weights, optimizer or saved values (other kinds); and
          the counts of NaN and infinities.
        - `also_non_finite`: the number of non-finite tensors after it in the same step.
        - `abs_max_before`: the largest magnitude of the same tensor at the saved step before. `growth`: this
          magnitude divided by the oldest of its last `history` magnitudes.
        - `grown_tensor`, `grown_times`, `grown_abs_max`: the earlier tensor of the same step that had grown
          most.

        A gradient scaler skips steps with infinite gradients on purpose. So there is no finding if only
        gradients are not finite at up to `skipped_steps` consecutive saved steps, and the next saved step is
        finite. If the saved step after these steps is not finite either, the finding is about the first of
        them. Inputs that contain only zeros and -Inf are attention masks and are not reported. NaN in the
        columns Split, Yes, No and Missing of tables of trees is not reported either, because it marks leaves.

    Parameters:
        collection_names: names of collections to judge; a list, or one string with commas.
        tensor_regex: regular expressions for names of tensors to judge (re.search); a list, or one string
            with commas. With both parameters, the union is judged; with neither, every saved tensor.
        only_nan: True judges NaN only.
        history: number of earlier saved steps over which growth is measured.
        skipped_steps: maximum number of consecutive saved steps with only non-finite gradients that are not
            a fault.

    False alarms:
        - Attention scores that are masked with -Inf on purpose, and metrics that are undefined at first:
          select other tensors, or use `only_nan`.

    Do:
        Follow the advice in the finding, which depends on the origin. The cause is between the last finite
        tensor and the reported tensor. Capture `inputs` and `outputs` to find it more exactly.

    Source:
        P. Micikevicius et al., Mixed precision training, ICLR 2018, for steps skipped by loss scaling. R.
        Pascanu, T. Mikolov, Y. Bengio, On the difficulty of training recurrent neural networks, ICML 2013.
    """

    code: ClassVar[str] = "TDC123"
    judged_by: ClassVar[JudgedBy] = "worker"

    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    only_nan: bool = False
    history: int = 5
    skipped_steps: int = 4

    def __post_init__(self) -> None:
        checked(self)
        require(self.history >= 1, self, "history", self.history, "1 or more")
        require(self.skipped_steps >= 0, self, "skipped_steps", self.skipped_steps, "0 or more")

    def needs(self) -> Need:
        """Statistics of the selected tensors."""
        return need_of(self, _CAPTURED, interval=100, keep=STATISTICS, form="statistics")

    def check(self, window: Window) -> Iterator[Finding]:
        """At most one finding per attempt and worker."""
        judged = with_statistics(self, window, _DEFAULT) & (window.columns.ints("count") > 0)
        window.judged(int(np.sum(judged)))
        which = ("nan",) if self.only_nan else ("nan", "pos_inf", "neg_inf")
        bad = np.sum([window.columns.floats(f"{each}_count") for each in which], axis=0) > 0
        bad &= ~window.expected_non_finite
        for attempt, worker, group in groups(window.columns, np.flatnonzero(judged), "attempt", "worker"):
            story = window.memory.setdefault((attempt, worker), WorkerHistory())
            if not story.told:
                rows = _as_made(window, group)
                yield from self._follow(window, story, rows, bad[rows])
        for key, story in window.memory.items():
            if key in window.ended:
                story.sizes.clear()
                if story.held is not None:
                    yield story.tell()

    def _follow(self, window: Window, story: WorkerHistory, rows: Ints, bad: Mask) -> Iterator[Finding]:
        """Go through the saved steps of one worker, up to the first step that is reported."""
        if bad.any() or story.held is not None:
            other = ~window.kind("gradient", "output_gradient", "optimizer_state")[rows]
            begun: Ints | None = None  # the bad rows of the step that is held, if it is in this window
            last, steps = -1, _by_step(window.columns.own_steps[rows])
            for number in np.flatnonzero([bad[step].any() for step in steps]).tolist():
                if number != last + 1:  # a finite step was saved in between
                    story.held, story.skipped, begun = None, 0, None
                last = number
                at = steps[number].start + np.flatnonzero(bad[steps[number]])
                if story.held is None and begun is None:
                    begun = at
                story.skipped += 1
                told = other[at].any() or story.skipped > self.skipped_steps
                if begun is not None and (told or number == len(steps) - 1):
                    story.held = self._finding(window, story, rows, bad, begun)
                if told:
                    yield story.tell()
                    return
            if last != len(steps) - 1:
                story.held, story.skipped = None, 0
        story.remember(window, rows[~bad], self.history)

    def _finding(self, window: Window, story: WorkerHistory, rows: Ints, bad: Mask, at: Ints) -> Finding:
        """Finding about the first bad row of a step. at: positions of its bad rows in `rows`, in order."""
        columns = window.columns
        steps = columns.own_steps[rows]
        row, step = int(rows[at[0]]), int(steps[at[0]])
        before = WorkerHistory(sizes=dict(story.sizes))
        before.remember(window, rows[~bad & (steps < step)], self.history)
        counts = {each: int(columns.ints(f"{each}_count")[row]) for each in ("nan", "pos_inf", "neg_inf")}
        where = _WHERE.get(columns.text("kind", row), "saved values")
        numbers: dict[str, float | int | str] = {
            "where": where,
            **counts,
            "elements": int(columns.ints("count")[row]),
            "also_non_finite": len(at) - 1,
        }
        own, led_up = before.sizes.get(columns.text("name", row), []), "the tensor was not saved before"
        if own:
            growth = _ratio(own[-1], own[0])
            numbers |= {"abs_max_before": own[-1], "growth": growth, "saved_steps_before": len(own)}
            led_up = f"at the saved step before, its largest magnitude was {own[-1]:.3g}"
            if len(own) > 1:
                led_up += f", {rounded(growth)} times that of {len(own) - 1} saved steps earlier"
        numbers |= _grown(window, rows[(steps == step) & (np.arange(rows.size) < at[0])], before)
        grown = max(float(numbers.get("growth", 0.0)), float(numbers.get("grown_times", 0.0)))
        what = ", ".join(f"{count} {_LABEL[name]}" for name, count in counts.items() if count)
        return window.finding(
            self,
            row,
            numbers=numbers,
            why=f"the first value that is not finite, in the {where}: {what} of {numbers['elements']} "
            f"elements; {led_up}",
            do=_OVERFLOW
            if grown > _GROWN
            else _ADVICE.get(where, "look at the operation that computed this tensor"),
        )


@dataclass(slots=True, kw_only=True)
class WorkerHistory:
    """State of the rule for one worker.

    Attributes:
        sizes: abs_max of each tensor at its last saved steps.
        held: A finding that waits for the next saved step.
        skipped: Number of consecutive saved steps at which only gradients were not finite.
        told: Whether the finding was reported.
    """

    sizes: dict[str, list[float]] = field(default_factory=dict)
    held: Finding | None = None
    skipped: int = 0
    told: bool = False

    def remember(self, window: Window, rows: Ints, history: int) -> None:
        """Add the magnitudes of finite tensors."""
        largest, own_steps = window.columns.floats("abs_max"), window.columns.own_steps
        for name, group in groups(window.columns, rows, "name"):
            steps = own_steps[group]
            new_step = np.flatnonzero(steps[1:] != steps[:-1]) + 1  # a step can have several calls
            starts = [0, *new_step[-history:].tolist()]
            newest = np.maximum.reduceat(largest[group], starts)[-history:].tolist()
            self.sizes[name] = [*self.sizes.get(name, []), *newest][-history:]

    def tell(self) -> Finding:
        """Return the finding that was held. This worker gets no further finding."""
        if self.held is None:
            raise ValueError("there is no finding to report")
        held, self.held, self.told = self.held, None, True
        self.sizes.clear()
        return held


def _by_step(steps: Ints) -> list[slice]:
    """The rows of each step. steps: the step of each row, ascending."""
    starts = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 1)).tolist()
    return [slice(*each) for each in pairwise([*starts, len(steps)])]


def _as_made(window: Window, rows: Ints) -> Ints:
    """Rows in the order in which their values were computed: weights are older than the step's outputs."""
    columns = window.columns
    older = 2 * window.kind("optimizer_state")[rows] + window.kind("weight", "bias")[rows]
    return rows[np.lexsort((columns.ints("seq")[rows], -older.astype(np.int8), columns.own_steps[rows]))]


def _grown(window: Window, rows: Ints, before: WorkerHistory) -> dict[str, float | int | str]:
    """The earlier finite tensor of the same step that has grown most over the history."""
    largest = window.columns.floats("abs_max")
    names = [window.columns.text("name", row) for row in rows.tolist()]
    times = [
        _ratio(size, before.sizes[name][0]) if name in before.sizes else 0.0
        for name, size in zip(names, largest[rows].tolist(), strict=True)
    ]
    if not times or max(times) <= 1:
        return {}
    at = times.index(max(times))
    return {"grown_tensor": names[at], "grown_times": times[at], "grown_abs_max": float(largest[rows[at]])}


def _ratio(now: float, before: float) -> float:
    return now / before if before > 0 else float("inf") if now > 0 else 1.0
