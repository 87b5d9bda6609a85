"""SinkLoad: whether the sink keeps up with the requested data, and a warning, once, if it does not.

The numbers are read when a saved step begins. They are totals of the ring (`Load`). A wait is an effect of
the policy "block"; drops are effects of "drop" and "degrade"; a growing spool is an effect of a bucket.

The warning needs all of the following, so that the first step, the slow start of a bucket or a single wait
cause none: a window of at least 10 s and 4 saved steps, without the first saved step; an effect in at least 3
intervals between samples; and in total, without the largest effect, waits of 5 % of the window, drops of 5 %
of the requested data, or a spool that grew by 5 % of the data.

For a bucket the intervals begin and end when the bucket has accepted an object. The interval with the lowest
rate does not count for the growth of the spool, so that an outage is not taken for a slow bucket.

If several threads wait at the same time, their waits are added, so the time between two saved steps without
waits is too short, or unknown.

Threads: the training thread. Cost: one native call per saved step; other work happens at most 4 times per
second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tdcore.hooks.sink_advice import Shortage, Traffic
from tdcore.sinks import shown_place

if TYPE_CHECKING:
    from tdcore.session import Session

__all__ = ["Load", "SinkLoad", "sink_load"]

_SAMPLE_SECONDS = 0.25
_MIN_SECONDS, _MAX_SECONDS = 10.0, 60.0
_MOST_SAMPLES = 2400  # of a window that is longer because a bucket has accepted few objects
_MIN_STEPS = 4
_MIN_INTERVALS = 3  # with an effect
_MIN_ACCEPTED = 8  # samples in which a bucket has accepted more objects
_KEPT_ACCEPTED = 24  # the same: a window of a bucket that has fewer is longer than _MAX_SECONDS
_SHARE = 0.05
_ROW_BYTES = 1024  # records with less data are limited by their number, like statistics


class Load(NamedTuple):
    """Totals of a ring, the result of `Ring.load()`. Sizes in bytes, times in nanoseconds.

    Attributes:
        stored, refused, written: Payloads that are in the ring, found no room, and are durable.
        stored_rows, refused_rows, written_rows: The same for the number of tensors.
        waited: Time that threads waited for room.
        busy: Time in which the sink had work.
        durable, accepted: Objects in the bucket or its spool, and objects in the bucket. 0 for a disk.
        uploads: Time of all uploads, added up.
    """

    stored: int = 0
    refused: int = 0
    written: int = 0
    stored_rows: int = 0
    refused_rows: int = 0
    written_rows: int = 0
    waited: int = 0
    busy: int = 0
    durable: int = 0
    accepted: int = 0
    uploads: int = 0

    def since(self, before: Load) -> Load:
        """The differences from an earlier load."""
        return Load(*(now - then for now, then in zip(self, before, strict=True)))


class _Sample(NamedTuple):
    """Totals when a saved step begins. saved: number of saved steps before this one."""

    time: float
    step: int
    saved: int
    load: Load


class SinkLoad:
    """Comparison of requested and written data of one hook.

    Args:
        load: `Ring.load()` of the hook's ring.
        place: Name of the sink in messages.
        slots: Maximum number of records in the ring.
        measured: Called with the bytes of each saved step that is larger than all saved steps before.
        report: Called once with the warning.
        worker: Name of this worker if several workers write to the place; else "".
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        load: Callable[[], tuple[int, ...]],
        *,
        place: str,
        slots: int,
        measured: Callable[[int], None],
        report: Callable[[str], None],
        worker: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._place = place
        self._worker = worker
        self._slots = slots
        self._measured = measured
        self._report = report
        self._clock = clock
        self._samples: deque[_Sample] = deque()
        self._accepted = 0  # intervals of the window in which a bucket has accepted objects
        self._saved = -1  # number of saved steps that are complete
        self._requested = 0  # bytes before the last saved step
        self._largest = 0
        self._reported = False

    def begin_saved_step(self, step: int) -> None:
        """Read the totals before the saved step with this number."""
        load = Load(*self._load())
        self._saved += 1
        size = load.stored + load.refused - self._requested
        self._requested += size
        if size > self._largest:
            self._largest = size
            self._measured(size)
        now = self._clock()
        if self._reported or self._saved == 0:  # the window begins after the first saved step
            return
        if self._samples and now - self._samples[-1].time < _SAMPLE_SECONDS:
            return
        new = bool(self._samples) and load.accepted > self._samples[-1].load.accepted
        self._accepted += new
        self._samples.append(_Sample(now, step, self._saved, load))
        self._forget_old()
        if load.durable and not new:
            return  # the last interval of a bucket is not complete
        message = self._message()
        if message:
            self._reported = True
            self._samples.clear()
            self._report(message)

    def _forget_old(self) -> None:
        samples, last = self._samples, self._samples[-1]
        while len(samples) > 2:
            first, second = samples[0], samples[1]
            age, accepted = last.time - second.time, second.load.accepted > first.load.accepted
            if age < _MAX_SECONDS or last.saved - second.saved < _MIN_STEPS:
                return
            few = last.load.durable and self._accepted - accepted < _KEPT_ACCEPTED
            if few and len(samples) <= _MOST_SAMPLES:
                return
            self._accepted -= accepted
            samples.popleft()

    def _message(self) -> str:
        """The warning; "" if the sink keeps up."""
        first, last = self._samples[0], self._samples[-1]
        seconds, saved = last.time - first.time, last.saved - first.saved
        if seconds < _MIN_SECONDS or saved < _MIN_STEPS:
            return ""
        total, is_bucket = last.load.since(first.load), last.load.durable > 0
        if not (
            total.waited or total.refused_rows or total.refused or last.load.durable > last.load.accepted
        ):
            return ""  # the usual case, at little cost
        parts = [after.load.since(before.load) for before, after in pairwise(self._samples)]
        uploaded = self._uploaded() if is_bucket else []
        usual = _without_slowest(uploaded)
        traffic = _traffic(total, uploaded, is_bucket)
        if traffic is None:
            return ""  # if nothing was written, the sink fails, which is reported elsewhere
        waits = [part.waited / 1e9 for part in parts]
        drops = [float(part.refused_rows if traffic.in_rows else part.refused) for part in parts]
        growth = [float(part.durable - part.accepted) for part in usual]
        became_durable = sum(part.durable for part in usual)
        shortage = Shortage(
            seconds=seconds,
            saved=saved,
            interval=max(1, round((last.step - first.step) / saved)),
            waited=sum(waits),
            dropped=sum(drops) if _is_often(drops, traffic.requested) else 0.0,
            spooled=float(last.load.durable - last.load.accepted) if _grows(growth, became_durable) else 0.0,
        )
        if not (shortage.dropped or shortage.spooled or _is_often(waits, seconds)):
            return ""
        return shortage.message(traffic, place=self._place, worker=self._worker, slots=self._slots)

    def _uploaded(self) -> list[Load]:
        """Intervals between samples in which a bucket has accepted objects; [] if they are few."""
        ends = [
            after.load
            for before, after in pairwise(self._samples)
            if after.load.accepted > before.load.accepted
        ]
        return [after.since(before) for before, after in pairwise(ends)] if len(ends) >= _MIN_ACCEPTED else []


