"""Stands in for a ring when nothing is to be written (dry_run): counts what would be. Single-threaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tdcore.hooks.plan import PAYLOAD
from tdcore.session.counters import Counters

__all__ = ["DryRing"]


class DryRing:
    """The calls of _core.Ring that a hook makes."""

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
        """Counts the tensors that have a value, and the bytes of those whose payload is asked for."""
        self._captures += 1
        for tensor, flag in zip(tensors, flags, strict=True):
            if tensor is not None:
                self._tensors += 1
                self._bytes += _bytes_of(tensor) if flag & PAYLOAD else 0
        return 0

    def mark_step_end(self, step: int) -> bool:
        """Nobody waits for the end of a step."""
        return True

    def prepare_device(self, device: int) -> bool:
        """Nothing is read, so nothing is set up."""
        return True

    def device_refusals(self) -> str:
        """No device is used, so none is refused."""
        return ""

    def growth_refusal(self) -> str:
        """No memory is taken."""
        return ""

    def expect(self, size: int) -> None:
        """No memory is taken."""

    def device_reports(self) -> list[dict[str, Any]]:
        """No device is used."""
        return []

    def was_asked(self) -> bool:
        """Nobody asks anything of a run that is not there."""
        return False

    def counters(self) -> Counters:
        """What a run would have kept."""
        return Counters(captures=self._captures, tensors=self._tensors, payload_bytes=self._bytes)


def _bytes_of(tensor: Any) -> int:
    try:
        return int(tensor.nbytes)
    except RuntimeError:  # a sparse tensor, which a ring skips
        return 0
