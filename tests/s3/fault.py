"""Faults of the proxy, and schedules of faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["delay", "throttle", "reset", "close", "half_close", "stall", "answer", "flip"]
Direction = Literal["request", "response"]
Schedule = Callable[[random.Random], "Fault | None"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CODES = {500: "InternalError", 502: "BadGateway", 503: "SlowDown", 504: "GatewayTimeout"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The fault of one request.

    delay       passes the request on after `seconds`
    throttle    passes `bytes_per_s` in one direction
    reset       after `after_bytes` in one direction both connections are reset
    close       the same, closed normally: with direction "response" the reply is truncated
    half_close  after `after_bytes` one direction ends, the other continues
    stall       after `after_bytes` one direction passes no more bytes
    answer      the proxy answers with `status` and an S3 error; the server gets no request
    flip        a bit of the body is inverted, in byte `after_bytes` modulo the body's length
    """

    kind: Kind
    direction: Direction = "request"
    after_bytes: int = 0
    seconds: float = 0.0
    bytes_per_s: float = 1e6
    status: int = 503
    only: str = ""  # strikes only requests whose first line contains this text, such as "PUT "


def chance(
    rate: float,
    kinds: Sequence[Kind] = KINDS,
    *,
    most_bytes: int = 100_000,
    most_seconds: float = 0.05,
    slowest_bytes_per_s: float = 1e6,
) -> Schedule:
    """Return a schedule: each request is struck with probability `rate`, by a fault of one of the kinds."""

    def draw(numbers: random.Random) -> Fault | None:
        if numbers.random() >= rate:
            return None
        return Fault(
            kind=numbers.choice(list(kinds)),
            direction=numbers.choice(["request", "response"]),
            after_bytes=int(most_bytes ** numbers.random()) - 1,  # uniform on a logarithmic scale
            seconds=numbers.random() * most_seconds,
            bytes_per_s=slowest_bytes_per_s * (1 + 9 * numbers.random()),
            status=numbers.choice(sorted(CODES)),
        )

    return draw
