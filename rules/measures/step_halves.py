"""Step halves: judgements of the newest half of the steps, with exact sums in bounded memory.

The steps of a worker and mode are counted. Scans take place eight times while the number of steps doubles:
after 64, 72, 80, ..., 128, 144, ... steps. A scan has the sums over the newest half of the steps. The sums
are kept in eight blocks, and are whole numbers, so that a scan does not depend on the pieces in which the
steps arrive. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.format.step_times import PHASES
from tdcore.rules.base import Finding, Rule, require
from tdcore.rules.measures.machine_history import MachineUse, add_samples, machine_use
from tdcore.rules.measures.scans import require_counts
from tdcore.rules.requirements import Need
from tdcore.rules.step_times import STEP_VALUES, StepPlace, Steps, step_finding
from tdcore.rules.window import Window

__all__ = [
    "FURTHER",
    "Half",
    "half_finding",
    "halves",
    "judged_halves",
    "require_step_counts",
    "skip_steps",
    "step_need",
    "use_unless_gpu_busy",
]

Ints = npt.NDArray[np.int64]

_PARTS = 8  # blocks of a half, and scans while the number of steps doubles
_BUSY_GPU_PERCENT = 70.0
FURTHER = len(STEP_VALUES)  # position of the first further value in Half.sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Half:
    """The newest half of the steps of one place.

    Attributes:
        place: The origin.
        at: Position of the newest step in the Steps of this window.
        count: Number of steps so far; it is a name of the scan that all workers share.
        steps: Number of steps in the half.
        sums: Sums of STEP_VALUES and of further values over these steps.
        step, mode_step: Numbers of the newest step.
        start_ns, end_ns: Start of the first step, and end of the newest.
    """

    place: StepPlace
    at: int
    count: int
    steps: int
    sums: Ints
    step: int
    mode_step: int
    start_ns: int
    end_ns: int

    def total(self, name: str) -> int:
        """Sum of one of STEP_VALUES."""
        return int(self.sums[STEP_VALUES.index(name)])

    @property
    def seconds(self) -> float:
        """Duration of these steps."""
        return self.total("duration_ns") / 1e9

    def share(self, name: str) -> float:
        """Sum of one of STEP_VALUES, in percent of the duration."""
        return 100.0 * self.total(name) / max(1, self.total("duration_ns"))

    def ms_per_step(self, name: str) -> float:
        """Mean of one of STEP_VALUES in milliseconds."""
        return self.total(name) / 1e6 / self.steps

    @property
    def phases(self) -> dict[str, int]:
        """Nanoseconds of each phase."""
        return {phase: self.total(f"{phase}_ns") for phase in PHASES}

    @property
    def span(self) -> str:
        """The judged steps, as text."""
        return f"{self.steps:,} steps up to this one"


@dataclass(slots=True, kw_only=True)
class _State:
    """Sums of one place.

    Attributes:
        points: Number of steps.
        open, open_ns: Sums of the block that is not complete, and its start.
        blocks, starts: Sums and starts of the newest complete blocks.
    """

    points: int = 0
    open: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    open_ns: int = 0
    blocks: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    starts: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def halves(
    memory: MutableMapping[Any, Any],
    steps: Steps,
    *,
    min_steps: int,
    min_seconds: float,
    further: Ints | None = None,
    key: str = "halves",
    since_start: bool = False,
) -> Iterator[Half]:
    """The scans of new steps, in order.

    Args:
        memory: Memory of the rule, which keeps the sums.
        steps: New steps of a place, not empty.
        min_steps, min_seconds: Smallest number of steps in a half, and their smallest duration.
        further: Further values, one row per step.
        key: Name of the sums in `memory`, for a rule with several.
        since_start: Whether a scan has the sums over all steps so far, in place of the newest half.
    """
    values = steps.values if further is None else np.column_stack([steps.values, further])
    name = (key, *steps.place)
    state = memory.get(name)
    if state is None:
        state = memory[name] = _State(open=np.zeros(values.shape[1], dtype=np.int64))
    before, state.points = state.points, state.points + len(values)
    ends = _boundaries(before, state.points)
    cuts = np.concatenate([[0], ends - before])
    firsts = np.concatenate([[state.open_ns], steps.time_ns[cuts[1:][cuts[1:] < len(values)]]])
    if state.points - len(values) == 0 or not state.open.any():
        firsts[0] = steps.time_ns[0]
    sums = np.add.reduceat(values, cuts[cuts < len(values)], axis=0)
    sums[0] += state.open
    open_block = cuts[-1] < len(values)
    closed = sums[:-1] if open_block else sums
    blocks = np.concatenate([state.blocks.reshape(-1, values.shape[1]), closed])
    starts = np.concatenate([state.starts, firsts[: len(closed)]])
    first_new = len(blocks) - len(closed)
    all_ends = np.concatenate([[0], _boundaries(0, state.points)])
    for number, at in enumerate((cuts[1:] - 1).tolist()):
        end = first_new + number + 1
        begin = 0 if since_start else max(0, end - _PARTS)
        count = before + at + 1
        half = Half(
            place=steps.place,
            at=at,
            count=count,
            steps=count if since_start else count - _start_of_half(all_ends, count),
            sums=blocks[begin:end].sum(axis=0),
            step=int(steps.step[at]),
            mode_step=int(steps.mode_step[at]),
            start_ns=int(starts[begin]),
            end_ns=int(steps.time_ns[at] + steps.of("duration_ns")[at]),
        )
        if count >= 2 * min_steps and half.seconds >= min_seconds:
            yield half
    if since_start and len(blocks) > 1:
        state.blocks, state.starts = blocks.sum(axis=0)[None], starts[:1].copy()
    else:
        state.blocks, state.starts = (each[-_PARTS:].copy() for each in (blocks, starts))
    state.open = sums[-1].copy() if open_block else np.zeros(values.shape[1], dtype=np.int64)
    state.open_ns = int(firsts[-1]) if open_block else 0


def _start_of_half(ends: Ints, count: int) -> int:
    """Number of steps before the newest half of up to eight blocks. ends: 0, and the ends of blocks."""
    return int(ends[max(0, int(np.searchsorted(ends, count)) - _PARTS)])


def _boundaries(after: int, last: int) -> Ints:
    """Numbers of steps, above `after` and up to `last`, at which a block ends."""
    found = []
    count = after + 1
    while count <= last:
        width = max(1, (1 << (count.bit_length() - 1)) // _PARTS)
        end = min(last, (1 << count.bit_length()) - 1)
        found.append(np.arange(-(-count // width) * width, end + 1, width))
        count = end + 1
    return np.concatenate([np.zeros(0, dtype=np.int64), *found]).astype(np.int64)


def skip_steps(memory: MutableMapping[Any, Any], steps: Steps, number: int) -> Steps | None:
    """The steps without the first `number` steps of their place; None if no step is left."""
    key = ("skipped", *steps.place)
    left = number - memory.get(key, 0)
    if left <= 0:
        return steps
    memory[key] = min(number, memory.get(key, 0) + len(steps.step))
    if left >= len(steps.step):
        return None
    return Steps(
        place=steps.place,
        step=steps.step[left:],
        mode_step=steps.mode_step[left:],
        time_ns=steps.time_ns[left:],
        values=steps.values[left:],
    )


def require_step_counts(rule: Any) -> None:
    """Raise ConfigError unless `patience`, `min_steps` and `min_seconds` can work."""
    require_counts(rule, "min_steps")
    value = rule.patience
    require(value >= 0 and value == int(value), rule, "patience", value, "a whole number, 0 or more")
    require(0 <= rule.min_seconds < np.inf, rule, "min_seconds", rule.min_seconds, "0 or more")


def judged_halves(
    window: Window, rule: Any, further: Callable[[Steps], Ints] | None = None
) -> Iterator[Half]:
    """The scans of a window for a rule with `patience`, `min_steps` and `min_seconds`; counted as judged.

    System samples are added to the histories of the machines (measures/machine_history.py).

    further: returns further values of steps, one row per step.
    """
    if window.samples is not None:
        add_samples(window.memory, window.samples)
    if window.step_times is None:
        return
    for every in window.step_times.steps(window.memory):
        steps = skip_steps(window.memory, every, rule.patience)
        if steps is None:
            continue
        for half in halves(
            window.memory,
            steps,
            min_steps=rule.min_steps,
            min_seconds=rule.min_seconds,
            further=None if further is None else further(steps),
        ):
            window.judged(1)
            yield half


def half_finding(rule: Rule, half: Half, *, numbers: Mapping[str, Any], why: str, do: str) -> Finding:
    """Create a finding of `rule` at the newest step of a scan; see step_finding()."""
    judged = {"steps": half.steps, "seconds": half.seconds, "time_ns": half.end_ns}
    return step_finding(
        rule, half.place, half.step, half.mode_step, numbers={**numbers, **judged}, why=why, do=do
    )


def use_unless_gpu_busy(window: Window, half: Half) -> MachineUse | None:
    """The use of the machine in the time of a scan.

    None if a GPU worked in most of this time, so that the CPU had no reason to be faster.
    """
    use = machine_use(window.memory, half.place.attempt, half.place.worker, half.start_ns, half.end_ns)
    busy = max(half.share("gpu_ns"), float(np.nan_to_num(use.gpu_percent)))
    return None if busy >= _BUSY_GPU_PERCENT else use


def step_need(rule: Any, *, times: int = 2, mode: str = "one mode", more: str = "", workers: int = 1) -> Need:
    """The need of a rule with `patience`, `min_steps` and `min_seconds`.

    Args:
        rule: The rule.
        times: Number of steps before the first judgement, in `min_steps`.
        mode: The mode, as text.
        more: Further text.
        workers: Minimum number of workers.
    """
    number = rule.patience + times * rule.min_steps
    what = f"more than {number:,} steps of {mode}{more}; the newer half of them must take "
    return Need(what=f"{what}{rule.min_seconds:g} seconds", workers=workers)
