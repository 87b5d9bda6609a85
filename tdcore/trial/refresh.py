"""no_refresh and refresh: hold the answers of trials still, or let them follow the run, within a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tdcore.trial.trial import Trial

__all__ = ["no_refresh", "refresh"]


@contextmanager
def no_refresh(trials: Trial | Iterable[Trial]) -> Iterator[None]:
    """Within the block, these trials answer from what they have read so far."""
    with _frozen(trials, True):
        yield


@contextmanager
def refresh(trials: Trial | Iterable[Trial]) -> Iterator[None]:
    """Within the block, these trials look at their runs with every question, as they do by default."""
    with _frozen(trials, False):
        yield


@contextmanager
def _frozen(trials: Trial | Iterable[Trial], frozen: bool) -> Iterator[None]:
    each = [trials] if isinstance(trials, Trial) else list(trials)
    before = [trial.frozen for trial in each]
    for trial in each:
        trial.frozen = frozen
    try:
        yield
    finally:
        for trial, was in zip(each, before, strict=True):
            trial.frozen = was
