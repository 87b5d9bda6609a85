"""Results from step times: slowdown with a bootstrap interval, stall, estimates, and a cost model."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_RESAMPLES = 2000
_LEAST = 1e-4  # seconds; relative errors of shorter times have no meaning


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median and its 95 % interval (bootstrap over pairs of blocks)."""

    median: float
    low: float
    high: float

    def map(self, call: Callable[..., float]) -> Interval:
        """The interval of a monotonically increasing function of the value."""
        return Interval(median=call(self.median), low=call(self.low), high=call(self.high))


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """Percentile bootstrap of the median. Needs at least one value."""
    sample = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(0, len(sample), (_RESAMPLES, len(sample)))
    low, high = np.percentile(np.median(sample[draws], axis=1), [2.5, 97.5])
    return Interval(median=float(np.median(sample)), low=float(low), high=float(high))


LONG_INTERVAL = 10  # from this interval on, the effects of a saved step end in the first half of the interval


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A block with saving and its block without saving. Times are in seconds, one per step."""

    on: list[float]
    off: list[float]
    saved: list[int]  # positions of saved steps in `on`
    others: float  # share of the cores that other processes used; the larger of both blocks
    cpu: float  # CPU seconds of all processes, minus those of as many steps without saving
    left_behind: float  # seconds of work after the block's last step

    @property
    def ratio(self) -> float:
        """Slowdown: mean time of a step with saving / mean time of a step without."""
        return statistics.fmean(self.on) / statistics.fmean(self.off)

    def period_ratios(self, interval: int) -> list[float]:
        """Slowdown of each complete interval of the block: its time / twice the time of its second half.

        The saved step is the first step of the interval, so its later effects (a flusher that still works)
        are in the first half. Both halves are within a second or two, so a drift of the machine has little
        effect.
        """
        halves = [
            (self.on[place : place + interval // 2], self.on[place + interval // 2 : place + interval])
            for place in self.saved
            if place + interval <= len(self.on)
        ]
        means = [(statistics.fmean(first), statistics.fmean(second)) for first, second in halves]
        return [(first + second) / 2 / second for first, second in means]

    @property
    def stalls(self) -> list[float]:
        """Saved step minus its unsaved neighbours (if all are saved: minus the typical unsaved step)."""
        saved, plain = set(self.saved), statistics.median(self.off)
        out = []
        for place in self.saved:
            near = [self.on[i] for i in (place - 1, place + 1) if 0 <= i < len(self.on) and i not in saved]
            out.append(self.on[place] - (statistics.fmean(near) if near else plain))
        return out


def pairs_of(result: dict[str, Any]) -> list[Pair]:
    """The pairs of blocks in a worker's result."""
    out = []
    blocks = result["blocks"]
    for first, second in zip(blocks[::2], blocks[1::2], strict=True):
        on, off = (first, second) if first["saved"] else (second, first)
        out.append(
            Pair(
                on=on["times_s"],
                off=off["times_s"],
                saved=[step - on["start"] for step in on["saved"]],
                others=max(on["others"], off["others"]),
                cpu=on["cpu_s"] - off["cpu_s"] * len(on["times_s"]) / len(off["times_s"]),
                left_behind=on["left_behind_s"],
            )
        )
    return out


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Results of a cell for the report. None: other processes used too much CPU, or no meaningful value."""

    slowdown: Interval | None
    stall_s: Interval | None
    inside_s: float | None  # of the training threads, per saved step, if the tool measures it
    step_s: float
    pairs: int  # used
    pairs_disturbed: int  # not used
    bytes_per_save: float  # bytes of the tensors of the collection
    tensors_per_save: float
    written_per_save: float
    files: int
    cpu_s_per_save: float | None
    left_behind_s_per_save: float | None
    memory_bytes: int
    drops: int
    limit_s: float
    disk_bytes_per_s: float
    disk_floor: float  # slowdown by the speed of the disk, if every byte is written before the next save

    @property
    def stall_of_limit(self) -> float | None:
        """Stall / time of the limit for the same bytes."""
        if self.stall_s is None or self.limit_s < 1e-4:
            return None  # too few bytes for a ratio
        return self.stall_s.median / self.limit_s

    @property
    def ns_per_byte(self) -> float | None:
        """Stall per byte of tensors."""
        if self.stall_s is None or self.bytes_per_save < 1e5:
            return None
        return self.stall_s.median / self.bytes_per_save * 1e9

    def to_json_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self) | {"stall_of_limit": self.stall_of_limit, "ns_per_byte": self.ns_per_byte}


def summarize(results: list[dict[str, Any]], busy_share: float) -> Summary:
    """Summary of all runs of a cell, without pairs in which other processes used more than `busy_share`."""
    pairs = [pair for result in results for pair in pairs_of(result)]
    clean = [pair for pair in pairs if pair.others <= busy_share]
    enough = len(clean) >= max(2, len(pairs) // 3)
    cell, used = results[0]["cell"], clean or pairs
    saves = sum(len(block["saved"]) for block in [results[0]["warm_up"], *results[0]["blocks"]])
    step = statistics.median(itertools.chain.from_iterable(pair.off for pair in used))
    tool = results[0]["tool"]
    said_bytes, statistics_only = tool.get("payload_bytes_per_save"), cell["collection"] == "statistics"
    written = statistics.median(result["written_bytes"] for result in results) / saves
    disk = statistics.median(result["disk_bytes_per_s"] for result in results)
    inside = [
        one["tool"]["inside_hook_s_per_save"] for one in results if one["tool"].get("inside_hook_s_per_save")
    ]
    stalls = [statistics.median(pair.stalls) for pair in clean if pair.saved]
    return Summary(
        slowdown=bootstrap(_ratios(clean, cell["interval"])) if enough else None,
        stall_s=bootstrap(stalls) if enough and stalls else None,
        inside_s=statistics.median(inside) if inside else None,
        step_s=step,
        pairs=len(clean),
        pairs_disturbed=len(pairs) - len(clean),
        bytes_per_save=said_bytes if said_bytes and not statistics_only else results[0]["tensor_bytes"],
        tensors_per_save=tool.get("tensors_per_save") or results[0]["tensors"],
        written_per_save=written,
        files=int(statistics.median(result["files"] for result in results)),
        cpu_s_per_save=_per_save([pair.cpu for pair in clean], clean),
        left_behind_s_per_save=_per_save([pair.left_behind for pair in clean], clean),
        memory_bytes=max(block["memory"] for result in results for block in result["blocks"]),
        drops=sum(result["tool"].get("drops", 0) for result in results),
        limit_s=min(result["limit_s"] for result in results),
        disk_bytes_per_s=disk,
        disk_floor=max(1.0, written / disk / (cell["interval"] * step)),
    )


def _ratios(pairs: list[Pair], interval: int) -> list[float]:
    if interval < LONG_INTERVAL:
        return [pair.ratio for pair in pairs]
    return [ratio for pair in pairs for ratio in pair.period_ratios(interval)]


def _per_save(values: list[float], pairs: list[Pair]) -> float | None:
    per_save = [value / len(pair.saved) for value, pair in zip(values, pairs, strict=True) if pair.saved]
    return statistics.median(per_save) if per_save else None


def estimate(stall: Interval, step: float, interval: int, written: float, disk: float) -> Interval:
    """Slowdown at an interval that was not measured: the cost spread over the interval, or the disk's floor.

    stall: cost of a saved step, in seconds. step: seconds. written: bytes per saved step. disk: bytes per
    second.
    """
    floor = written / disk / (interval * step) if disk else 0.0
    return stall.map(lambda seconds: max(1.0 + seconds / (interval * step), floor))


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Fitted time of the training thread in the hook, in seconds. All parts are at least 0."""

    per_byte_of_values: float
    per_byte_of_statistics: float  # if only statistics are saved
    per_tensor: float
    per_saved_step: float
    per_unsaved_step: float
    worst_error: float  # largest relative error of the fitted cells

    def stall(self, *, values: float, statistics_only: float, tensors: float) -> float:
        """Seconds of a saved step. values, statistics_only: bytes."""
        return (
            self.per_byte_of_values * values
            + self.per_byte_of_statistics * statistics_only
            + self.per_tensor * tensors
            + self.per_saved_step
        )

    def to_json_dict(self) -> dict[str, float]:
        """All of it."""
        return asdict(self)

    def slowdown(self, stall: float, step: float, interval: int) -> float:
        """Predicted slowdown if a step takes `step` seconds and every `interval`-th step is saved."""
        return 1.0 + (stall + (interval - 1) * self.per_unsaved_step) / (interval * step)


