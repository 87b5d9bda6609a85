"""SinkLoad: whether the sink keeps up with the requested data, and a warning, once, if it does not.

The numbers are read when a saved step begins. They are totals of the ring: bytes that were stored and
dropped, time that threads waited for room, bytes that the flusher wrote, and time in which it wrote. A wait
is an effect of the policy "block"; drops are effects of "drop" and "degrade".

The warning needs all of the following, so that the first step, the slow start of a bucket or a single wait
cause none: a window of at least 10 s and 4 saved steps, without the first saved step; waits or drops in at
least 3 intervals between samples; and in total, without the longest wait and the largest drop, waits of 5 %
of the window, or drops of 5 % of the bytes.

If several threads wait at the same time, their waits are added, so the time between two saved steps without
waits is too short, or unknown.

Threads: the training thread. Cost: one native call per saved step; other work happens at most 4 times per
second.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tdcore.session.ring_sizes import wanted_bytes
from tdcore.sinks import shown_place
from tdcore.text.numbers import human_bytes

if TYPE_CHECKING:
    from tdcore.session import Session

__all__ = ["SinkLoad", "sink_load"]

_SAMPLE_SECONDS = 0.25
_MIN_SECONDS, _MAX_SECONDS = 10.0, 60.0
_MIN_STEPS = 4
_MIN_INTERVALS = 3  # with waits or drops
_SHARE = 0.05
_USABLE = 0.8  # share of the sink's rate that a proposed interval may use
_MOST_RING_MIB = 64 * 1024
_OTHERS = "statistics only (reduction_config=ReductionConfig()) or fewer tensors (include_regex)"
_NICE = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)  # leading digits of proposed intervals


class _Sample(NamedTuple):
    """Totals when a saved step begins. Times in seconds, sizes in bytes."""

    time: float
    step: int
    saved: int  # number of saved steps before this one
    stored: int
    refused: int
    waited: float
    written: int
    busy: float


class SinkLoad:
    """Comparison of requested and written data of one hook.

    Args:
        load: `Ring.load()` of the hook's ring.
        place: Name of the sink in messages.
        measured: Called with the bytes of each saved step that is larger than all saved steps before.
        report: Called once with the warning.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        load: Callable[[], tuple[int, int, int, int, int]],
        *,
        place: str,
        measured: Callable[[int], None],
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._place = place
        self._measured = measured
        self._report = report
        self._clock = clock
        self._samples: deque[_Sample] = deque()
        self._saved = -1  # number of saved steps that are complete
        self._requested = 0  # bytes before the last saved step
        self._largest = 0
        self._reported = False

    def begin_saved_step(self, step: int) -> None:
        """Read the totals before the saved step with this number."""
        stored, refused, waited_ns, written, busy_ns = self._load()
        self._saved += 1
        size = stored + refused - self._requested
        self._requested += size
        if size > self._largest:
            self._largest = size
            self._measured(size)
        now = self._clock()
        if self._reported or self._saved == 0:  # the window begins after the first saved step
            return
        if self._samples and now - self._samples[-1].time < _SAMPLE_SECONDS:
            return
        self._samples.append(
            _Sample(now, step, self._saved, stored, refused, waited_ns / 1e9, written, busy_ns / 1e9)
        )
        self._forget_old()
        message = self._message()
        if message:
            self._reported = True
            self._samples.clear()
            self._report(message)

    def _forget_old(self) -> None:
        samples, last = self._samples, self._samples[-1]
        while (
            len(samples) > 2
            and last.time - samples[1].time >= _MAX_SECONDS
            and last.saved - samples[1].saved >= _MIN_STEPS
        ):
            samples.popleft()

    def _message(self) -> str:
        """The warning; "" if the sink keeps up."""
        first, last = self._samples[0], self._samples[-1]
        seconds, saved = last.time - first.time, last.saved - first.saved
        written, busy = last.written - first.written, last.busy - first.busy
        if seconds < _MIN_SECONDS or saved < _MIN_STEPS or written <= 0 or busy <= 0:
            return ""  # if nothing was written, the sink fails, which is reported elsewhere
        waited, refused = last.waited - first.waited, last.refused - first.refused
        requested = last.stored - first.stored + refused
        pairs = list(pairwise(self._samples))
        waits, drops = [b.waited - a.waited for a, b in pairs], [b.refused - a.refused for a, b in pairs]
        drops_many = refused - max(drops) >= _SHARE * max(requested, 1)
        if waited - max(waits) < _SHARE * seconds and not drops_many:
            return ""
        if sum(wait > 0 or drop > 0 for wait, drop in zip(waits, drops, strict=True)) < _MIN_INTERVALS:
            return ""
        size, rate = requested / saved, written / busy
        interval = max(1, round((last.step - first.step) / saved))
        effect = f"the training waited {waited:.1f} s of {seconds:.0f} s"
        if drops_many:
            effect = f"{human_bytes(refused)} of {human_bytes(requested)} were dropped in {seconds:.0f} s"
        start = (
            f"{self._place} cannot keep up: values of {human_bytes(round(size))} are requested every "
            f"{_steps(interval)}"
        )
        takes = f"and it takes {human_bytes(round(rate))}/s"
        free_seconds = (seconds - waited) / saved  # between saved steps, without waits
        if free_seconds <= 0:
            return f"{start}, {takes}; threads waited {waited:.1f} s in {seconds:.0f} s. Save {_OTHERS}"
        demand = size / free_seconds
        return (
            f"{start} ({free_seconds:.3g} s), {human_bytes(round(demand))}/s, {takes}; {effect}. "
            f"{_proposal(size, demand, rate, interval)}"
        )


def sink_load(session: Session | None, notes: dict[str, Any], warn: Callable[[str], None]) -> SinkLoad | None:
    """The SinkLoad of a hook, which logs its warning and notes it as "slow_sink"; None without a session."""
    if session is None:
        return None

    def report(message: str) -> None:
        notes["slow_sink"] = [message]
        warn(message)

    return SinkLoad(
        session.ring.load,
        place=shown_place(session.out_dir),
        measured=session.sizes.measured,
        report=report,
    )


def _proposal(size: float, demand: float, rate: float, interval: int) -> str:
    """A sentence with settings that fit."""
    if demand > _USABLE * rate:
        first = f"save_interval={_nice(interval * demand / (_USABLE * rate))} would fit"
    else:  # the sink writes a saved step before the next one, but the ring does not hold it
        mib = max(1, 1 << (math.ceil(wanted_bytes(round(size)) / 2**20) - 1).bit_length())
        first = (
            f"RingConfig(ring_bytes={mib} * 2**20) would hold a saved step (device_ring_bytes for tensors on "
            "a GPU), if the machine has the memory"
        )
        if mib > _MOST_RING_MIB:
            first = "No ring holds a saved step of this size, so a smaller part of it has to be saved"
    return f"{first}. Or save {_OTHERS}"


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count:,} steps"


def _nice(number: float) -> int:
    """The smallest whole number with a simple leading digit that is at least `number`."""
    power = int(10 ** max(0, math.floor(math.log10(max(number, 1.0)))))
    return next(math.ceil(digit * power) for digit in _NICE if math.ceil(digit * power) >= number)
