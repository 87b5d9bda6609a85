"""The report of a campaign of planted faults: how many were found, by cause and by rule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.faults.training.judge import Outcome

__all__ = ["interval", "lines"]


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Return the lines of the report."""
    faulty = [one for one in outcomes if one.cause]
    healthy = [one for one in outcomes if not one.cause]
    by_cause: dict[str, list[Outcome]] = defaultdict(list)
    for one in faulty:
        by_cause[one.cause].append(one)
    for cause, some in by_cause.items():
        named = sum(one.named for one in some)
        elsewhere = sum(one.elsewhere and not one.named for one in some)
        late = f", {elsewhere} at another place or too late" if elsewhere else ""
        yield f"{cause:42s} {named:3d} of {len(some):3d} named{late}"
    named = sum(one.named for one in faulty)
    if faulty:
        low, high = interval(named, len(faulty))
        yield f"named right and in time: {named} of {len(faulty)} ({low:.0%} to {high:.0%} at 95 %)"
        for what, count in (
            ("diagnosed, among three causes", sum(one.diagnosed for one in faulty)),
            ("diagnosed by the first cause", sum(one.first for one in faulty)),
        ):
            low, high = interval(count, len(faulty))
            yield f"{what}: {count} of {len(faulty)} ({low:.0%} to {high:.0%} at 95 %)"
        fired = sum(len(one.rules) for one in faulty)
        others = sum(len(one.others) for one in faulty)
        yield f"rules that fired on faulty runs: {fired}, of which {others} name another cause"
    alarms = [one for one in healthy if one.rules]
    if healthy:
        yield f"healthy trainings in which a rule fired: {len(alarms)} of {len(healthy)}"
        false = [one for one in healthy if one.causes]
        yield f"healthy trainings with a cause: {len(false)} of {len(healthy)}"
    for one in healthy:
        if not one.learned:
            yield f"  {one.case}: the loss went from {one.first_loss:.3g} to {one.last_loss:.3g}, too little"
    for one in alarms:
        yield f"  {one.case}: {', '.join(one.rules)}"


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share, at 95 %."""
    z = 1.96
    share, square = hits / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z * math.sqrt(share * (1 - share) / count + square / (4 * count * count)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)
