"""Counters of the capture: stored tensors, time, and dropped tensors by reason.

Frozen values that were read from the ring's shared control page; safe in any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from tdcore.text.short_repr import cut, how_many


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Tensors that were not stored as requested for one reason, and their bytes."""

    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals of one worker and attempt since the capture began.

    Attributes:
        captures: Native capture calls.
        tensors: Tensors that were stored as requested.
        payload_bytes: Bytes that were copied into the ring.
        capture_ns: Time of training threads inside capture calls, summed over threads.
        drops: Dropped tensors by reason. Every tensor is counted once.
    """

    captures: int = 0
    tensors: int = 0
    payload_bytes: int = 0
    capture_ns: int = 0
    drops: Mapping[str, Drop] = field(default_factory=lambda: MappingProxyType({}))

    def __repr__(self) -> str:
        dropped = how_many(self.dropped_tensors, "tensor") + " not kept" if self.drops else "no drops"
        time = f"{self.capture_ns / 1e6:,.1f} ms"
        return (
            f"<Counters: {how_many(self.tensors, 'tensor')} in {how_many(self.captures, 'capture')}, "
            f"{self.payload_bytes:,} bytes, {time}; {dropped}>"
        )

    @property
    def capture_time(self) -> timedelta:
        """Time of the training threads inside capture calls."""
        return timedelta(microseconds=self.capture_ns / 1000)

    @property
    def dropped_tensors(self) -> int:
        """Number of tensors that were not stored as requested, for all reasons."""
        return sum(drop.tensors for drop in self.drops.values())

    @property
    def dropped_bytes(self) -> int:
        """Number of bytes that were not stored as requested, for all reasons."""
        return sum(drop.bytes for drop in self.drops.values())

    @classmethod
    def from_ring(cls, raw: Mapping[str, Any]) -> Counters:
        """Create Counters from the result of ``_core.Ring.counters()``, without reasons with zero drops."""
        drops = {
            reason: Drop(tensors=int(drop["tensors"]), bytes=int(drop["bytes"]))
            for reason, drop in raw["drops"].items()
            if drop["tensors"] or drop["bytes"]
        }
        return cls(
            captures=int(raw["captures"]),
            tensors=int(raw["tensors"]),
            payload_bytes=int(raw["payload_bytes"]),
            capture_ns=int(raw["capture_ns"]),
            drops=MappingProxyType(drops),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of the flusher.

    Attributes:
        flusher_epoch: Number of flushers that have attached to the ring.
        records, bytes, rows: Numbers of durable records, bytes and rows so far.
        busy: Time in which the flusher wrote records.
        last_step: The newest durable step; -1 before the first.
        pending_records, pending_bytes: Numbers of records and bytes that are still in the ring.
        errors: Number of failed calls of the sink.
        error: Message of the last failure, or "".
    """

    flusher_epoch: int = 0
    records: int = 0
    bytes: int = 0
    rows: int = 0
    busy: timedelta = timedelta()
    last_step: int = -1
    pending_records: int = 0
    pending_bytes: int = 0
    errors: int = 0
    error: str = ""

    @classmethod
    def from_ring(cls, raw: Mapping[str, Any]) -> Progress:
        """Create Progress from the result of ``_core.Ring.progress()``."""
        return cls(
            flusher_epoch=int(raw["epoch"]),
            records=int(raw["records"]),
            bytes=int(raw["bytes"]),
            rows=int(raw["rows"]),
            busy=timedelta(microseconds=raw["busy_ns"] / 1000),
            last_step=int(raw["last_step"]),
            pending_records=int(raw["pending_records"]),
            pending_bytes=int(raw["pending_bytes"]),
            errors=int(raw["errors"]),
            error=raw["error"] or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """An accelerator whose tensors were captured.

    Attributes:
        device: The number of the device in the framework.
        kernels: Origin of the kernels ("fatbin", "nvrtc").
        rung: How records are committed: "stream_write", "commit_kernel" or "poll".
        rung_reason: Why no faster way is used.
        arena_bytes: Used memory of the device.
        ring_bytes: Pinned host memory for records.
        arena_waits: Records for which the training's stream waited until earlier copies had freed the arena.
        early_commits: Records that were committed before their values; each was detected and read later.
        in_flight: Records that the device has not written yet.
        error: The reason why the device is not used; "" if the device is used.
    """

    device: int
    name: str
    kernels: str
    rung: str
    rung_reason: str
    arena_bytes: int
    ring_bytes: int
    arena_waits: int
    early_commits: int
    in_flight: int
    error: str

    @classmethod
    def from_ring(cls, raw: Mapping[str, Any]) -> DeviceReport:
        """Create a report from an element of the result of ``_core.Ring.device_reports()``."""
        return cls(**raw)

    def as_note(self) -> dict[str, str | int]:
        """The values for the run's documents, without momentary counts and empty values."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "in_flight" and value not in ("", 0)
        } | {"device": self.device}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseReport:
    """Result of closing a session.

    Attributes:
        drained: Whether all captured data is durable and the flusher has ended normally.
        records_left, bytes_left: Data that is still in the ring. A flusher process continues to write this
            data, a flusher thread cannot. After a permanent failure of the flusher, for example with a full
            disk, the data is lost and counted in counters.drops.
        reason: The reason why `drained` is False; "" if `drained` is True.
        waited: Duration of close().
        restarts: Number of restarts of the flusher after a crash.
        devices: Accelerators with captured tensors.
    """

    drained: bool
    records_left: int
    bytes_left: int
    reason: str
    waited: timedelta
    restarts: int
    counters: Counters
    progress: Progress
    devices: tuple[DeviceReport, ...] = ()

    def __repr__(self) -> str:
        state = "all data is written"
        if not self.drained:
            left = how_many(self.records_left, "record")
            state = f"{left} ({self.bytes_left:,} bytes) not written yet: {self.reason}"
        waited = f"{self.waited.total_seconds():.1f} s"
        return cut(f"<CloseReport: {state}; {how_many(self.progress.rows, 'row')}, waited {waited}>")
