"""TDC219: a training loop that spends much of its time outside the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.step_halves import (
    Half,
    half_finding,
    judged_halves,
    require_step_counts,
    step_need,
    use_unless_gpu_busy,
)
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["LoopOverhead"]

_MODEL = ("forward", "backward", "optimizer", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOverhead:
    """A training loop that spends much of its time outside the model: logging, metrics, garbage collection.

    What it does:
        Judges two parts of the time of the steps: the rest, in which the script does not wait for data and is
        not in the model, the loss, the optimizer or a checkpoint; and the pauses of Python's garbage
        collector.

    Why it matters:
        The GPU is idle in this time. Logging, metrics, prints, and files that are synced to the disk in each
        step can take longer than the training.

    Decides by:
        At each scan the rule judges the newest half of the steps of a worker and mode. Scans take place eight
        times while the number of steps doubles, for example after 64, 72, 80, ..., 128, 144, ... steps. The
        rule fires if one part takes at least its threshold, and at least `min_ms` per step. It does not fire
        if a GPU is busy for 70 % of the time: the script then waits for the GPU, for example in loss.item().
        Steps without a phase of the model are not judged, because their rest contains the model.

    Parameters:
        threshold: share of the time that the rest may take, in percent.
        gc_threshold: share of the time that the garbage collector may take, in percent.
        min_ms: smallest mean time of the part in a step, in milliseconds.
        patience: number of steps at the start of each mode that are not judged.
        min_steps: smallest number of judged steps.
        min_seconds: smallest duration of the judged steps, in seconds.

    False alarms:
        - Work of the training that no phase contains, such as an environment of reinforcement learning, or a
          second model that is not registered.
        - A script that waits for the GPU in loss.item(), on a machine without samples of its GPUs.

    Do:
        Rest: log and print only every 50 steps, compute metrics on the GPU and read them rarely, write files
        in another thread, and do not call fsync or flush in each step. Garbage collector: call gc.freeze()
        after the start, and gc.collect() every few hundred steps after gc.disable().

    Source:
        PyTorch documentation, "Performance Tuning Guide", section on avoiding unnecessary CPU-GPU
        synchronization.
    """

    code: ClassVar[str] = "TDC219"
    judged_by: ClassVar[JudgedBy] = "run"
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)
    system_columns: ClassVar[tuple[str, ...]] = ("cpu_percent", "iowait_percent")
    samples_optional: ClassVar[bool] = True

    threshold: float = 30.0
    gc_threshold: float = 10.0
    min_ms: float = 5.0
    patience: int = 20
    min_steps: int = 32
    min_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("threshold", "gc_threshold"):
            value = getattr(self, name)
            require(0 < value <= 100, self, name, value, "a percentage, above 0 to 100")
        require(0 <= self.min_ms < np.inf, self, "min_ms", self.min_ms, "0 or more")
        require_step_counts(self)

    def needs(self) -> Need:
        """Times of steps with phases of the model."""
        return step_need(self, more=" with phases of the model")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per worker, mode, part and scan."""
        for half in judged_halves(window, self):
            if not any(half.phases[phase] for phase in _MODEL):
                window.judged(-1)
                continue
            for kind, limit in (("rest", self.threshold), ("gc", self.gc_threshold)):
                share, mean = half.share(f"{kind}_ns"), half.ms_per_step(f"{kind}_ns")
                if share >= limit and mean >= self.min_ms:
                    yield from self._finding(window, half, kind, limit)

    def _finding(self, window: Window, half: Half, kind: str, limit: float) -> Iterator[Finding]:
        use = use_unless_gpu_busy(window, half)
        if use is None:
            return
        share, mean = half.share(f"{kind}_ns"), half.ms_per_step(f"{kind}_ns")
        waits = kind == "rest" and use.iowait_percent > 15
        disk = "; the cores waited for a disk meanwhile, so the script writes or reads files" if waits else ""
        model = sum(half.share(f"{phase}_ns") for phase in _MODEL)
        yield half_finding(
            self,
            half,
            numbers={
                "kind": kind,
                "percent": share,
                "limit": limit,
                "ms_per_step": mean,
                "model_percent": model,
                **use.numbers,
            },
            why=f"{_NAMES[kind]} for {share:.0f} % of the time (limit {limit:g} %), {mean:.1f} ms per step "
            f"over {half.span}, and is in the model for {model:.0f} %{disk}",
            do=_DO[kind],
        )


_NAMES = {
    "rest": "the training loop is outside of model, data, loss, optimizer and checkpoints",
    "gc": "the training is stopped by Python's garbage collector",
}
_DO = {
    "rest": "log, print and compute metrics only every 50 steps; call .item() rarely; write "
    "files in another thread, and without fsync or flush in each step",
    "gc": "call gc.freeze() after the start of the training, or gc.disable() and then gc.collect() every few "
    "hundred steps; create fewer Python objects in each step",
}
