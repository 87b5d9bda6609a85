"""TDC208: steps that take much longer than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.format.step_times import PHASES
from tdcore.rules.base import Finding, require
from tdcore.rules.measures.machine_history import add_samples, machine_use, machine_use_at
from tdcore.rules.measures.scans import require_counts
from tdcore.rules.measures.step_halves import (
    FURTHER,
    Half,
    half_finding,
    halves,
    require_step_counts,
    skip_steps,
    step_need,
)
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.step_times import STEP_VALUES, Steps
from tdcore.rules.window import Window

__all__ = ["StepOutlier"]

Ints = npt.NDArray[np.int64]

_KEPT_TIMES = 64  # newest outliers whose seconds are looked up in the system samples
_CONCENTRATED = 0.25  # share of the extra time in one phase, above the phase's share of a usual step
_SPREAD_FACTOR = 3  # for extra time that is in all phases, or in the model
_MODEL = ("forward", "loss", "backward", "optimizer", "compute")  # other programs slow down these
_SQUARE_BITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutlier:
    """Steps that take much longer than the other steps of their mode.

    What it does:
        Finds steps whose duration is far above the mean. The rule names the phase in which these steps spend
        their extra time, and the use of the machine at these times.

    Why it matters:
        Slow steps show a cause that recurs: a checkpoint, an evaluation, data that arrive late, or
        another program. Together such steps can take more time than all others.

    Decides by:
        The steps of each worker and mode are judged separately. A step is an outlier if its duration is above
        mean + `stddev` * sigma. Mean and sigma are those of the newest half of the earlier steps at the last
        scan. Scans take place eight times while the number of steps doubles, for example after 64, 72, 80,
        ..., 128, 144, ... steps. The rule fires if the newest half of the steps has more than `n_outliers`
        outliers that do not follow one another, and if their extra time, compared with the mean of the other
        steps, is at least `min_share` percent of the whole time and `min_extra_ms` per outlier.

        If the extra time is in data, rest, checkpoints, compilations or the garbage collector, these
        conditions are enough. The phase must have a larger share of the extra time than of the usual steps.
        Otherwise the extra time is in the model or in all phases, which is usual when other programs use the
        CPU, and three times `min_share` is needed.

        With compat=True the rule decides as smdebug does: mean and sigma are those of all steps so far, and
        more than `n_outliers` outliers among all steps are enough. Then almost every long training has a
        finding, because even of equal steps with normal noise one in 740 is above three sigma.

    Parameters:
        stddev: number of sigmas above the mean from which a step is an outlier.
        n_outliers: number of outliers above which the rule fires.
        mode: mode whose steps are judged, such as "TRAIN"; None for all modes.
        min_share: smallest extra time of the outliers, in percent of the judged time; not used with
            compat=True.
        min_extra_ms: smallest mean extra time of an outlier, in milliseconds; not used with compat=True. A
            program that takes the CPU for a moment costs less.
        patience: number of steps at the start of each mode that are not judged.
        min_steps: smallest number of judged steps.
        min_seconds: smallest duration of the judged steps, in seconds.
        compat: whether to decide as smdebug does.

    False alarms:
        - Batches of very different sizes, such as sentences that are not sorted by length.
        - Periodic work that is intended, such as an evaluation within the training loop.

    Do:
        Look at the phase that the finding names. Data: more DataLoader workers, and persistent_workers=True.
        Rest: log less often, and do not write files in the loop. Checkpoint: write in the background.
        Compile: pad batches to fixed lengths. All phases: look for other programs on the machine.

    Source:
        The rule StepOutlier of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC208"
    judged_by: ClassVar[JudgedBy] = "run"
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)
    system_columns: ClassVar[tuple[str, ...]] = ("cpu_percent", "iowait_percent")
    samples_optional: ClassVar[bool] = True

    stddev: float = 3.0
    n_outliers: int = 10
    mode: str | None = None
    min_share: float = 10.0
    min_extra_ms: float = 30.0
    patience: int = 20
    min_steps: int = 32
    min_seconds: float = 10.0
    compat: bool = False

    def __post_init__(self) -> None:
        require(0 < self.stddev < np.inf, self, "stddev", self.stddev, "above 0")
        require(0 <= self.min_share <= 100, self, "min_share", self.min_share, "a percentage, 0 to 100")
        require(0 <= self.min_extra_ms < np.inf, self, "min_extra_ms", self.min_extra_ms, "0 or more")
        require_counts(self, "n_outliers")
        require_step_counts(self)

    def needs(self) -> Need:
        """Times of steps."""
        return step_need(self, times=4, mode="one mode" if self.mode is None else f"mode {self.mode}")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per worker, mode and scan."""
        memory = window.memory
        if window.samples is not None:
            add_samples(memory, window.samples)
        if window.step_times is None:
            return
        for every in window.step_times.steps(memory):
            if self.mode is not None and every.place.mode != self.mode.upper():
                continue
            steps = skip_steps(memory, every, 0 if self.compat else self.patience)
            if steps is None:
                continue
            limits = memory.setdefault(("limit", *steps.place), _Limit())
            longest = self._limits(window, steps, limits)
            is_outlier = steps.of("duration_ns") > longest
            further = _further(steps, is_outlier, limits)
            scans = self._halves(window, steps, "outliers", further)
            done = 0
            for half in scans:
                limits.note(steps.time_ns[done : half.at + 1][is_outlier[done : half.at + 1]])
                done = half.at + 1
                if half.count >= 4 * self.min_steps and half.seconds >= self.min_seconds:
                    window.judged(1)
                    yield from self._judge(window, half, limits, float(longest[half.at]) / 1e6)
            limits.note(steps.time_ns[done:][is_outlier[done:]])

    def _halves(self, window: Window, steps: Steps, key: str, further: Ints) -> Iterator[Half]:
        return halves(
            window.memory,
            steps,
            min_steps=self.min_steps,
            min_seconds=0.0,
            further=further,
            key=key,
            since_start=self.compat,
        )

    def _limits(self, window: Window, steps: Steps, limits: _Limit) -> npt.NDArray[np.float64]:
        """The duration above which each step is an outlier, in nanoseconds."""
        changes, values = [0], [limits.limit_ns]
        for half in self._halves(window, steps, "moments", _squares(steps)):
            changes.append(half.at + 1)
            values.append(_limit_of(half, self.stddev))
        limits.limit_ns = values[-1]
        lengths = np.diff([*changes, len(steps.step)])
        return np.repeat(np.array(values), lengths)

    def _judge(self, window: Window, half: Half, limits: _Limit, limit_ms: float) -> Iterator[Finding]:
        outliers, series = (int(each) for each in half.sums[FURTHER : FURTHER + 2])
        if (outliers if self.compat else series) <= self.n_outliers:
            return
        slow = half.sums[FURTHER + 2 :].astype(np.float64)  # duration and phases of the outliers
        whole = half.sums[: 1 + len(PHASES)].astype(np.float64)
        usual = (whole - slow) / max(1, half.steps - outliers)
        extra = slow - outliers * usual
        share = 100 * extra[0] / max(whole[0], 1.0)
        more = extra[1:] / max(extra[0], 1.0) - usual[1:] / max(usual[0], 1.0)
        at = int(np.argmax(more))
        phase = PHASES[at] if more[at] >= _CONCENTRATED else ""
        needed = self.min_share * (_SPREAD_FACTOR if phase in ("", *_MODEL) else 1)
        is_long = extra[0] >= 1e6 * self.min_extra_ms * outliers
        if (share >= needed and is_long) or self.compat:
            yield self._finding(
                half,
                _Outliers(
                    number=outliers,
                    limit_ms=limit_ms,
                    share=float(share),
                    phase=phase,
                    part=100 * min(float(extra[1 + at] / max(extra[0], 1.0)), 1.0),
                    usual_ms=float(usual[0]) / 1e6,
                    ms=float(slow[0]) / outliers / 1e6,
                    machine=_machine(window, half, limits),
                ),
            )

    def _finding(self, half: Half, found: _Outliers) -> Finding:
        where = (
            f"{found.part:.0f} % of it in the phase {found.phase!r}"
            if found.phase
            else "in all phases, as when other programs take the CPU"
        )
        return half_finding(
            self,
            half,
            numbers={
                "kind": found.phase or "all phases",
                "outliers": found.number,
                "limit": self.n_outliers,
                "extra_percent": found.share,
                "limit_ms": found.limit_ms,
                "usual_ms": found.usual_ms,
                "outlier_ms": found.ms,
                "phase_percent": found.part if found.phase else 0.0,
            },
            why=f"{found.number:,} of {half.steps:,} steps (limit {self.n_outliers:,}) take {found.ms:.1f} "
            "ms "
            f"in place of {found.usual_ms:.1f} ms, which is more than mean + {self.stddev:g} sigma; their "
            f"extra time is {found.share:.0f} % of the whole time, {where}{found.machine}",
            do=_DO.get(found.phase, _DO[""]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outliers:
    """The outliers of one scan.

    Attributes:
        number: Their number.
        limit_ms: Duration above which a step is an outlier now.
        share: Extra time, in percent of the whole time.
        phase: The phase with the extra time; "" for all phases.
        part: Part of the extra time in that phase, in percent.
        usual_ms, ms: Mean duration of the other steps, and of the outliers.
        machine: The use of the machine, as text.
    """

    number: int
    limit_ms: float
    share: float
    phase: str
    part: float
    usual_ms: float
    ms: float
    machine: str


_DO = {
    "": "look for other programs on the machine, and for clocks that are reduced",
    "data": "use more DataLoader workers, keep them between epochs with persistent_workers=True, and look "
    "for samples that are much larger than the others",
    "rest": "log, print and write files less often, and move evaluation and metrics out of the loop",
    "checkpoint": "write checkpoints less often, or in the background",
    "compile": "set TORCH_LOGS=recompiles, and pad batches to a few fixed lengths",
    "gc": "call gc.freeze() after the start of the training, and gc.collect() at times that you choose",
    "forward": "look for batches that are larger than the others, and pad batches to a fixed length",
    "backward": "look for a rank that is slower than the others, and for batches that are larger",
}


@dataclass(slots=True, kw_only=True)
class _Limit:
    """State of one worker and mode.

    limit_ns: duration above which a step is an outlier. is_outlier: whether the newest step is one.
    times_ns: starts of the newest outliers.
    """

    limit_ns: float = np.inf
    is_outlier: bool = False
    times_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def note(self, times_ns: Ints) -> None:
        """Keep the newest times."""
        self.times_ns = np.concatenate([self.times_ns, times_ns])[-_KEPT_TIMES:]


def _squares(steps: Steps) -> Ints:
    """The squares of the durations in microseconds, in three parts whose sums are exact: see _limit_of."""
    high, low = np.divmod(np.minimum(steps.of("duration_ns") // 1000, 1 << 40), 1 << _SQUARE_BITS)
    return np.column_stack([high * high, high * low, low * low])


def _limit_of(half: Half, stddev: float) -> float:
    """mean + stddev * sigma of the durations of a scan, in nanoseconds."""
    high, both, low = half.sums[FURTHER:].tolist()
    squares = (high << (2 * _SQUARE_BITS)) + (both << (_SQUARE_BITS + 1)) + low
    mean = half.total("duration_ns") / 1000 / half.steps
    return 1000 * (mean + stddev * float(np.sqrt(max(squares / half.steps - mean * mean, 0.0))))


def _further(steps: Steps, is_outlier: npt.NDArray[np.bool_], limits: _Limit) -> Ints:
    """Outliers, series of outliers, and the duration and phases of outliers, one row per step."""
    first = STEP_VALUES.index("duration_ns")
    times = steps.values[:, first : first + 1 + len(PHASES)]
    begins = is_outlier & ~np.concatenate([[limits.is_outlier], is_outlier[:-1]])
    limits.is_outlier = bool(is_outlier[-1])
    return np.column_stack([is_outlier, begins, np.where(is_outlier[:, None], times, 0)]).astype(np.int64)


def _machine(window: Window, half: Half, limits: _Limit) -> str:
    """The use of the machine at the outliers, as text, compared with the whole time; "" if not known."""
    place = (half.place.attempt, half.place.worker)
    then = machine_use_at(window.memory, *place, limits.times_ns)
    usual = machine_use(window.memory, *place, half.start_ns, half.end_ns)
    if not (then.text and usual.text):
        return ""
    return (
        f"; at these times {then.text} ({usual.cpu_percent:.0f} % and {usual.iowait_percent:.0f} % on "
        "average)"
        if np.isfinite(usual.iowait_percent)
        else f"; at these times {then.text} ({usual.cpu_percent:.0f} % on average)"
    )
