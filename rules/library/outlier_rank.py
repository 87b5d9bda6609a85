"""TDC125: a rank whose gradients differ from those of all other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.measures.format import rounded
from tdcore.rules.measures.parts import part_rows
from tdcore.rules.measures.ranks import ComparedStep, RankHistory, log_sizes, side_by_side
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["OutlierRank"]

_RANKS = 3  # the median of fewer ranks does not show an outlier
_SPREAD = 5 * 1.4826  # 5 standard deviations of a normal distribution, in median absolute deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierRank:
    """A rank of a distributed training with persistently larger or smaller gradients than other ranks.

    What it does:
        Compares the gradients of all workers at the same step, and reports a rank that deviates.

    Why it matters:
        Ranks get samples of the same data, so their gradients are similar. A rank that deviates step after
        step has other data (a broken shard, shifted labels, padding), another model (a missed broadcast, an
        old checkpoint) or faulty hardware, and it spoils the mean of all gradients.

    Decides by:
        For each gradient and step, the rule computes d = ln(L2 norm of the gradient) - median of ln(L2 norm)
        over the ranks. For each rank and step, the rule takes the median of d over the gradients of the rank.

        A rank is an outlier if |d| > ln(factor), and |d| > 5 standard deviations of the ranks' values
        (estimated from their median absolute deviation). An outlier is reported at the `patience`-th
        consecutive judged step. It is reported again only after a step without this condition. The kind is
        `large` or `small`, and the tensor is the gradient that deviates most.

        Steps are those of TRAIN or GLOBAL mode. A step is judged when all workers known so far have reached
        it or have ended. At most a hundred saved steps (or four million norms) wait for slower workers. The
        rule does not judge steps with fewer than three ranks, gradients that are not finite, gradients that
        some ranks do not have, and parts of sharded gradients, because every rank has other elements.

        After an all-reduce the gradients of all ranks are equal, so the rule finds only a rank that is at
        another step than the others. UnequalRanks compares inputs, outputs and losses.

    Parameters:
        factor: ratio of the median to the gradients of a rank, or the inverse ratio, above which the rank is
            an outlier.
        patience: number of consecutive judged steps at which a rank must be an outlier.
        workers: number of workers to wait for. None: the workers that have saved tensors so far, at least
            three.

    False alarms:
        - Ranks with different work on purpose: stages of a pipeline, experts, other batch sizes or data
          sources.

    Do:
        Compare the rank's inputs and labels with those of another rank. Check that weights are broadcast at
        the start, and that only the intended seeds differ between ranks. Exchange the device.

    Source:
        S. McCandlish et al., An empirical model of large-batch training, 2018, for gradient noise between
        batches. P. Rousseeuw and C. Croux, Alternatives to the median absolute deviation, JASA 1993.
    """

    code: ClassVar[str] = "TDC125"
    judged_by: ClassVar[JudgedBy] = "run"
    reads: ClassVar[tuple[str, ...]] = (
        "count",
        "nan_count",
        "pos_inf_count",
        "neg_inf_count",
        "square_sum",
        "reason",
    )
    columns: ClassVar[tuple[str, ...]] = ("shard", "shape")

    factor: float = 4.0
    patience: int = 5
    workers: int | None = None

    def __post_init__(self) -> None:
        require(1 < self.factor < np.inf, self, "factor", self.factor, "a number above 1")
        require(self.patience >= 1, self, "patience", self.patience, "1 or more")
        number = self.workers
        require(number is None or number >= _RANKS, self, "workers", number, f"{_RANKS} or more, or None")

    def needs(self) -> Need:
        """Statistics of gradients of several workers."""
        return Need(
            what=f'statistics of gradients of {_RANKS} workers or more (include_workers="all")',
            captures=captures_of(
                ["gradients"], (), save_config=SaveConfig(save_interval=100), keep=STATISTICS
            ),
            kinds=("gradient",),
            workers=_RANKS,
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per rank and series of consecutive steps."""
        trained = window.columns.where("mode", lambda mode: mode in ("TRAIN", "GLOBAL"))
        gradients = window.kind("gradient") & window.ok & trained
        window.missing("gradient saved without statistics", int(np.sum(gradients & ~window.counted)))
        gradients &= window.counted
        parts = part_rows(window, gradients)
        window.missing("gradient is sharded, and each rank has a different part", int(np.sum(parts)))
        gradients &= ~parts
        finite = window.finite == window.columns.floats("count")
        window.missing("gradient is not finite", int(np.sum(gradients & ~finite)))
        norms = log_sizes(np.sqrt(window.columns.floats("square_sum")))[np.newaxis]
        for meeting in side_by_side(window, gradients & finite, norms, _RANKS, self.workers):
            window.judged(meeting.logs.size)
            if meeting.names:
                yield from self._judge(window.memory[meeting.attempt, meeting.mode], meeting)

    def _judge(self, ranks: RankHistory, meeting: ComparedStep) -> Iterator[Finding]:
        deviation = meeting.logs - np.median(meeting.logs, axis=0)
        own = np.median(deviation, axis=1)
        spread = _SPREAD * float(np.median(np.abs(own - np.median(own))))
        limit = max(float(np.log(self.factor)), spread)
        for at, worker in enumerate(meeting.workers):
            if not abs(own[at]) > limit:
                ranks.runs.pop(worker, None)
                continue
            ranks.runs[worker] = ranks.runs.get(worker, 0) + 1
            if ranks.runs[worker] == self.patience:
                yield self._finding(meeting, at, own, int(np.argmax(np.abs(deviation[at]))))

    def _finding(
        self,
        meeting: ComparedStep,
        at: int,
        own: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
        worst: int,
    ) -> Finding:
        deviation = float(own[at])
        times = float(np.exp(min(abs(deviation), 700.0)))
        kind = "large" if deviation > 0 else "small"
        return meeting.finding(
            self,
            at,
            meeting.names[worst],
            numbers={
                "kind": kind,
                "times": times,
                "factor": self.factor,
                "norm": float(np.exp(meeting.logs[at, worst])),
                "median_norm": float(np.exp(np.median(meeting.logs[:, worst]))),
                "ranks": len(meeting.workers),
                "gradients": len(meeting.names),
                "steps": self.patience,
            },
            why=f"the gradients of {meeting.workers[at]} are {rounded(times)} times "
            f"{'larger' if kind == 'large' else 'smaller'} than the median of {len(meeting.workers)} ranks, "
            f"for {self.patience} judged steps in a row",
            do="compare the data and weights of this rank with those of another rank, or exchange the device",
        )
