"""Scenario: the faults of one job, drawn from a seed and a number; the same seed gives the same faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.values import DTYPES, Spec
from tests.faults.weather import CODES, COUNTED, Episode
from tests.s3.fault import Fault, Kind

__all__ = ["Kill", "Scenario", "draw", "values_of"]

_KIB = 1024
_MIB = 1024 * _KIB
_PROCESSES_EVERY = 6  # one scenario in this many consists of real processes
_PROXY_KINDS: tuple[Kind, ...] = (
    *("delay", "throttle", "reset", "close"),
    *("half_close", "stall", "answer", "flip"),
)
# faults during which the service takes no objects
_LONG = ("refuse", "down", "denied", "missing_bucket", "expired")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """SIGKILL of the flusher at `step`; on threads, after this number of further operations of its sink."""

    step: int
    operations: int = 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One job and its faults.

    processes: trainer and flusher are processes, as in a real job; otherwise threads, with shorter pauses.
    steps: minimum number of steps; the job continues until every fault has struck.
    spool_bytes: limit of the spool.
    death: of the trainer: "" closes normally, "trainer" is killed, "both" kills the flusher, too.
    command: `tdcore upload` uploads the remaining objects, instead of the function upload().
    """

    seed: int
    number: int
    processes: bool
    engine: str
    tls: bool
    ring_bytes: int
    slots: int
    policy: str
    specs: tuple[Spec, ...]
    steps: int
    pause: float
    segment_bytes: int
    fan_in: int
    merged_bytes: int
    spool_bytes: int
    episodes: tuple[Episode, ...]
    kills: tuple[Kill, ...]
    death: str
    command: bool

    @property
    def replay(self) -> str:
        """The command that repeats this scenario."""
        return f"python -m tests.faults.s3 --seed {self.seed} --only {self.number}"

    @property
    def away_at_end(self) -> bool:
        """Whether the service is unavailable until the job has ended."""
        return any(episode.outlives for episode in self.episodes)

    @property
    def may_give_up(self) -> bool:
        """Whether the flusher may have to drop the last records: no service, and a full spool.

        A flusher on a thread is then followed by another flusher; a flusher process is the last one.
        """
        return self.processes and self.away_at_end and self.spool_bytes <= _MIB


def draw(seed: int, number: int) -> Scenario:
    """Draw scenario `number` of the campaign with this seed."""
    random_ = random.Random(f"{seed}/{number}")
    processes = number % _PROCESSES_EVERY == _PROCESSES_EVERY - 1
    steps = random_.randrange(12, 50)
    tiny = random_.random() < 0.3
    episodes = _episodes(random_, steps, processes)
    rotated = any(episode.kind == "rotated" for episode in episodes)
    death = random_.choice(["", "", "trainer"])
    if processes and random_.random() < 0.15:
        death = "both"
    return Scenario(
        seed=seed,
        number=number,
        processes=processes,
        engine=random_.choice(["obstore", "obstore", "aiobotocore"]),
        tls=random_.random() < 0.25,
        ring_bytes=random_.choice([1, 2, 4, 8]) * _MIB,
        slots=random_.choice([64, 256, 1024]),
        policy=random_.choice(["block", "block", "drop", "degrade"]),
        specs=_specs(random_),
        steps=steps,
        pause=random_.choice([0.0, 0.002, 0.01]),
        segment_bytes=random_.choice([16, 64, 256, 65536]) * _KIB,
        fan_in=random_.choice([2, 4, 16]),
        merged_bytes=random_.choice([64, 1024, 65536]) * _KIB,
        spool_bytes=(_MIB if processes else random_.choice([48, 200, 600]) * _KIB) if tiny else 1024 * _MIB,
        episodes=episodes,
        # the next flusher would have the new token
        kills=() if rotated else _kills(random_, steps, processes),
        death=death,
        command=random_.random() < 0.2,
    )


def values_of(scenario: Scenario) -> dict[str, object]:
    """Return the values of a scenario by which scenarios are selected: its faults, and what they meet."""
    return {
        "processes": scenario.processes,
        "engine": scenario.engine,
        "tls": scenario.tls,
        "policy": scenario.policy,
        "small spool": scenario.spool_bytes <= _MIB,
        "kills": min(len(scenario.kills), 2),
        "death": scenario.death,
        "command": scenario.command,
        **{episode.kind: "outlives" if episode.outlives else "ends" for episode in scenario.episodes},
    }


