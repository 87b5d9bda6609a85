"""The order of workers: by rank, if the names end with a rank. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["first_worker", "worker_order"]


def worker_order(worker: str) -> tuple[str, int, str]:
    """Sort key that puts worker_2 before worker_10."""
    head, _, tail = worker.rpartition("_")
    return (
        (head, int(tail), "") if tail.isascii() and tail.isdigit() and len(tail) < 10 else (worker, -1, tail)
    )


def first_worker(workers: Iterable[str]) -> str:
    """The first of these workers by rank. Needs at least one worker."""
    return min(workers, key=worker_order)
