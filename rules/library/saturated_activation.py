"""TDC122: tanh and sigmoid layers whose inputs are so large that their gradients vanish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Mask
from tdcore.rules.measures.reading import readable
from tdcore.rules.measures.units import read_activity
from tdcore.rules.requirements import VALUES, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["SaturatedActivation"]

_FUNCTIONS = ("tanh", "sigmoid")  # of the modules Tanh and Sigmoid
_OLDER_REGEX = (".*tanh_input", ".*sigmoid_input")
_WHAT = "input of tanh or sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturatedActivation:
    """Tanh or sigmoid layers in which most units are saturated for all or nearly all inputs of the batch.

    What it does:
        Reads the saved inputs of tanh and sigmoid layers and measures, for each unit, the share of the batch
        for which the input is in the range where the slope of the function is not near zero.

    Why it matters:
        Far from zero tanh and sigmoid are flat. The gradient through them is almost zero, so the earlier
        layers do not learn, and the unit has the same output for every input.

    Decides by:
        A unit is an index over all axes except the batch. For convolutions (4 or 5 axes: batch, channel,
        space) a unit is a channel, pooled over batch and space.

        The activity of a unit is 100 x the share of its inputs strictly between the two limits of its
        function. A unit is saturated if its activity < threshold_inactivity. The rule fires if 100 x
        saturated units / units > threshold_layer, for each layer and saved step.

        Layers are found by module class (Tanh, Sigmoid) or by name. The limits are selected by the class, or
        else by `tanh` or `sigmoid` in the name. Layers whose minimum and maximum are between the limits
        cannot fire and are not read.

        The default limits are the published limits of the rule of smdebug. At these limits the slope of tanh
        is 2e-8, and the slope of sigmoid is 1e-10 (lower limit) and 4e-8 (upper limit).

    Parameters:
        collection_names: collections to judge in place of the default; a list of names, or one string with
            commas.
        tensor_regex: tensors to judge in place of the default; a list of regular expressions for names, or
            one string with commas. Default, if both are None: inputs of Tanh and Sigmoid modules, and names
            with `tanh_input` or `sigmoid_input`.
        threshold_tanh_min: lower limit of the input of tanh.
        threshold_tanh_max: upper limit of the input of tanh.
        threshold_sigmoid_min: lower limit of the input of sigmoid.
        threshold_sigmoid_max: upper limit of the input of sigmoid.
        threshold_inactivity: percentage of activity below which a unit is saturated.
        threshold_layer: percentage of saturated units above which a layer is reported.
        unit_axis: the axis of units, for layouts that are not described above (transformers: -1).

    False alarms:
        - A sigmoid at the end of a classifier with confident predictions.
        - Gates that are open or closed on purpose.
        - Small batches.

    Do:
        Use Xavier initialisation, normalise the inputs, lower the learning rate, add normalisation before the
        activation, or replace it by ReLU or GELU.

    Source:
        X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward neural networks,
        AISTATS 2010.
    """

    code: ClassVar[str] = "TDC122"
    judged_by: ClassVar[JudgedBy] = "tensor"

    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    threshold_tanh_min: float = -9.4999
    threshold_tanh_max: float = 9.4999
    threshold_sigmoid_min: float = -23.0
    threshold_sigmoid_max: float = 16.99999
    threshold_inactivity: float = 1.0
    threshold_layer: float = 50.0
    unit_axis: int | None = None

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        for name in _FUNCTIONS:
            low, high = self._limits(name)
            require(low < high, self, f"threshold_{name}_min", low, f"below threshold_{name}_max = {high}")
        for name in ("threshold_inactivity", "threshold_layer"):
            value = getattr(self, name)
            require(0 <= value <= 100, self, name, value, "a percentage, 0 to 100")

    def needs(self) -> Need:
        """Values of inputs of tanh and sigmoid."""
        collections, patterns = names_of(self.collection_names), names_of(self.tensor_regex)
        modules: tuple[str, ...] = ()
        if not collections and not patterns:
            patterns, modules = _OLDER_REGEX, ("^(Tanh|Sigmoid)_input",)
        return Need(
            what="the values (not only statistics) of inputs of tanh or sigmoid layers",
            captures=captures_of(
                collections,
                patterns,
                save_config=SaveConfig(save_interval=100),
                keep=VALUES,
                name="activation_input",
                modules=modules,
            ),
            payload=True,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per layer and step with too many saturated units."""
        inputs, tanh = self._inputs(window)
        low, high = (
            np.where(tanh, one, other)
            for one, other in zip(self._limits("tanh"), self._limits("sigmoid"), strict=True)
        )
        floats = window.columns.floats
        within = window.counted & (window.finite == floats("count")) & (floats("count") > 0)
        within &= (floats("min") > low) & (floats("max") < high)
        window.judged(int(np.sum(inputs & within)))
        for row in np.flatnonzero(readable(window, inputs & ~within, _WHAT)).tolist():
            finding = self._judge(window, row, float(low[row]), float(high[row]))
            if finding is not None:
                yield finding

    def _limits(self, function: str) -> tuple[float, float]:
        if function == "tanh":
            return self.threshold_tanh_min, self.threshold_tanh_max
        return self.threshold_sigmoid_min, self.threshold_sigmoid_max

    def _inputs(self, window: Window) -> tuple[Mask, Mask]:
        """(mask of rows to judge, mask of inputs of tanh)."""
        columns = window.columns
        collections, patterns = names_of(self.collection_names), names_of(self.tensor_regex)
        tanh_module, sigmoid_module = (columns.where("origin", _is_module(name)) for name in _FUNCTIONS)
        tanh_name, sigmoid_name = (columns.where("name", _is_in_name(name)) for name in _FUNCTIONS)
        if collections or patterns:
            wanted = window.selected(collections, patterns)
        else:
            wanted = window.kind("input") & (tanh_module | sigmoid_module) | window.named(_OLDER_REGEX)
        wanted &= window.ok
        tanh: Mask = tanh_module | tanh_name & ~sigmoid_module
        known = tanh | sigmoid_module | sigmoid_name
        window.missing(
            "neither the module class nor the name contains tanh or sigmoid", int(np.sum(wanted & ~known))
        )
        return wanted & known, tanh

    def _judge(self, window: Window, row: int, low: float, high: float) -> Finding | None:
        activity = read_activity(
            window, row, _WHAT, active=lambda values: _between(values, low, high), unit_axis=self.unit_axis
        )
        if activity is None:
            return None
        active, total = activity
        window.judged(1)
        saturated = int(np.sum(100.0 * active < self.threshold_inactivity * total))
        percent = 100.0 * saturated / active.size
        if percent <= self.threshold_layer:
            return None
        return window.finding(
            self,
            row,
            numbers={
                "saturated_percent": percent,
                "saturated_units": saturated,
                "units": int(active.size),
                "values_per_unit": total,
                "lower_limit": low,
                "upper_limit": high,
                "threshold_inactivity": self.threshold_inactivity,
                "threshold_layer": self.threshold_layer,
            },
            why=f"{saturated} of {active.size} units ({percent:.1f} %) get inputs between {low:g} and "
            f"{high:g} for less than {self.threshold_inactivity:g} % of {total} values each",
            do="use Xavier initialisation, normalise inputs, lower the learning rate, or use ReLU or GELU",
        )


def _is_module(function: str) -> Callable[[str], bool]:
    return lambda origin: origin.rpartition(".")[2] == function.capitalize()


def _is_in_name(function: str) -> Callable[[str], bool]:
    return lambda name: function in name.lower()


def _between(values: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.bool_]:
    wide = values.astype(np.float64)
    return np.asarray((wide > low) & (wide < high))
