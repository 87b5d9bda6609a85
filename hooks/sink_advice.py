"""Shortage: the text of the warning that a sink does not keep up, with settings that fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tdcore.session.ring_sizes import wanted_bytes
from tdcore.text.numbers import human_bytes

__all__ = ["Shortage", "Traffic"]

_USABLE = 0.8  # share of the sink's rate that a proposed interval may use
_MOST_RING_MIB = 64 * 1024
_MOST_SLOTS = 1 << 20
_STATISTICS = "statistics only (reduction_config=ReductionConfig())"
_FEWER = "fewer tensors (include_regex)"
_NICE = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)  # leading digits of proposed intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requested and written data of a window.

    Attributes:
        requested: Requested data of all saved steps: bytes, or the number of tensors if `in_rows`.
        payload: Bytes of requested values.
        rows: Number of requested tensors.
        rate: Data that the sink takes per second in which it has work.
        concurrent: Uploads in progress, on average, while the sink has work; 0 for a disk.
        in_rows: Whether the number of tensors is the limit, and not their bytes.
    """

    requested: float
    payload: float
    rows: int
    rate: float
    concurrent: float = 0.0
    in_rows: bool = False

    def amount(self, size: float) -> str:
        """A size in the unit of these numbers, such as "1.5 MB" or "1,000 tensors"."""
        return _tensors(round(size)) if self.in_rows else human_bytes(round(size))

    @property
    def has_values(self) -> bool:
        """Whether values are most of the data, and not statistics."""
        return not self.in_rows and 2 * self.payload >= self.requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Effects of a sink that is too slow, in a window of `seconds` with `saved` saved steps.

    Attributes:
        interval: Steps from one saved step to the next.
        waited: Seconds that threads waited for room.
        dropped: Dropped data in the unit of the traffic; 0 if the drops are not the reason of the warning.
        spooled: Bytes in the spool at the end; 0 if the spool is not the reason.
    """

    seconds: float
    saved: int
    interval: int
    waited: float
    dropped: float
    spooled: float

    def message(self, traffic: Traffic, *, place: str, worker: str, slots: int) -> str:
        """The warning. place, worker, slots: see SinkLoad."""
        size, seconds = traffic.requested / self.saved, self.seconds
        if self.dropped:
            effect = f"{traffic.amount(self.dropped)} of {traffic.amount(traffic.requested)} were dropped"
        elif self.spooled:
            effect = f"{human_bytes(round(self.spooled))} wait in the spool on the local disk"
        else:
            effect = f"the training waited {self.waited:.1f} s"
        place = f"{place} cannot keep up" + (f" with {worker}" if worker else "")
        start = f"{place}: {self._requested(traffic, size)} requested every {_steps(self.interval)}"
        takes = f"it takes {traffic.amount(traffic.rate)}/s"
        if traffic.concurrent:
            takes += f" with {max(1.0, traffic.concurrent):.2g} uploads at a time"
        if worker:
            takes += f" from {worker}, while other workers write too"
        free_seconds = (seconds - self.waited) / self.saved  # between saved steps, without waits
        fewer = f"{_STATISTICS} or {_FEWER}" if traffic.has_values else _FEWER
        if free_seconds <= 0:
            return (
                f"{start}, and {takes}; threads waited {self.waited:.1f} s in {seconds:.0f} s. Save {fewer}"
            )
        demand = size / free_seconds
        return (
            f"{start} ({free_seconds:.3g} s), {traffic.amount(demand)}/s, and {takes}; {effect}"
            f"{' after' if self.spooled and not self.dropped else ' in' if self.dropped else ' of'} "
            f"{seconds:.0f} s. {self._proposal(traffic, size, demand, slots)}. Or save {fewer}"
        )

    def _requested(self, traffic: Traffic, size: float) -> str:
        if traffic.has_values:
            return f"values of {human_bytes(round(size))} are"
        rows = f"statistics of {_tensors(round(traffic.rows / self.saved))}"
        return f"{rows} are" if traffic.in_rows else f"{rows} ({human_bytes(round(size))}) are"

    def _proposal(self, traffic: Traffic, size: float, demand: float, slots: int) -> str:
        """A sentence with a setting that fits."""
        if demand > _USABLE * traffic.rate:
            interval = _nice(self.interval * demand / (_USABLE * traffic.rate))
            return f"save_interval={interval} would fit"
        # The sink writes a saved step before the next one, but the ring does not hold it.
        rows = traffic.rows / self.saved
        if rows * 9 / 8 > slots or traffic.in_rows:
            needed = 1 << (math.ceil(max(rows * 9 / 8, slots + 1)) - 1).bit_length()
            if needed > _MOST_SLOTS:
                return "No ring holds a saved step of this many tensors, so fewer have to be saved"
            return f"RingConfig(slots={needed}) would hold a saved step"
        mib = max(1, 1 << (math.ceil(wanted_bytes(round(size)) / 2**20) - 1).bit_length())
        if mib > _MOST_RING_MIB:
            return "No ring holds a saved step of this size, so a smaller part of it has to be saved"
        return (
            f"RingConfig(ring_bytes={mib} * 2**20) would hold a saved step (device_ring_bytes for tensors on "
            "a GPU), if the machine has the memory"
        )


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count:,} tensors"


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count:,} steps"


def _nice(number: float) -> int:
    """The smallest whole number with a simple leading digit that is at least `number`."""
    power = int(10 ** max(0, math.floor(math.log10(max(number, 1.0)))))
    return next(math.ceil(digit * power) for digit in _NICE if math.ceil(digit * power) >= number)
