"""no_refresh and refresh: stop or resume the reading of new data by trials within a `with` block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tdcore.trial.trial import Trial

__all__ = ["no_refresh", "refresh"]


@contextmanager
def no_refresh(trials: Trial | Iterable[Trial]) -> Iterator[None]:
    """Within the block, these trials use only data that they have read before."""
    with _frozen(trials, True):
        yield


@contextmanager
def refresh(trials: Trial | Iterable[Trial]) -> Iterator[None]:
    """Within the block, every method of these trials first reads new data, as by default."""
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
