"""Weather: the faults of one scenario. Each fault lasts until it has had an effect.

Threads: the thread of the scenario.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.s3.fault import Fault
from tests.s3.proxy import FaultProxy
from tests.s3.servers import StubServer
from tests.s3.stub.settings import Settings

__all__ = ["CODES", "COUNTED", "TOKENS", "Episode", "Weather"]

# Answers of the stub while a fault lasts, and those of its settings that count down.
CODES: dict[str, tuple[str, ...]] = {
    "slow_down": ("SlowDown",),
    "errors": ("InternalError", "TooManyRequests", "RequestTimeout"),
    "refuse": ("ServiceUnavailable",),
    "expired": ("ExpiredToken",),
    "rotated": ("ExpiredToken",),
    "denied": ("AccessDenied",),
    "missing_bucket": ("NoSuchBucket",),
    "region": ("PermanentRedirect", "AuthorizationHeaderMalformed"),
}
COUNTED = ("hang", "corrupt_bodies", "lose_replies", "reset_replies")
TOKENS = ("session-token-of-before", "session-token-of-after")

_LOOK_SECONDS = 0.15
_PATIENCE_SECONDS = 8.0  # after this time a fault counts as without effect


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One fault.

    Attributes:
        kind: Kind of the fault.
        step: The fault begins before this step.
        strikes: Minimum number of requests that the fault affects before it ends.
        seconds: Minimum duration of the fault.
        settings: Settings of the stub during the fault.
        fault: Fault of the proxy.
        outlives: The fault lasts until the job has ended.
    """

    kind: str
    step: int
    strikes: int = 1
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    fault: Fault | None = None
    outlives: bool = False


class _Active:
    """An episode in progress."""

    def __init__(self, episode: Episode, before: int) -> None:
        self.episode = episode
        self.before = before  # evidence of earlier faults of the kind
        self.begun = self.asked = time.monotonic()
        self.struck = 0


class Weather:
    """The faults `episodes`, made by a stub and by the proxy in front of it."""

    def __init__(self, episodes: Sequence[Episode], stub: StubServer, proxy: FaultProxy) -> None:
        self.struck = Counter[str]()
        self.idle: list[str] = []  # kinds of faults without effect
        self._coming = sorted(episodes, key=lambda episode: (episode.outlives, episode.step))
        self._active: list[_Active] = []
        self._stub = stub
        self._proxy = proxy
        self._looked = 0.0
        self._log: list[dict[str, Any]] = []  # log of the stub, when last fetched

    @property
    def calm(self) -> bool:
        """Whether only faults remain that last until the job has ended, and these have struck."""
        return not self._coming and all(
            active.episode.outlives and active.struck >= active.episode.strikes for active in self._active
        )

    def look(self, step: int) -> None:
        """Begin and end faults, before `step`."""
        while self._coming and self._coming[0].step <= step:
            if self._coming[0].outlives and self._active:
                break  # it would leave nothing for the other faults to strike
            if self._coming[0].kind == "rotated" and not self._uploading():
                break  # the client has not requested its credentials yet
            self._begin(self._coming.pop(0))
        now = time.monotonic()
        if not self._active or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        self._fetch_log()
        for active in list(self._active):
            self._judge(active, now)

    def clear(self) -> None:
        """End all faults, after the job has ended."""
        self._fetch_log()
        for active in list(self._active):
            self._count(active)
            self._end(active)

    def _uploading(self) -> bool:
        return any("/index/" in entry["key"] for entry in self._stub.log("PutObject"))

    def _begin(self, episode: Episode) -> None:
        if episode.kind in (*CODES, "latency"):
            self._log = self._stub.log()
        active = _Active(episode, 0)
        active.before = 0 if episode.kind in COUNTED else self._evidence(active)
        self._active.append(active)
        if episode.kind == "rotated":
            os.environ["AWS_SESSION_TOKEN"] = TOKENS[1]
        if episode.settings:
            self._stub.set(**episode.settings)
        if episode.fault is not None:
            self._proxy.next(*[episode.fault] * episode.strikes)
        if episode.kind == "down":
            self._proxy.down()

    def _judge(self, active: _Active, now: float) -> None:
        episode = active.episode
        self._count(active)
        lasted = now - active.begun
        if active.struck < episode.strikes and lasted < _PATIENCE_SECONDS:
            if episode.fault is not None and now - active.asked > 4 * _LOOK_SECONDS:
                active.asked = now
                self._proxy.next(episode.fault)  # the fault was spent on a request that was too short for it
        elif lasted >= episode.seconds and not episode.outlives:
            self._end(active)

    def _end(self, active: _Active) -> None:
        episode = active.episode
        self._active.remove(active)
        if episode.kind == "down":
            self._proxy.up()
        if episode.settings and episode.kind != "rotated":
            well = Settings()
            self._stub.set(**{name: getattr(well, name) for name in episode.settings})
        if active.struck:
            self.struck[episode.kind] += active.struck
        else:
            self.idle.append(episode.kind)

    def _fetch_log(self) -> None:
        """Fetch the log of the stub, which is long, if an active fault needs it."""
        if any(active.episode.kind in (*CODES, "latency") for active in self._active):
            self._log = self._stub.log()

    def _count(self, active: _Active) -> None:
        active.struck = max(active.struck, self._evidence(active) - active.before)

    def _evidence(self, active: _Active) -> int:
        """Return how often faults of this kind have struck so far, as counted by the stub or the proxy."""
        kind = active.episode.kind
        if kind in COUNTED:
            wanted: int = active.episode.settings[kind]
            return wanted - int(self._stub.settings()[kind])
        if kind == "latency":
            return sum(entry["seconds"] >= active.episode.settings[kind] for entry in self._log)
        if kind in CODES:
            return sum(
                entry["code"] in CODES[kind] and entry["action"] != "HeadBucket" for entry in self._log
            )
        return self._proxy.counts[kind]
