"""Module outputs that an unfinished collective writes. They are read after the training has waited for it.

For example, RowwiseParallel returns such an output, and the next operator waits for the collective. Until
then the values must not be read, and tdcore does not wait (sharding.py explains why). The tensor is kept
until the next capture or the end of the root's forward. Then it is captured under its own step and call, if
the collective has finished and the tensor has not changed. Otherwise a row with status "skipped" is written.
Threads: any; one thread at a time empties the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tdcore.hooks.plan import CaptureSpec

__all__ = ["AsyncOutputs"]


class PendingOutput(NamedTuple):
    """An output that is captured later.

    Attributes:
        whole: The output of the module.
        local: This rank's shard of it.
        version: Version of the output when the module returned it.
        when: Step, mode, mode step, call.
    """

    whole: torch.Tensor
    local: Any
    version: int
    capture_spec: CaptureSpec
    when: tuple[int, int, int, int]


class AsyncOutputs:
    """List of such outputs, each stored at most until the end of a forward. native: Ring.capture()."""

    def __init__(self, native: Callable[..., int]) -> None:
        self._native = native
        self.pending: list[PendingOutput] = []

    def keep(
        self, whole: torch.Tensor, local: Any, capture_spec: CaptureSpec, when: tuple[int, int, int, int]
    ) -> bool:
        """Store an output. Return False if a later change of the tensor could not be detected."""
        if whole.is_inference():
            return False
        self.pending.append(PendingOutput(whole, local, whole._version, capture_spec, when))
        return True

    def take(self, *, last: bool) -> None:
        """Capture the finished outputs. last: Also write a row without values for each unfinished output."""
        waiting, self.pending = self.pending, []
        for kept in waiting:
            finished = kept.local.completed
            if not finished and not last:
                self.pending.append(kept)
                continue
            same = finished and kept.whole._version == kept.version
            value = kept.local.elem if same else torch.empty(0, device="meta")  # no bytes: "skipped"
            self._native([value], kept.capture_spec.ids, kept.capture_spec.flags, *kept.when)
