"""fetch_all: send several requests to a sink at the same time, if the sink supports this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tdcore.sinks.base import ReadAheadSink

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["fetch_all"]

_AT_ONCE = 8

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def fetch_all(sink: Sink, ask: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Results of ask(item) for each item, in order of items.

    A ReadAheadSink is remote and accepts calls from any thread, so several threads call it. Raises the
    exception of the first failing call.
    """
    if len(items) < 2 or not isinstance(sink, ReadAheadSink):
        return [ask(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _AT_ONCE), "tdcore-fetch") as pool:
        return list(pool.map(ask, items))