def _without_slowest(parts: list[Load]) -> list[Load]:
    """All parts except the one with the lowest rate, which may contain an outage."""
    slowest = min(parts, key=lambda part: part.accepted / max(part.busy, 1), default=None)
    return [part for part in parts if part is not slowest]


def _traffic(total: Load, uploaded: list[Load], is_bucket: bool) -> Traffic | None:
    """What was requested and written in the window; None if nothing was written."""
    requested, rows = total.stored + total.refused, total.stored_rows + total.refused_rows
    if is_bucket:
        # The objects of a bucket have the payloads and the rows of an index, so rows are converted to bytes.
        busy = sum(part.busy for part in uploaded)
        if not busy or not total.written_rows:
            return None
        row_bytes = max(0, total.durable - total.written) / total.written_rows
        return Traffic(
            requested=requested + rows * row_bytes,
            payload=requested,
            rows=rows,
            rate=sum(part.accepted for part in uploaded) / busy * 1e9,
            concurrent=sum(part.uploads for part in uploaded) / busy,
        )
    in_rows = requested < rows * _ROW_BYTES
    written = total.written_rows if in_rows else total.written
    if written <= 0 or total.busy <= 0:
        return None
    return Traffic(
        requested=rows if in_rows else requested,
        payload=requested,
        rows=rows,
        rate=written / total.busy * 1e9,
        in_rows=in_rows,
    )


def _is_often(effects: list[float], whole: float) -> bool:
    """Whether an effect has a large share of `whole` without its largest value, and occurs several times."""
    share = sum(effects) - max(effects)
    return share >= _SHARE * max(whole, 1e-9) and sum(each > 0 for each in effects) >= _MIN_INTERVALS


def _grows(growth: list[float], size: float) -> bool:
    """Whether the spool has grown, and not only once. size: bytes that became durable."""
    return bool(growth) and sum(growth) > 0 and _is_often(growth, size)


def sink_load(
    session: Session | None, notes: dict[str, Any], warn: Callable[[str], None], writers: int = 1
) -> SinkLoad | None:
    """The SinkLoad of a hook, which logs its warning and notes it as "slow_sink"; None without a session.

    writers: number of workers that write to the place.
    """
    if session is None:
        return None

    def report(message: str) -> None:
        notes["slow_sink"] = [message]
        warn(message)

    return SinkLoad(
        session.ring.load,
        place=shown_place(session.out_dir),
        slots=session.ring.slots,
        measured=session.sizes.measured,
        report=report,
        worker=session.worker if writers > 1 else "",
    )