def _specs(random_: random.Random) -> tuple[Spec, ...]:
    """Draw one to eight small or large tensors; together at most about 300 KB, on average 40 KB."""
    count = random_.randrange(1, 9)
    budget = int(2000 * 150 ** random_.random())
    return tuple(
        Spec(
            name=f"layer{at}.{random_.choice(['weight', 'bias', 'gradient/weight'])}",
            elements=max(1, int(budget / count / 4 * random_.uniform(0.1, 1.5))),
            dtype=random_.choice(DTYPES),
        )
        for at in range(count)
    )


def _kills(random_: random.Random, steps: int, processes: bool) -> tuple[Kill, ...]:
    count = random_.choice([0, 1, 1, 2] if processes else [0, 0, 1, 1, 2, 3])
    return tuple(
        Kill(step=step, operations=random_.choice([0, 0, 1, 3, 6]))
        for step in sorted(random_.randrange(2, steps) for _ in range(count))
    )


def _episodes(random_: random.Random, steps: int, processes: bool) -> tuple[Episode, ...]:
    """Draw one to four different faults, sometimes with a last fault that outlives the job."""
    kinds = [*CODES, *COUNTED, "latency", "down", *_PROXY_KINDS]
    if processes:
        kinds.remove("rotated")  # the environment of a running process cannot be changed
    drawn = random_.sample(kinds, random_.randrange(1, 5))
    if "rotated" in drawn and "expired" in drawn:
        drawn.remove("expired")
    episodes = [_episode(kind, random_, random_.randrange(0, steps)) for kind in drawn]
    if random_.random() < 0.25:
        kind = random_.choice([kind for kind in _LONG if kind not in drawn] or ["down"])
        others = [episode for episode in episodes if episode.kind not in _LONG]
        last = _episode(kind, random_, random_.randrange(steps // 2, steps), outlives=True)
        return (*others, last)
    return tuple(episodes)


def _episode(kind: str, random_: random.Random, step: int, outlives: bool = False) -> Episode:
    make = _DRAWN.get(kind)
    if make is not None:
        settings = make(random_)
        seconds = random_.uniform(0.2, 1.2) if kind in _LONG else random_.uniform(0.1, 0.5)
        strikes: int = settings[kind] if kind in COUNTED else random_.randrange(1, 4)
        if kind == "rotated":
            strikes = 1  # then the client has the new token
        return Episode(
            kind=kind, step=step, strikes=strikes, seconds=seconds, settings=settings, outlives=outlives
        )
    if kind == "down":
        return Episode(kind=kind, step=step, seconds=random_.uniform(0.2, 1.2), outlives=outlives)
    direction = random_.choice(["request", "response"])
    if kind in ("flip", "half_close"):
        direction = "request" if kind == "flip" else direction
    fault = Fault(
        kind=kind,  # type: ignore[arg-type]
        direction=direction,  # type: ignore[arg-type]
        after_bytes=int((20_000 if direction == "request" else 250) ** random_.random()) - 1,
        seconds=random_.uniform(0.05, 0.4),
        bytes_per_s=random_.choice([2e4, 1e5, 1e6]),
        status=random_.choice([500, 502, 503, 504]),
        only=random_.choice(["PUT ", "PUT ", ""]) if kind != "flip" else "PUT ",
    )
    return Episode(kind=kind, step=step, strikes=random_.randrange(1, 4), fault=fault)


_DRAWN: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "slow_down": lambda random_: {
        "slow_down": random_.uniform(0.2, 1.0),
        "retry_after": random_.choice([0.0, 0.2]),
        "seed": random_.randrange(1000),
    },
    "errors": lambda random_: {
        "errors": {code: random_.uniform(0.05, 0.5) for code in CODES["errors"]},
        "seed": random_.randrange(1000),
    },
    "refuse": lambda random_: {"refuse": True},
    "expired": lambda random_: {"expired": True},
    "rotated": lambda random_: {"expired_tokens": ["session-token-of-before"]},
    "denied": lambda random_: {
        "deny": random_.choice([["PutObject"], ["PutObject", "ListBucket", "GetObject"]])
    },
    "missing_bucket": lambda random_: {"missing_bucket": True},
    "region": lambda random_: {
        "region": "eu-west-1",
        "wrong_region": random_.choice(["malformed", "redirect"]),
    },
    "latency": lambda random_: {"latency": random_.uniform(0.05, 0.4)},
    "hang": lambda random_: {"hang": random_.randrange(1, 4)},
    "corrupt_bodies": lambda random_: {"corrupt_bodies": random_.randrange(1, 6)},
    "lose_replies": lambda random_: {"lose_replies": random_.randrange(1, 6)},
    "reset_replies": lambda random_: {"reset_replies": random_.randrange(1, 6)},
}
