"""TDC117: initial weights with which a network does not learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Floats, Ints, Mask
from tdcore.rules.measures.early_steps import PROGRESS, EarlySteps
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.initial import equal_weights, gradient_ranges, matrices, variances
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import STATISTICS, VALUES, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["PoorWeightInitialization"]

_MODES = ("TRAIN", "GLOBAL")
_MODULES = frozenset({"ReLU", "ReLU6", "LeakyReLU", "PReLU", "ELU", "GELU", "SiLU"})
_DO = "use He initialisation for ReLU layers, Xavier for tanh and sigmoid, or add normalisation layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoorWeightInitialization:
    """Weights that start too small, too large, or all equal, so that the network does not begin to learn.

    What it does:
        Checks activations, gradients, losses and weights at the first saved steps of a training.

    Why it matters:
        Each layer scales the signal in proportion to the standard deviation of its weights. If this scale is
        wrong, activations and gradients shrink or grow with every layer, and a deep network does not learn
        from the first step on. Neurons that start equal get equal gradients and stay equal.

    Decides by:
        The rule judges the first `steps` saved steps of TRAIN or GLOBAL mode, for each attempt (start of the
        training) and worker.

        - `variance`: the variance of the inputs of activations (modules ReLU, ReLU6, LeakyReLU, PReLU, ELU,
          GELU and SiLU, in order of execution). The geometric means over the first and the last quarter of
          the layers differ by more than a factor of `threshold`.
        - `gradient`: for the gradient of each weight, r = p95 - p5 of its elements (the 95th and 5th
          percentiles). The rule fires if smallest r / largest r < distribution_range. Gradients of fewer than
          20 elements, or with mostly zeros, are left out.
        - `equal_weights`: at the first saved step all weights within each neuron are equal, or all neurons of
          a layer are equal. Weights of zeros count only if they are still zero at the third saved step. This
          kind is reported immediately, for any loss.

        `variance` and `gradient` are reported once, at the end of these steps, if their condition was true at
        more than half of the steps and the loss did not fall by 1 % (mean of the last `patience` values
        compared with the first values). A network that learns was not initialised poorly, even if its layers
        differ widely, like the layers of pretrained networks. Variances that differ by more than `extreme`
        times are reported for any loss, because such a loss falls from one absurd value to another.

        The rule reads values if they were saved. Otherwise r is computed from the saved histograms (within a
        factor of two), and `equal_weights` finds only weights whose elements are all the same number.

        compat=True applies the rule of smdebug: largest variance > threshold x smallest variance, smallest r
        < distribution_range, or no new minimum of the loss within `patience` saved steps. Each of these is
        reported immediately.

    Parameters:
        activation_inputs_regex: regular expressions for names of activation inputs; a list, or one string
            with commas. None: inputs of the modules above, and names with `relu_input`.
        threshold: largest ratio of variances that is not a fault.
        distribution_range: smallest range of gradients that is not a fault, as a share of the largest
            range of all layers (compat=True: in units of the gradient).
        patience: number of saved steps over which losses are averaged (compat=True: number of saved steps
            without a new minimum of the loss).
        steps: number of saved steps that are judged.
        extreme: ratio of variances that is reported although the loss falls.
        compat: True applies the rule of smdebug.

    False alarms:
        - A long warm-up of a pretrained network whose layers differ widely.
        - A training with such layers that does not learn for another reason.

    Do:
        Use He initialisation for ReLU layers and Xavier initialisation for tanh and sigmoid, add
        normalisation layers, and never initialise a hidden layer with a constant.

    Source:
        K. He et al., Delving deep into rectifiers, ICCV 2015. X. Glorot and Y. Bengio, Understanding the
        difficulty of training deep feedforward neural networks, AISTATS 2010.
    """

    code: ClassVar[str] = "TDC117"
    judged_by: ClassVar[JudgedBy] = "worker"
    columns: ClassVar[tuple[str, ...]] = ("shape", "log2_first", "log2_counts")

    activation_inputs_regex: str | Sequence[str] | None = None
    threshold: float = 10.0
    distribution_range: float = 0.001
    patience: int = 5
    steps: int = 10
    extreme: float = 1e8
    compat: bool = False

    def __post_init__(self) -> None:
        for pattern in names_of(self.activation_inputs_regex):
            compile_pattern(pattern)
        require(1 <= self.threshold < np.inf, self, "threshold", self.threshold, "a number of 1 or more")
        limit = self.distribution_range
        require(0 <= limit < np.inf, self, "distribution_range", limit, "0 or more")
        require(self.patience >= 1, self, "patience", self.patience, "1 or more")
        require(self.steps >= 2, self, "steps", self.steps, "2 or more")
        require(self.extreme >= 1, self, "extreme", self.extreme, "a number of 1 or more")

    def needs(self) -> Need:
        """Values of weights; statistics of activation inputs, gradients and losses; of the first steps."""
        first = SaveConfig(save_interval=1, end_step=self.steps)
        patterns = names_of(self.activation_inputs_regex)
        modules = () if patterns else (f"^({'|'.join(sorted(_MODULES))})_input",)
        return Need(
            what="weights, gradients or activation inputs of the first TRAIN steps, and losses",
            captures=(
                *captures_of(["gradients", "losses"], (), save_config=first, keep=STATISTICS),
                *captures_of(["weights"], (), save_config=first, keep=VALUES),
                *captures_of(
                    (),
                    patterns or (".*relu_input",),
                    save_config=first,
                    keep=STATISTICS,
                    name="relu_input",
                    modules=modules,
                ),
            ),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per kind, attempt and worker; per layer for equal weights; per step for compat."""
        columns = window.columns
        wanted = window.ok & columns.where("mode", _MODES.__contains__)
        inputs, losses = self._inputs(window), window.in_collections(["losses"])
        gradients, weights = window.kind("gradient"), window.kind("weight")
        wanted &= inputs | losses | gradients | weights
        plan = list(self._plan(window, np.flatnonzero(wanted)))
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(each for _, _, each in plan)])
        counted = rows[window.counted[rows]]
        measured = _Measured(
            variances=_by_row(window, *variances(window, counted[inputs[counted]])),
            ranges=_by_row(window, *gradient_ranges(window, counted[gradients[counted]])),
            matrices=matrices(window, counted[weights[counted]]),
        )
        for opening, step, rows in plan:
            if step < 0:
                yield from self._close(window, opening)
            else:
                yield from self._step(
                    window, opening, step, rows, (inputs, gradients, weights, losses), measured
                )
        for key, opening in window.memory.items():
            if not opening.over and (key in window.ended or len(opening.steps) == self.steps):
                yield from self._close(window, opening)

    def _plan(self, window: Window, wanted: Ints) -> Iterator[tuple[EarlySteps, int, Ints]]:
        """(state, step, rows) of each step to judge, by worker; step -1: a worker's first steps are over."""
        columns = window.columns
        for attempt, worker, group in groups(columns, wanted, "attempt", "worker"):
            opening = window.memory.setdefault((attempt, worker), EarlySteps())
            if opening.over:
                continue
            unit = columns.ints("mode_step")[group]
            steps = set(opening.steps)
            for step in _first_steps(unit, self.steps + 1):
                if len(steps) == self.steps and step not in steps:
                    yield opening, -1, group[:0]
                    break
                steps.add(step)
                yield opening, step, group[unit == step]

    def _step(
        self,
        window: Window,
        opening: EarlySteps,
        step: int,
        rows: Ints,
        which: tuple[Mask, Mask, Mask, Mask],
        measured: _Measured,
    ) -> Iterator[Finding]:
        counted = rows[window.counted[rows]]
        inputs, gradients, weights, losses = (counted[mask[counted]] for mask in which)
        if step not in opening.steps:
            opening.steps.append(step)
        values = scalar_losses(window, losses)
        if values.size:
            opening.losses[step] = float(values.mean())
        evidence = {
            "variance": self._variance(window, *_of(measured.variances, inputs)),
            "gradient": self._gradient(window, *_of(measured.ranges, gradients)),
        }
        for kind, (judged, finding) in evidence.items():
            window.judged(judged)
            if judged:
                opening.record_check(kind, finding)
            if self.compat and finding is not None:
                yield finding
        if self.compat:
            if opening.stale(self.patience) and losses.size:
                yield self._stale(window, int(losses[-1]))
            return
        if len(opening.steps) <= 3:
            for row, alike in equal_weights(window, weights[measured.matrices[weights]], opening):
                yield self._equal(window, row, alike)
            window.judged(weights.size)

    def _close(self, window: Window, opening: EarlySteps) -> Iterator[Finding]:
        """Report the evidence at the end of the first steps, if it is extreme or the loss did not fall."""
        opening.over = True
        found = [] if self.compat else opening.found()
        progress = opening.progress(self.patience)
        learns = progress is None or progress >= PROGRESS
        for finding in found:
            if learns and not float(finding.numbers.get("ratio", 0.0)) > self.extreme:
                if progress is None:
                    window.missing(
                        "fewer than two losses were saved, so it is unknown whether the training learns", 1
                    )
                continue
            yield self._with_progress(finding, progress, len(opening.steps))

    def _with_progress(self, finding: Finding, progress: float | None, steps: int) -> Finding:
        """The finding with the change of the loss in these steps."""
        if progress is None:
            return finding
        how = f"{'fell' if progress >= 0 else 'rose'} by {rounded(100 * abs(progress))} %"
        fell = how if progress > -np.inf else "is not finite"
        return replace(
            finding,
            numbers={**finding.numbers, "loss_progress": progress, "saved_steps": steps},
            why=f"{finding.why}, and the loss {fell} in the first {steps} saved steps",
        )

    def _inputs(self, window: Window) -> Mask:
        patterns = names_of(self.activation_inputs_regex)
        if patterns:
            return window.named(patterns)
        by_module = window.columns.where("origin", lambda origin: origin.rpartition(".")[2] in _MODULES)
        return window.kind("input") & by_module | window.named([".*relu_input"])

    def _variance(self, window: Window, rows: Ints, values: Floats) -> tuple[int, Finding | None]:
        """(number of judged layers, finding about their variances)."""
        if rows.size < 2:
            return 0, None
        if self.compat:
            small, large = float(values.min()), float(values.max())
        else:
            quarter = -(-rows.size // 4)
            small, large = sorted(
                float(np.exp(np.log(part).mean())) for part in (values[:quarter], values[-quarter:])
            )
        if not large / small > self.threshold:
            return int(rows.size), None
        across = "layers" if self.compat else "first and last layers"
        return int(rows.size), window.finding(
            self,
            int(rows[int(values.argmin())]),
            numbers={
                "kind": "variance",
                "ratio": large / small,
                "threshold": self.threshold,
                "smallest": small,
                "largest": large,
                "layers": int(rows.size),
            },
            why=f"variances of activation inputs of {across} differ by a factor of {large / small:.3g} "
            f"({small:.3g} to {large:.3g}), more than {self.threshold:g}",
            do=_DO,
        )

    def _gradient(self, window: Window, rows: Ints, ranges: Floats) -> tuple[int, Finding | None]:
        """(number of judged layers, finding about the ranges of their gradients)."""
        if rows.size < (1 if self.compat else 2):
            return 0, None
        at, largest = int(ranges.argmin()), float(ranges.max())
        value = float(ranges[at]) if self.compat else float(ranges[at]) / largest
        if not value < self.distribution_range:
            return int(rows.size), None
        unit = "" if self.compat else " of the range of the layer with the widest range"
        return int(rows.size), window.finding(
            self,
            int(rows[at]),
            numbers={
                "kind": "gradient",
                "range": float(ranges[at]),
                "largest_range": largest,
                "distribution_range": self.distribution_range,
                "layers": int(rows.size),
            },
            why=f"the range from the 5th to the 95th percentile of the gradient is {value:.3g}{unit}, less "
            f"than {self.distribution_range:g}",
            do=_DO,
        )

    def _equal(self, window: Window, row: int, alike: str) -> Finding:
        return window.finding(
            self,
            row,
            numbers={"kind": "equal_weights", "equal": alike, "elements": int(window.finite[row])},
            why=f"all {alike} of this layer have equal initial values, so they get equal gradients and stay "
            "equal",
            do="initialise the weights with random numbers",
        )

    def _stale(self, window: Window, row: int) -> Finding:
        return window.finding(
            self,
            row,
            numbers={
                "kind": "loss",
                "patience": self.patience,
                "loss": float(window.columns.floats("mean")[row]),
            },
            why=f"no new minimum of the loss within the last {self.patience} saved steps",
            do=_DO,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Measures of all rows that are judged in a window, by row.

    variances, ranges: The rows that have the measure, and its values.
    matrices: Whether a row is a weight with two or more axes that can have equal parts.
    """

    variances: tuple[Mask, Floats]
    ranges: tuple[Mask, Floats]
    matrices: Mask


def _by_row(window: Window, rows: Ints, values: Floats) -> tuple[Mask, Floats]:
    """Values by row of the window, and which rows have a value."""
    has, found = np.zeros(len(window), dtype=np.bool_), np.zeros(len(window))
    has[rows], found[rows] = True, values
    return has, found


def _of(measure: tuple[Mask, Floats], rows: Ints) -> tuple[Ints, Floats]:
    """(rows with the measure, their values), in order."""
    has, values = measure
    rows = rows[has[rows]]
    return rows, values[rows]


def _first_steps(units: Ints, number: int) -> list[int]:
    """The lowest distinct units, ascending, at most `number`; the others are not sorted."""
    found: list[int] = []
    while units.size and len(found) < number:
        found.append(int(units.min()))
        units = units[units > found[-1]]
    return found


def scalar_losses(window: Window, losses: Ints) -> Floats:
    """Values of the scalar losses among these rows with statistics; NaN if a value is not finite."""
    rows = losses[window.columns.ints("count")[losses] == 1]
    return np.where(window.finite[rows] == 1, window.columns.floats("mean")[rows], np.nan)
