"""put_request: store a request to a running training under the next free number. Threads: see Sink."""

from __future__ import annotations

from tdcore.format.control import MAX_CAPTURE_REQUESTS
from tdcore.format.layout import capture_key
from tdcore.sinks.base import Sink

__all__ = ["put_request"]


def put_request(sink: Sink, attempt: int, data: bytes, first: int = 0) -> int | None:
    """Store a request to capture or to profile more in an attempt.

    Args:
        sink: Sink of the run.
        attempt: Number of the attempt.
        data: The document of the request.
        first: Lowest number that may be free.

    Returns:
        The number of the request; None if the attempt already has as many requests as a training accepts.

    Raises:
        SinkError: The request cannot be stored.
    """
    for number in range(first, MAX_CAPTURE_REQUESTS):
        if sink.put_new(capture_key(attempt, number), [data]):
            return number
    return None
