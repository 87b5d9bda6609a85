"""How a flusher behaves: sizes, times and bounds, with defaults that suit a training job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

__all__ = ["FlusherOptions"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FlusherOptions:
    """Values are checked where they are made; in JSON, durations are seconds.

    segment_bytes: a flush takes at most this much out of the ring, and no more than a quarter of the ring; it
    starts when so much is there.
    visible_delay: a record waits at most about this long before it is written.
    min_poll, max_poll: pause between two looks at the ring, right after there was work to do, and when
    nothing has happened for long (a look wakes a process and costs about 0.1 ms of CPU). busy_poll: longest
    pause while the ring fills fast.
    heartbeat: between two reports to the trainer. stop_poll: between two looks for requests in control/;
    remote_stop_poll: the same where the run is in a bucket, which charges for each look (there are two
    keys to look for).
    merge_fan_in: so many small index files become one. small_index_bytes, small_segment_bytes: what "small"
    is.
    merged_segment_bytes: no merged segment is larger. grace: how long files stay after they were merged.
    spill_after: how long a bucket is tried before data is kept back on the local disk. spill_fill: share of
    the ring above which it is kept back at once.
    retry_delay: pause after the sink refused. give_up_fill: share of the ring above which, while the sink
    refuses, payloads are given up, oldest first. kept_bytes: memory for the rows of given-up payloads.
    end_deadline: how long, at the end, a sink that refuses everything is tried again.
    final_merge: most time spent on merging at the end. catch_up: the same while far more small files are left
    than a run should have, as after the death of a flusher.
    """

    segment_bytes: int = 64 * _MIB
    visible_delay: timedelta = timedelta(seconds=1)
    min_poll: timedelta = timedelta(milliseconds=1)
    busy_poll: timedelta = timedelta(milliseconds=10)
    max_poll: timedelta = timedelta(milliseconds=100)
    heartbeat: timedelta = timedelta(milliseconds=250)
    stop_poll: timedelta = timedelta(milliseconds=500)
    remote_stop_poll: timedelta = timedelta(seconds=2)
    merge_fan_in: int = 16
    small_index_bytes: int = 2 * _MIB
    small_segment_bytes: int = 4 * _MIB
    merged_segment_bytes: int = 64 * _MIB
    grace: timedelta = timedelta(seconds=3)
    spill_after: timedelta = timedelta(seconds=5)
    spill_fill: float = 0.5
    retry_delay: timedelta = timedelta(seconds=1)
    give_up_fill: float = 0.5
    kept_bytes: int = 32 * _MIB
    end_deadline: timedelta = timedelta(seconds=60)
    final_merge: timedelta = timedelta(seconds=5)
    catch_up: timedelta = timedelta(seconds=60)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, timedelta):
                if value < timedelta():
                    raise ValueError(f"{each.name} must not be negative, got {value}")
            elif each.name.endswith("_fill"):
                if not 0 < value <= 1:
                    raise ValueError(f"{each.name} must be above 0 and at most 1, got {value}")
            elif value < (2 if each.name == "merge_fan_in" else 0):
                raise ValueError(f"{each.name} is too small: {value}")
        if self.segment_bytes < 1:
            raise ValueError(f"segment_bytes must be at least 1, got {self.segment_bytes}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FlusherOptions:
        """From what as_json() gives. Names that do not exist are a ValueError."""
        defaults = {each.name: each.default for each in fields(cls)}
        unknown = sorted(set(values) - set(defaults))
        if unknown:
            raise ValueError(f"unknown flusher options {unknown}; known are {sorted(defaults)}")
        made: dict[str, Any] = {
            name: timedelta(seconds=value) if isinstance(defaults[name], timedelta) else value
            for name, value in values.items()
        }
        return cls(**made)

    def as_json(self) -> dict[str, int | float]:
        """Numbers only, for the flusher process."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in values.items()
        }
