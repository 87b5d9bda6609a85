"""TDC127: channels of a layer that are constant, or equal to another channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Floats, Mask
from tdcore.rules.measures.previous_step import forget
from tdcore.rules.measures.reading import read_values, readable
from tdcore.rules.measures.units import channels
from tdcore.rules.requirements import VALUES, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["DeadChannels"]

_WHAT = "output of a convolution or linear layer"
_ZEROS = 3  # an output of zeros is reported at the saved step with this number
_PLACES = 8192  # maximum number of values of each channel that are compared
_BLOCK = 256  # number of channels whose distances to all others are in memory at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadChannels:
    """Convolutions and linear layers with channels that are constant or equal to other channels.

    What it does:
        Reads the saved outputs of convolutions and linear layers. Counts the channels that do not change over
        the batch, and the channels that are equal to another channel.

    Why it matters:
        Such channels cost as much as other channels and add no information, so the layer has less capacity
        than its size suggests. Constant channels come from weights of zeros (a pruning mask, a broken
        checkpoint, too much weight decay). Equal channels come from weights with equal initial values.

    Decides by:
        A channel is an index of axis 1 for convolutions, and of the last axis for linear layers. For other
        layers that `tensor_regex` selects, it is an index of axis 1 if the output has 4 or 5 axes, otherwise
        of the last axis. The values of a channel are those over batch and space; at most 8192 evenly spaced
        values are compared.

        - A channel is dead if largest - smallest <= tolerance x largest magnitude.
        - A channel is a duplicate if it is not dead, and the root mean square of its difference from an
          earlier channel is <= tolerance x its standard deviation.

        Kind `dead` is reported if 100 x dead / channels > threshold_dead, kind `duplicate` if 100 x
        duplicates / channels > threshold_duplicate, for each layer and saved step. Channels that differ by a
        factor are not duplicates: in a linear layer with a single input and without bias, all channels differ
        only by a factor.

        Layers are found by module class (Conv1d, ConvTranspose2d, Linear, ...). The rule needs the values. A
        layer whose outputs have all been zero since the start is reported at the third saved step, because
        adapters and residual branches start with zeros. Outputs with fewer than `min_values` values per
        channel, with a single channel, or with values that are not finite are not judged.

    Parameters:
        tensor_regex: tensors to judge in place of the outputs of convolutions and linear layers; a list of
            regular expressions for names, or one string with commas.
        threshold_dead: percentage of dead channels above which a layer is reported.
        threshold_duplicate: percentage of duplicate channels above which a layer is reported.
        tolerance: relative difference below which values count as equal.
        min_values: minimum number of values per channel for a layer to be judged.
        channel_axis: the axis of channels, for layouts that are not described above.

    False alarms:
        - Channels that are padded to a round number.
        - Networks that are pruned on purpose.
        - A batch that repeats a single input.

    Do:
        Look for zeros and equal rows in the weights of the channels. Check pruning masks, weight decay and
        initialisation. Use fewer channels if the layer does not need them.

    Source:
        H. Hu et al., Network trimming: a data-driven neuron pruning approach, 2016. Y. He et al., Filter
        pruning via geometric median, CVPR 2019.
    """

    code: ClassVar[str] = "TDC127"
    judged_by: ClassVar[JudgedBy] = "tensor"

    tensor_regex: str | Sequence[str] | None = None
    threshold_dead: float = 10.0
    threshold_duplicate: float = 10.0
    tolerance: float = 1e-4
    min_values: int = 16
    channel_axis: int | None = None

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)
        for name in ("threshold_dead", "threshold_duplicate"):
            value = getattr(self, name)
            require(0 <= value <= 100, self, name, value, "a percentage, 0 to 100")
        require(0 <= self.tolerance < 1, self, "tolerance", self.tolerance, "from 0 to below 1")
        require(self.min_values >= 2, self, "min_values", self.min_values, "2 or more")

    def needs(self) -> Need:
        """Values of outputs."""
        patterns = names_of(self.tensor_regex)
        return Need(
            what="the values (not only statistics) of outputs of convolutions or linear layers",
            captures=captures_of(
                (),
                patterns,
                save_config=SaveConfig(save_interval=100),
                keep=VALUES,
                name="channels",
                modules=() if patterns else ("^(Conv|Linear)[^_]*_output",),
            ),
            kinds=() if patterns else ("output",),
            payload=True,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per layer, step and kind with too many dead or duplicate channels."""
        convolution = window.columns.where("origin", lambda origin: _is(origin, "Conv"))
        linear = window.columns.where("origin", lambda origin: _is(origin, "Linear"))
        patterns = names_of(self.tensor_regex)
        if patterns:
            outputs = window.named(patterns) & window.ok
        else:
            outputs = window.kind("output") & (convolution | linear) & window.ok
        for row in np.flatnonzero(readable(window, outputs, _WHAT)).tolist():
            values = self._channels(window, row, convolution, linear)
            if values is not None:
                window.judged(1)
                if not self._starts_at_zero(window, row, values):
                    yield from self._judge(window, row, values)
        forget(window, window.memory)

    def _starts_at_zero(self, window: Window, row: int, values: Floats) -> bool:
        """Whether an output has been zero everywhere since the start, for fewer than three saved steps.

        The second matrix of an adapter starts at zero, and so do the last layers of residual branches.
        """
        layer = window.layer(row)
        before: int = window.memory.get(layer, 0)
        zeros = before + 1 if before >= 0 and not values.any() else -1
        window.memory[layer] = zeros
        return 0 < zeros < _ZEROS

    def _channels(self, window: Window, row: int, convolution: Mask, linear: Mask) -> Floats | None:
        """Array (channels, places) of one output. If it cannot be judged, count the row and return None."""
        values = read_values(window, row, _WHAT)
        if values is None:
            return None
        axis = self.channel_axis
        if axis is None:
            of_unknown = not linear[row] and values.ndim in (4, 5)
            axis = 1 if convolution[row] or of_unknown else -1
        if not -values.ndim <= axis < values.ndim or values.size == 0:
            what = "empty output" if values.size == 0 else f"no axis {axis} of channels"
            window.missing(f"{what} in {values.ndim} axes", 1)
            return None
        flat = channels(values, axis)
        if flat.shape[0] < 2 or flat.shape[1] < self.min_values:
            window.missing(f"fewer than 2 channels or {self.min_values} values per channel", 1)
            return None
        wide = flat[:, :: -(-flat.shape[1] // _PLACES)].astype(np.float64)
        if not np.isfinite(wide).all():
            window.missing("values that are not finite", 1)
            return None
        return wide

    def _judge(self, window: Window, row: int, values: Floats) -> Iterator[Finding]:
        dead = np.ptp(values, axis=1) <= self.tolerance * np.abs(values).max(axis=1)
        duplicate = np.zeros_like(dead)
        duplicate[~dead] = _repeated(values[~dead], self.tolerance)
        for kind, mask, limit in (
            ("dead", dead, self.threshold_dead),
            ("duplicate", duplicate, self.threshold_duplicate),
        ):
            number = int(mask.sum())
            percent = 100.0 * number / mask.size
            if percent > limit:
                what = "do not change over the batch" if kind == "dead" else "are copies of other channels"
                yield window.finding(
                    self,
                    row,
                    numbers={
                        "kind": kind,
                        "percent": percent,
                        "channels": int(mask.size),
                        kind: number,
                        "first": int(np.flatnonzero(mask)[0]),
                        "threshold": limit,
                        "values_per_channel": int(values.shape[1]),
                    },
                    why=f"{number} of {mask.size} channels ({percent:.1f} %) {what}",
                    do="look for zeros and equal rows in the weights of these channels",
                )


def _is(origin: str, name: str) -> bool:
    return origin.rpartition(".")[2].startswith(name)


def _repeated(values: Floats, tolerance: float) -> npt.NDArray[np.bool_]:
    """Mask of the channels within the tolerance of an earlier channel. values: (channels, places)."""
    mean = values.mean(axis=1)
    centred = values - mean[:, np.newaxis]
    square = np.mean(centred**2, axis=1)
    repeated = np.zeros(len(values), dtype=np.bool_)
    for start in range(0, len(values), _BLOCK):
        block = slice(start, start + _BLOCK)
        products: npt.NDArray[Any] = centred[block] @ centred.T / values.shape[1]
        distance = square[block, np.newaxis] + square - 2 * products
        distance += (mean[block, np.newaxis] - mean) ** 2
        near = distance <= np.maximum(tolerance**2, 1e-13) * square[block, np.newaxis]
        earlier = np.arange(len(values)) < np.arange(len(values))[block, np.newaxis]
        repeated[block] = np.any(near & earlier, axis=1)
    return repeated
