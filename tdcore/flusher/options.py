"""FlusherOptions: sizes, times and limits of a flusher, with defaults for a training job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

__all__ = ["FlusherOptions"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FlusherOptions:
    """Options of a flusher, checked by the constructor. In JSON, durations are seconds.

    Attributes:
        segment_bytes: Maximum size of one flush, which is also at most a quarter of the ring. A flush starts
            when the ring has data of this size.
        visible_delay: Maximum time, approximately, until a record is written.
        min_poll: Pause between two polls of the ring after a poll with work.
        busy_poll: Longest pause while the ring fills fast.
        max_poll: Longest pause otherwise. A poll wakes the process and costs about 0.1 ms of CPU.
        heartbeat: Interval of reports to the trainer.
        stop_poll: Interval of polls for requests in control/.
        remote_stop_poll: The same for a run in a bucket, where each poll of the two keys costs money.
        merge_fan_in: Number of small index files that are merged into one.
        small_index_bytes, small_segment_bytes: Maximum sizes of small files.
        merged_segment_bytes: Maximum size of a merged segment.
        large_index_bytes: Approximate maximum size of the index files that remain when a run has ended.
        grace: Time for which merged files are kept before they are deleted.
        spill_after: Time for which an upload to a bucket is tried before objects are stored in the spool.
        spill_fill: Share of the ring above which objects are stored in the spool immediately.
        retry_delay: Pause after a failure of the sink.
        give_up_fill: Share of the ring above which payloads are dropped, oldest first, while the sink fails.
        kept_bytes: Memory for the rows of dropped payloads.
        end_deadline: Time for which a failing sink is retried at the end.
        full_deadline: The same for a disk without space.
        final_merge: Maximum time for merging at the end.
        catch_up: The same if far too many small files are left, for example after a crash of a flusher.
        system_interval: Interval of samples of the machine and the trainer's processes; 0: no samples.
        row_delay: Interval of writes of these samples.
        remote_row_delay: The same for a run in a bucket, which charges for each write.
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
    large_index_bytes: int = 128 * _MIB
    grace: timedelta = timedelta(seconds=3)
    spill_after: timedelta = timedelta(seconds=5)
    spill_fill: float = 0.5
    retry_delay: timedelta = timedelta(seconds=1)
    give_up_fill: float = 0.5
    kept_bytes: int = 32 * _MIB
    end_deadline: timedelta = timedelta(seconds=60)
    full_deadline: timedelta = timedelta(seconds=5)
    final_merge: timedelta = timedelta(seconds=5)
    catch_up: timedelta = timedelta(seconds=60)
    system_interval: timedelta = timedelta(milliseconds=500)
    row_delay: timedelta = timedelta(seconds=5)
    remote_row_delay: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, timedelta):
                if value < timedelta():
                    raise ValueError(f"{each.name} must not be negative, got {value}")
            elif each.name.endswith("_fill"):
                if not 0 < value <= 1:
                    raise ValueError(f"{each.name} must be above 0 and at most 1, got {value}")
            elif value < (least := 2 if each.name == "merge_fan_in" else 0):
                raise ValueError(f"{each.name} must be at least {least}, got {value}")
        if self.segment_bytes < 1:
            raise ValueError(f"segment_bytes must be at least 1, got {self.segment_bytes}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FlusherOptions:
        """Options from the result of as_json(). Raises ValueError for unknown names."""
        defaults = {each.name: each.default for each in fields(cls)}
        unknown = sorted(set(values) - set(defaults))
        if unknown:
            raise ValueError(f"unknown flusher options {unknown}; use {sorted(defaults)}")
        made: dict[str, Any] = {
            name: timedelta(seconds=value) if isinstance(defaults[name], timedelta) else value
            for name, value in values.items()
        }
        return cls(**made)

    def as_json(self) -> dict[str, int | float]:
        """Return the options as JSON numbers, for the flusher process."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in values.items()
        }
