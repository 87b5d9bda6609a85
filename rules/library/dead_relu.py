"""TDC104: ReLU layers with many units that are never active."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.previous_step import forget
from tdcore.rules.measures.units import pooled, read_activity
from tdcore.rules.requirements import VALUES, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["DeadRelu"]

_RELU_MODULES = frozenset({"ReLU", "ReLU6"})
_OLDER_REGEX = (".*relu_output", ".*ReLU_output")
_NO_PAYLOAD = (
    "ReLU output saved without its values (from statistics alone, dead units look like sparse activity)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRelu:
    """ReLU layers in which most units are dead: zero for all or nearly all inputs of the batch.

    What it does:
        Reads the saved outputs of ReLU layers and measures, for each unit, the share of the batch for which
        the unit is active.

    Why it matters:
        If the output of a ReLU is zero for every input, its gradient is zero too, so the output stays zero.
        The layer has fewer working units than configured, and later steps do not correct this.

    Decides by:
        A unit is an index over all axes except the batch. For convolutions (4 or 5 axes: batch, channel,
        space) a unit is a channel, pooled over batch and space.

        The activity of a unit is 100 x the share of its values that are > 0. A unit is dead if its activity <
        threshold_inactivity. The rule fires if 100 x dead units / units > threshold_layer, for each layer and
        saved step.

        The rule needs the values, because a sparse layer that is healthy and a dead layer can have the same
        statistics, for example 95 % zeros. The statistics are used only to skip layers that have too few
        zeros for a finding. Layers are found by module class (ReLU, ReLU6) or by name.

    Parameters:
        tensor_regex: layers to judge; a list of regular expressions for names of tensors, or one string with
            commas. None: outputs of ReLU modules, and names with `relu_output` or `ReLU_output`.
        threshold_inactivity: percentage of activity below which a unit is dead.
        threshold_layer: percentage of dead units above which a layer is reported.
        pool_steps: number of last saved steps of a layer whose activity is added up, for small batches.
        unit_axis: the axis of units, for layouts that are not described above (transformers: -1).

    False alarms:
        - Small batches: with 8 samples, a unit that is active for one input in 20 looks dead. Use pool_steps.
        - Networks that are sparse on purpose.
        - The first steps after a start, before biases have settled.

    Do:
        Lower the learning rate (one large step is the usual cause), use He initialisation and small positive
        or zero biases, normalise the inputs, or use LeakyReLU, GELU or normalisation layers.

    Source:
        L. Lu et al., Dying ReLU and initialization: theory and numerical examples, 2019. K. He et al.,
        Delving deep into rectifiers, ICCV 2015.
    """

    code: ClassVar[str] = "TDC104"
    judged_by: ClassVar[JudgedBy] = "tensor"

    tensor_regex: str | Sequence[str] | None = None
    threshold_inactivity: float = 1.0
    threshold_layer: float = 50.0
    pool_steps: int = 1
    unit_axis: int | None = None

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        for name in ("threshold_inactivity", "threshold_layer"):
            require(
                0 <= getattr(self, name) <= 100, self, name, getattr(self, name), "a percentage, 0 to 100"
            )
        require(self.pool_steps >= 1, self, "pool_steps", self.pool_steps, "1 or more")

    def needs(self) -> Need:
        """Values of ReLU outputs."""
        patterns = names_of(self.tensor_regex)
        return Need(
            what="the values (not only statistics) of outputs of ReLU modules; a function such as F.relu is "
            "not a module and is not recorded",
            captures=captures_of(
                (),
                patterns or _OLDER_REGEX,
                save_config=SaveConfig(save_interval=100),
                keep=VALUES,
                name="relu_output",
                modules=() if patterns else ("^ReLU6?_output",),
            ),
            payload=True,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per layer and step with too many dead units."""
        outputs = self._outputs(window) & window.ok
        window.missing(_NO_PAYLOAD, int(np.sum(outputs & ~window.columns.present("nbytes"))))
        readable = outputs & window.columns.present("nbytes")
        quiet = readable & self._cannot_fire(window) if self.pool_steps == 1 else np.zeros_like(readable)
        window.judged(int(np.sum(quiet)))
        for row in np.flatnonzero(readable & ~quiet).tolist():
            finding = self._judge(window, row)
            if finding is not None:
                yield finding
        forget(window, window.memory)

    def _outputs(self, window: Window) -> Mask:
        patterns = names_of(self.tensor_regex)
        if patterns:
            return window.named(patterns)
        by_module = window.columns.where("origin", lambda origin: origin.rpartition(".")[2] in _RELU_MODULES)
        return window.kind("output") & by_module | window.named(_OLDER_REGEX)

    def _cannot_fire(self, window: Window) -> Mask:
        """Mask of rows that have too few zeros for a finding."""
        floats = window.columns.floats
        clean = window.counted & (floats("min") >= 0) & (floats("nan_count") == 0) & (floats("count") > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            inactive = floats("zero_count") / floats("count")
        least = self.threshold_layer / 100 * (1 - self.threshold_inactivity / 100)
        too_few: Mask = clean & (inactive < least)
        return too_few

    def _judge(self, window: Window, row: int) -> Finding | None:
        activity = read_activity(window, row, "ReLU output", active=_positive, unit_axis=self.unit_axis)
        if activity is None:
            return None
        summed = pooled(window.memory, window.layer(row), activity, self.pool_steps)
        if summed is None:
            window.missing(f"first steps of a pool of {self.pool_steps}", 1)
            return None
        active, total = summed
        window.judged(1)
        dead = int(np.sum(100.0 * active < self.threshold_inactivity * total))
        percent = 100.0 * dead / active.size
        if percent <= self.threshold_layer:
            return None
        return window.finding(
            self,
            row,
            numbers={
                "dead_percent": percent,
                "dead_units": dead,
                "units": int(active.size),
                "values_per_unit": total,
                "threshold_inactivity": self.threshold_inactivity,
                "threshold_layer": self.threshold_layer,
            },
            why=f"{dead} of {active.size} units ({percent:.1f} %) are active for less than "
            f"{self.threshold_inactivity:g} % of {total} values each",
            do="lower the learning rate, check initialisation and input scale, or use LeakyReLU or GELU",
        )


def _positive(values: npt.NDArray[Any]) -> Mask:
    with np.errstate(invalid="ignore"):  # NaN is not active
        return np.asarray(values > 0)
