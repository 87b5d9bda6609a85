"""A ring that only counts, for hooks that write nothing (dry_run). Single-threaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdcore.hooks.plan import PAYLOAD
from tdcore.session.counters import Counters

__all__ = ["NullRing"]


class NullRing:
    """Counter with the methods of _core.Ring that a hook calls."""

    usable = True

    def __init__(self) -> None:
        self._captures = self._tensors = self._bytes = 0
        self._names: dict[tuple[str, str], int] = {}

    def intern(self, name: str, kind: int, origin: str = "", shard: str = "") -> int:
        """The id of the name."""
        return self._names.setdefault((name, shard), len(self._names))

    def capture(
        self,
        tensors: Sequence[Any],
        names: object,
        flags: bytes,
        step: int,
        mode: int,
        mode_step: int,
        call: int = 0,
    ) -> int:
        """Count the tensors that have a value, and the bytes of those whose payload is requested."""
        self._captures += 1
        for tensor, flag in zip(tensors, flags, strict=True):
            if tensor is not None:
                self._tensors += 1
                self._bytes += _bytes_of(tensor) if flag & PAYLOAD else 0
        return 0

    def mark_step_end(self, step: int) -> bool:
        """Do nothing: there is no reader."""
        return True

    def prepare_device(self, device: int) -> bool:
        """Do nothing: no values are read."""
        return True

    def graph_devices(self) -> list[int]:
        """Return no devices: no values are read."""
        return []

    def device_refusals(self) -> str:
        """Return "": no device is used."""
        return ""

    def growth_refusal(self) -> str:
        """Return "": no memory is allocated."""
        return ""

    def device_reports(self) -> list[dict[str, Any]]:
        """Return no reports: no device is used."""
        return []

    def was_asked(self) -> bool:
        """Return False: there is no run, so there are no requests."""
        return False

    def counters(self) -> Counters:
        """Counts of the tensors that a run would have recorded."""
        return Counters(captures=self._captures, tensors=self._tensors, payload_bytes=self._bytes)


def _bytes_of(tensor: Any) -> int:
    try:
        return int(tensor.nbytes)
    except RuntimeError:  # a sparse tensor, which a ring skips
        return 0
