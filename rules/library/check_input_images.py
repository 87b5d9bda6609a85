"""TDC112: input images that are not normalised."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of, require
from tdcore.rules.columns import Columns, Mask
from tdcore.rules.measures.reading import read_values
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import VALUES, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["CheckInputImages"]

_MODEL_INPUT = r"^(?!.*[Ll]oss)[A-Z]\w*_input_\d+$"  # inputs of models, not of losses
_CONVOLUTION = re.compile(r"^(Lazy)?Conv2d$")
_UNIT_STD = (0.1, 0.5)  # standard deviations of images whose values are scaled to 0..1
_CHANNELS = (1, 3, 4)  # numbers of channels of an image


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInputImages:
    """Input images that have a channel whose mean is far from zero.

    What it does:
        Computes mean and standard deviation per channel of the first input images of the model.

    Why it matters:
        Inputs far from zero give all gradients of the first layer's weights the same sign, so training is
        slow or unstable. Usually the normalisation was forgotten, or applied twice.

    Decides by:
        The rule computes the mean of each channel over the first `threshold_samples` images of a tensor, for
        each worker. If |mean| > threshold_mean for a channel, the rule reports the worst channel, once. A run
        with fewer images is not judged.

        Channels whose values are scaled to 0..1, with or without noise, are not a fault. So a mean from 0 to
        1 with a standard deviation from 0.1 to 0.5 is accepted (compat=True reports such channels too).
        Otherwise the standard deviation is in the numbers of the finding, but is not judged.

        The rule judges the tensors with four axes that `regex` finds. By default these are the inputs of the
        registered model or, if these are not saved, the first input of a Conv2d in the order of execution.
        The rule needs the values, and reads only as many images as it judges.

    Parameters:
        threshold_mean: largest accepted magnitude of the mean of a channel, in units of the input.
        threshold_samples: number of images that are judged.
        regex: regular expressions for names of tensors to judge; a list, or one string with commas. None: see
            above. The default of smdebug, `.*hybridsequential0_input_0`, fits only models of one framework.
        channel: axis of the channels: 1 for (batch, channel, height, width), 3 or -1 for channels last.
        compat: True applies the rule of smdebug, which judges the mean alone.

    False alarms:
        - Images before a normalisation layer of the model.
        - Spectrograms and other data that are not images.

    Do:
        Subtract the mean and divide by the standard deviation per channel, with the values of the training
        set, in the data pipeline. Use the same values for validation.

    Source:
        Y. LeCun, L. Bottou, G. Orr, K.-R. Mueller, Efficient BackProp, 1998, section 4.3.
    """

    code: ClassVar[str] = "TDC112"
    judged_by: ClassVar[JudgedBy] = "worker"

    threshold_mean: float = 0.2
    threshold_samples: int = 500
    regex: str | Sequence[str] | None = None
    channel: int = 1
    compat: bool = False

    def __post_init__(self) -> None:
        for pattern in names_of(self.regex):
            compile_pattern(pattern)
        limit = self.threshold_mean
        require(0 <= limit < np.inf, self, "threshold_mean", limit, "0 or more")
        require(self.threshold_samples >= 1, self, "threshold_samples", self.threshold_samples, "1 or more")
        axes = (1, 2, 3, -1, -2, -3)
        require(self.channel in axes, self, "channel", self.channel, "an axis: 1 to 3, or -3 to -1")

    def needs(self) -> Need:
        """Values of the model's input."""
        return Need(
            what=f"the values of {self.threshold_samples} input images (a tensor of four axes)",
            captures=(
                CollectionConfig(
                    name="input_image",
                    include_regex=names_of(self.regex) or (_MODEL_INPUT,),
                    save_config=SaveConfig(save_interval=1, end_step=100),
                    reduction_config=VALUES,
                ),
            ),
            kinds=() if self.regex else ("input",),
            payload=True,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """At most one finding per tensor and worker."""
        patterns = names_of(self.regex)
        rows = np.flatnonzero((window.named(patterns) if patterns else _inputs(window)) & window.ok)
        columns = window.columns
        named = groups(columns, rows, "attempt", "worker", "name")
        for attempt, worker, name, group in sorted(named, key=lambda each: int(each[3][0])):
            states = window.memory.setdefault((attempt, worker), {})
            if name not in states and not patterns and not self._is_first(columns, int(group[0]), states):
                continue
            state = states.setdefault(name, _Images())
            if not state.other and state.images < self.threshold_samples:
                yield from self._fill(window, group, state)
        for place, states in window.memory.items():
            if place in window.ended:
                for state in states.values():
                    if 0 < state.images < self.threshold_samples:
                        window.missing(f"fewer than {self.threshold_samples} images", state.images)
                        state.images = self.threshold_samples

    def _is_first(self, columns: Columns, row: int, states: dict[str, _Images]) -> bool:
        """Whether to judge a new input: only if no earlier input has images."""
        is_root = _is_of_root(columns.text("name", row), columns.text("origin", row))
        return is_root or not any(not state.other for state in states.values())

    def _fill(self, window: Window, rows: npt.NDArray[np.int64], state: _Images) -> Iterator[Finding]:
        """Read images from the rows of one tensor until there are enough."""
        there = window.columns.present("nbytes")
        for row in rows.tolist():
            if there[row]:
                yield from self._take(window, row, state)
            else:
                window.missing("input saved without its values", 1)
            if state.other or state.images >= self.threshold_samples:
                return

    def _take(self, window: Window, row: int, state: _Images) -> Iterator[Finding]:
        """Add the images of one tensor. Judge them when there are enough."""
        values = read_values(window, row, "input")
        if values is None:
            return
        if values.ndim != 4 or not values.size:
            state.other = True
            window.missing("input does not have four axes, so it does not contain images", 1)
            return
        if values.shape[self.channel] not in _CHANNELS and values.shape[-1] in _CHANNELS:
            window.missing(
                f"the size of axis {self.channel} is not a number of colour channels: set channel=-1", 1
            )
            return
        state.add(np.moveaxis(values, self.channel, 1)[: self.threshold_samples - state.images])
        if state.images < self.threshold_samples:
            return
        window.judged(1)
        if not np.all(np.isfinite(state.mean)):
            window.missing("input is not finite", 1)
            return
        far = np.abs(state.mean)
        if not self.compat:
            lowest, highest = _UNIT_STD
            unit = (state.mean >= 0) & (far <= 1) & (state.std >= lowest) & (state.std <= highest)
            far = np.where(unit, 0.0, far)
        worst = int(np.argmax(far))
        mean = float(state.mean[worst])
        if far[worst] <= self.threshold_mean:
            return
        numbers: dict[str, float | int | str] = {
            "mean": mean,
            "threshold_mean": self.threshold_mean,
            "channel": worst,
            "images": state.images,
        }
        for at in range(min(state.mean.size, 4)):
            numbers[f"mean_of_channel_{at}"] = float(state.mean[at])
            numbers[f"std_of_channel_{at}"] = float(state.std[at])
        yield window.finding(
            self,
            row,
            numbers=numbers,
            why=f"channel {worst} of {state.images} images has mean {mean:.3g} and standard deviation "
            f"{state.std[worst]:.3g}; a mean within {self.threshold_mean:g} of 0 was expected",
            do="subtract the mean and divide by the standard deviation of each channel of the training set",
        )


@dataclass(slots=True, kw_only=True)
class _Images:
    """Sums over the images of one input. other: whether the input has no images."""

    images: int = 0
    pixels: int = 0  # per channel
    total: npt.NDArray[np.float64] | None = None  # sum per channel
    squares: npt.NDArray[np.float64] | None = None
    other: bool = False

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Mean per channel."""
        assert self.total is not None
        found: npt.NDArray[np.float64] = self.total / self.pixels
        return found

    @property
    def std(self) -> npt.NDArray[np.float64]:
        """Standard deviation per channel, over all pixels."""
        assert self.squares is not None
        with np.errstate(over="ignore", invalid="ignore"):
            variance = self.squares / self.pixels - self.mean**2
        found: npt.NDArray[np.float64] = np.sqrt(np.clip(variance, 0, None))
        return found

    def add(self, images: npt.NDArray[Any]) -> None:
        """Add images of shape (image, channel, ...)."""
        wide = images.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            total, squares = wide.sum(axis=(0, 2, 3)), (wide**2).sum(axis=(0, 2, 3))
        if self.total is not None and self.squares is not None and self.total.size == total.size:
            total, squares = self.total + total, self.squares + squares
        elif self.total is not None:
            self.images = self.pixels = 0  # another number of channels: restart
        self.total, self.squares = total, squares
        self.images += images.shape[0]
        self.pixels += images.shape[0] * images.shape[2] * images.shape[3]


def _is_of_root(name: str, origin: str) -> bool:
    """Whether an input belongs to the registered model, which has the name of its class."""
    kind = origin.rpartition(".")[2]
    return bool(kind) and bool(re.fullmatch(re.escape(kind) + r"_input_\d+", name))


def _inputs(window: Window) -> Mask:
    """Inputs of the registered model and of convolutions."""
    columns = window.columns
    convolution = columns.where("origin", lambda origin: bool(_CONVOLUTION.match(origin.rpartition(".")[2])))
    names, texts = columns.codes("name")
    origins, classes = columns.codes("origin")
    codes = [divmod(code, len(classes)) for code in np.unique(names * len(classes) + origins).tolist()]
    root = [pair for pair in codes if _is_of_root(texts[pair[0]] or "", classes[pair[1]] or "")]
    is_root = np.zeros(len(window), dtype=np.bool_)
    for name, origin in root:
        is_root |= (names == name) & (origins == origin)
    found: Mask = window.kind("input") & (convolution | is_root)
    return found
