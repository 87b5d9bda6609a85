"""BucketMachine: a training that saves to a bucket, in simulated time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tdcore.hooks.sink_load import Load, SinkLoad

_EPSILON = 1e-9


@dataclass
class _Object:
    size: float
    latency: float  # seconds until its first byte is accepted
    left: float  # bytes
    spooled: bool = False


class BucketMachine:
    """A training that saves `size` bytes every `interval` steps of `seconds`, a ring, a spool and a bucket.

    Args:
        total: Bytes per second of all uploads.
        each: Bytes per second of one upload.
        latency: Seconds before an upload's first byte.
        concurrency: Number of uploads at a time.
        ring: Bytes. Data goes to the spool while more than half of the ring is full, and until the spool is
            empty.
        outage: Times from and until which the bucket accepts nothing.
        tensors: Number of tensors per saved step, with 50 bytes each in the index.
    """

    def __init__(
        self,
        *,
        size: int,
        interval: int,
        seconds: float,
        total: float,
        ring: int,
        each: float = 1e12,
        latency: float = 0.0,
        concurrency: int = 8,
        outage: tuple[float, float] = (0.0, 0.0),
        tensors: int = 10,
    ) -> None:
        self.size, self.interval, self.seconds, self.tensors = size, interval, seconds, tensors
        self.total, self.each, self.latency, self.concurrency = total, each, latency, concurrency
        self.ring, self.outage = ring, outage
        self.now = self.busy = self.uploads = 0.0
        self.stored = self.rows = self.step = 0
        self.durable = self.accepted = 0.0
        self.queue: deque[_Object] = deque()
        self.warnings: list[str] = []
        self.load = SinkLoad(
            self.totals,
            place="s3://bucket/demo",
            slots=16384,
            measured=lambda size: None,
            report=self.warnings.append,
            clock=lambda: self.now,
        )

    def totals(self) -> tuple[int, ...]:
        """What Ring.load() would return."""
        saved = self.size + 50 * self.tensors
        return Load(
            stored=self.stored,
            written=int(self.durable * self.size / saved),
            stored_rows=self.rows,
            written_rows=int(self.durable * self.tensors / saved),
            busy=int(self.busy * 1e9),
            durable=int(self.durable),
            accepted=int(self.accepted),
            uploads=int(self.uploads * 1e9),
        )

    def save(self) -> None:
        """Put a saved step into the ring, and what the ring should not hold into the spool."""
        self.stored += self.size
        self.rows += self.tensors
        left = float(self.size + 50 * self.tensors)
        largest = max(left / 16, self.ring / 16)
        while left > _EPSILON:
            size = min(left, largest)
            self.queue.append(_Object(size, self.latency, size))
            left -= size
        if any(each.spooled for each in self.queue) or self.size > self.ring / 2:
            self.spill()

    def spill(self) -> None:
        """Store all objects in the spool that are in memory."""
        for each in self.queue:
            if not each.spooled:
                each.spooled, each.left, each.latency = True, each.size, self.latency
                self.durable += each.size

    def pass_time(self, seconds: float) -> None:
        """Upload for some seconds."""
        end = self.now + seconds
        while self.now < end - _EPSILON:
            first, last = self.outage
            out = first <= self.now < last
            limit = min([end, *(at for at in (first, last) if at > self.now + _EPSILON)]) - self.now
            active = [self.queue[place] for place in range(min(self.concurrency, len(self.queue)))]
            sending = [each for each in active if each.latency <= _EPSILON]
            rate = 0.0 if out else min(self.each, self.total / max(1, len(sending)))
            if not out:
                limit = min([limit, *(each.latency for each in active if each.latency > _EPSILON)])
                limit = min([limit, *(each.left / rate for each in sending)])
            self.now += limit
            if active:
                self.busy += limit
                self.uploads += limit * len(active)
            for each in active:
                if not out and each.latency > _EPSILON:
                    each.latency -= limit
                elif not out:
                    each.left -= limit * rate
            self._accept()

    def _accept(self) -> None:
        for each in [each for each in self.queue if each.left <= 1e-6 * each.size + _EPSILON]:
            self.queue.remove(each)
            self.accepted += each.size
            self.durable += 0 if each.spooled else each.size

    def train(self, saved_steps: int) -> list[str]:
        """Save steps, and return the warnings."""
        for _ in range(saved_steps):
            self.load.begin_saved_step(self.step)
            self.save()
            if sum(each.size for each in self.queue if not each.spooled) > self.ring / 2:
                self.spill()
            self.step += self.interval
            self.pass_time(self.interval * self.seconds)
        return self.warnings