def fit(rows: Sequence[tuple[float, float, float, float]], per_unsaved_step: float) -> CostModel:
    """Fit the cost model. rows: (bytes of values, bytes of statistics, tensors, seconds of a saved step).

    Minimizes the squares of the relative errors (below 0.1 ms: of the absolute errors) with all parts at
    least 0. Every choice of parts that are not 0 is tried, and the best is returned.
    """
    data = np.asarray(rows, np.float64)
    weights = np.maximum(data[:, 3], _LEAST)
    target = data[:, 3] / weights
    features = np.column_stack([data[:, :3], np.ones(len(data))]) / weights[:, None]
    scale = np.maximum(features.max(axis=0), 1e-9)
    features /= scale
    best, best_error = np.zeros(4), np.inf
    for count in range(1, 5):
        for columns in itertools.combinations(range(4), count):
            chosen = list(columns)
            parts, *_ = np.linalg.lstsq(features[:, chosen], target, rcond=None)
            if not (np.isfinite(parts).all() and (parts >= 0).all()):
                continue
            error = float(np.square(features[:, chosen] @ parts - target).sum())
            if error < best_error:
                best, best_error = np.zeros(4), error
                best[chosen] = parts
    costs = best / scale
    return CostModel(
        per_byte_of_values=float(costs[0]),
        per_byte_of_statistics=float(costs[1]),
        per_tensor=float(costs[2]),
        per_saved_step=float(costs[3]),
        per_unsaved_step=per_unsaved_step,
        worst_error=float(np.abs(features @ best - target).max()),
    )
