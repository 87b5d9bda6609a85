"""The result of a job after its end, and the result of its scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Outcome", "Result"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a job. captured: step -> number of tensors that the capture left out.

    unsure: steps that may be there, completely or in part, because their capture was interrupted. clean: the
    trainer closed the ring. drops: number of tensors by reason; None if no process was left to report them.
    lossy: the last flusher was killed with the trainer, or had to drop the rest, so records in the ring are
    lost. storage: retries, spooled_objects and spooled_bytes of all flushers, if these can be read.
    """

    captured: Mapping[int, int]
    unsure: frozenset[int] = frozenset()
    clean: bool
    restarts: int
    drops: Mapping[str, int] | None
    storage: Mapping[str, int] = field(default_factory=dict)
    lossy: bool = False


@dataclass(kw_only=True)
class Result:
    """Result of one scenario, for the summary."""

    number: int
    replay: str
    processes: bool = False
    seconds: float = 0.0
    error: str = ""
    struck: dict[str, int] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    tensors: int = 0
    dropped: int = 0
    retries: int = 0
    spooled_objects: int = 0
    spooled_bytes: int = 0
    uploaded: int = 0
    restarts: int = 0
    strays: int = 0
