"""TDC131: ranks whose inputs, outputs or loss differ from those of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Floats, Mask
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.parts import part_rows
from tdcore.rules.measures.ranks import ComparedStep, RankHistory, log_sizes, side_by_side
from tdcore.rules.requirements import STATISTICS, Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["UnequalRanks"]

_RANKS = 2
_SPREAD = 5 * 1.4826  # 5 standard deviations of a normal distribution, in median absolute deviations
_OF_ONE_NUMBER = 4  # factor of the patience
_OF_MODEL = r"^(?!.*[Ll]oss)[A-Z]\w*_(input_[\w.]+|output_\d+)$"  # the model has the name of its class
_FLOATS = ("F", "BF")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnequalRanks:
    """Ranks of a distributed training whose inputs, outputs or loss differ from those of the others.

    What it does:
        Compares the inputs and outputs of the model and the loss between all workers at the same step.

    Why it matters:
        All ranks sample the same data. A rank that skips the normalisation, reads wrong data or has other
        weights makes the mean gradient of all ranks wrong. After the all-reduce all ranks have equal
        gradients, so gradients do not show which rank is at fault.

    Decides by:
        The rule compares floating-point inputs and outputs of the model, and losses, of the same name at the
        same step of TRAIN or GLOBAL mode.

        - `scale`: the root mean squares differ by more than `factor` times.
        - `shift`: the means differ by more than `shift` standard deviations (the largest standard deviation
          among the ranks). Losses, constants and tensors whose scale differs are not judged for this kind.

        With three ranks or more a rank is compared with the median of all ranks, and must also deviate by 5
        standard deviations of the ranks (estimated from their median absolute deviation). With two ranks the
        finding names the rank with the larger value; either of them can be wrong.

        A deviation is reported at the `patience`-th consecutive judged step, and again only after a step
        without the deviation. Single numbers, such as losses, need four times as many steps, because they
        differ much from batch to batch at the end of a training.

        Integers (class numbers, tokens), values that are not finite, parts of sharded tensors, and tensors
        that some ranks do not have are not judged.

    Parameters:
        factor: ratio of the root mean squares above which a rank is reported.
        shift: distance of the means, in standard deviations, above which a rank is reported.
        patience: number of consecutive judged steps at which a rank must deviate.
        workers: number of workers to wait for. None: the workers that have saved a step so far, two or more.

    False alarms:
        - Ranks with different work on purpose: stages of a pipeline, other data sources or other tasks.
        - Losses that are summed over batches of different sizes.

    Do:
        Compare the data sets, transforms and samplers of the two ranks; check that weights are broadcast at
        the start and that only seeds of data order, augmentation and dropout differ.

    Source:
        Y. Jiang et al., Training with confidence: catching silent errors in deep learning training with
        automated proactive checks, OSDI 2025. P. Rousseeuw and C. Croux, Alternatives to the median absolute
        deviation, JASA 1993.
    """

    code: ClassVar[str] = "TDC131"
    judged_by: ClassVar[JudgedBy] = "run"
    reads: ClassVar[tuple[str, ...]] = (
        "count",
        "nan_count",
        "pos_inf_count",
        "neg_inf_count",
        "square_sum",
        "m2",
        "mean",
        "dtype",
    )
    columns: ClassVar[tuple[str, ...]] = ("shard", "shape")

    factor: float = 4.0
    shift: float = 4.0
    patience: int = 5
    workers: int | None = None

    def __post_init__(self) -> None:
        require(1 < self.factor < np.inf, self, "factor", self.factor, "a number above 1")
        require(0 < self.shift < np.inf, self, "shift", self.shift, "a number above 0")
        require(self.patience >= 1, self, "patience", self.patience, "1 or more")
        number = self.workers
        require(number is None or number >= _RANKS, self, "workers", number, f"{_RANKS} or more, or None")

    def needs(self) -> Need:
        """Statistics of inputs, outputs and losses of several workers."""
        every = SaveConfig(save_interval=10)
        return Need(
            what=f'the model\'s inputs and losses of {_RANKS} workers or more (include_workers="all")',
            captures=(
                CollectionConfig(
                    name="model_values",
                    include_regex=(_OF_MODEL,),
                    save_config=every,
                    reduction_config=STATISTICS,
                ),
                CollectionConfig(name="losses", save_config=every, reduction_config=STATISTICS),
            ),
            kinds=("input", "output", "loss"),
            workers=_RANKS,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """Yield one finding per rank, tensor, kind and uninterrupted series of steps."""
        rows = self._comparable(window)
        floats = window.columns.floats
        finite = np.maximum(window.finite, 1)
        with np.errstate(invalid="ignore"):
            rms, std = np.sqrt(floats("square_sum") / finite), np.sqrt(np.maximum(floats("m2"), 0) / finite)
        of_loss = window.kind("loss")
        std[of_loss] = 0.0  # no shift
        numbers: Floats = np.stack([log_sizes(rms), floats("mean"), std, floats("count")])
        for meeting in side_by_side(window, rows, numbers, _RANKS, self.workers):
            window.judged(meeting.logs.size)
            if meeting.names:
                yield from self._judge(window.memory[meeting.attempt, meeting.mode], meeting)

    def _comparable(self, window: Window) -> Mask:
        columns = window.columns
        trained = columns.where("mode", lambda mode: mode in ("TRAIN", "GLOBAL"))
        of_model = columns.where("name", lambda name: re.search(_OF_MODEL, name) is not None)
        wanted = window.kind("loss") | (window.kind("input", "output") & of_model)
        wanted = wanted & window.ok & trained & (columns.ints("call") == 0)
        wanted &= columns.where("dtype", lambda dtype: dtype.startswith(_FLOATS))
        window.missing("saved without statistics", int(np.sum(wanted & ~window.counted)))
        wanted &= window.counted & ~part_rows(window, wanted)
        finite = (window.finite == columns.floats("count")) & (window.finite > 0)
        window.missing("not finite", int(np.sum(wanted & ~finite)))
        found: Mask = wanted & finite
        return found

    def _judge(self, ranks: RankHistory, meeting: ComparedStep) -> Iterator[Finding]:
        scale, scale_limit = _deviation(meeting.logs)
        shift, shift_limit = _deviation(meeting.values[:, 1])
        std = np.max(meeting.values[:, 2], axis=0)
        apart = np.divide(shift, std, out=np.zeros_like(shift), where=np.broadcast_to(std > 0, shift.shape))
        single = np.all(meeting.values[:, 3] == 1, axis=0)
        patience = np.where(single, _OF_ONE_NUMBER, 1) * self.patience
        large = np.abs(scale) > np.maximum(np.log(self.factor), scale_limit)
        far = (np.abs(apart) > self.shift) & (np.abs(shift) > shift_limit) & ~large.any(axis=0)
        if len(meeting.workers) == _RANKS:  # report the larger rank
            large, far = large & (scale > 0), far & (shift > 0)
        for rank, worker in enumerate(meeting.workers):
            for at, name in enumerate(meeting.names):
                kind = "scale" if large[rank, at] else "shift" if far[rank, at] else ""
                for other in {"scale", "shift"} - {kind}:
                    ranks.runs.pop((worker, name, other), None)
                if not kind:
                    continue
                run = ranks.runs[worker, name, kind] = ranks.runs.get((worker, name, kind), 0) + 1
                if run == patience[at]:
                    value = float(np.exp(min(abs(scale[rank, at]), 700.0)))
                    value = value if kind == "scale" else float(abs(apart[rank, at]))
                    larger = (scale if kind == "scale" else shift)[rank, at] > 0
                    yield self._finding(meeting, rank, at, kind, value, larger=bool(larger), steps=run)

    def _finding(
        self, meeting: ComparedStep, rank: int, at: int, kind: str, value: float, *, larger: bool, steps: int
    ) -> Finding:
        name, means = meeting.names[at], meeting.values[:, 1, at]
        others = "the other rank" if len(meeting.workers) == _RANKS else "the median rank"
        way = "larger" if larger else "smaller"
        what = (
            f"is {rounded(value)} times {way} than {others}"
            if kind == "scale"
            else f"has a mean that is {rounded(value)} standard deviations {way} than the mean of {others}"
        )
        other = np.delete(means, rank)
        return meeting.finding(
            self,
            rank,
            name,
            numbers={
                "kind": kind,
                "value": value,
                "limit": self.factor if kind == "scale" else self.shift,
                "mean": float(means[rank]),
                "mean_of_others": float(np.median(other)),
                "ranks": len(meeting.workers),
                "steps": steps,
            },
            why=f"{name} of {meeting.workers[rank]} {what}, for {steps} judged steps in a row "
            f"(mean {rounded(float(means[rank]))}, others {rounded(float(np.median(other)))})",
            do="compare the data sets, transforms and weights of the ranks",
        )


def _deviation(values: Floats) -> tuple[Floats, Floats]:
    """(distance of each rank from the median, or from the other rank of two; limit of the distance by noise).

    values: shape (ranks, names).
    """
    if len(values) == _RANKS:
        return values - values[::-1], np.zeros(values.shape[1])
    found = values - np.median(values, axis=0)
    return found, _SPREAD * np.median(np.abs(found), axis=0)
