"""CaptureMore: request that the training saves more tensors for some steps, through control/.

format/control.py has the document. This action applies patterns to the names of the run's tensors; the
training gets exact names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from tdcore.actions.base import NoticeKey, Once, finding_line
from tdcore.config.checks import patterns
from tdcore.errors import ActionError, ConfigError, RunError, SinkError
from tdcore.format.control import MAX_CAPTURE_REQUESTS, MAX_NAMES, CaptureRequest
from tdcore.sinks.requests import put_request
from tdcore.text.step_text import SYSTEM_SAMPLES

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["CaptureMore"]

_ENOUGH_BYTES = 5000  # maximum for the names in one request; the rest is for its other parts


class CaptureMore:
    """Request that tensors are saved at each of the next `steps` steps, once per notice key.

    One request has at most 64 tensors; tensors that are left out are reported. No request is sent to an
    attempt that has ended.

    Args:
        tensors: Exact names.
        regex: Patterns (re.search) for names of tensors that the run has saved so far. Without `tensors` and
            `regex`: the tensor of each finding.
        steps: Number of steps.
        level: "values" or "statistics".
        modes: Names such as "TRAIN"; empty: the mode of the finding.
        max_requests: Maximum number per attempt. A training accepts 100 requests in all.
        again_after: Time after which the same notice key requests tensors again; None: never.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "capture_more"

    def __init__(
        self,
        steps: int = 20,
        *,
        tensors: str | Iterable[str] = (),
        regex: str | Iterable[str] = (),
        level: str = "values",
        modes: str | Iterable[str] = (),
        max_requests: int = 10,
        again_after: timedelta | None = None,
    ) -> None:
        self._names = (tensors,) if isinstance(tensors, str) else tuple(tensors)
        self._patterns = [re.compile(pattern) for pattern in patterns("regex", regex)]
        self._modes = (modes,) if isinstance(modes, str) else tuple(modes)
        self._steps, self._level = steps, level
        whole = isinstance(max_requests, int) and not isinstance(max_requests, bool)
        if not whole or not 1 <= max_requests <= MAX_CAPTURE_REQUESTS:
            raise ConfigError(
                f"CaptureMore.max_requests must be 1 to {MAX_CAPTURE_REQUESTS}, got {max_requests!r}"
            )
        if len(self._names) > MAX_NAMES:
            raise ConfigError(f"CaptureMore.tensors: at most {MAX_NAMES} names, got {len(self._names)}")
        CaptureRequest(tensors=self._names or ("any",), steps=steps, level=level, modes=self._modes)  # checks
        self._max_requests = max_requests
        self._once = Once(again_after)
        self._made: dict[int, int] = {}  # attempt -> number of requests
        self._next: dict[int, int] = {}  # attempt -> next number that may be free
        self._notes: list[str] = []

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """See Action. Raises SinkError and ActionError; the key's next finding repeats the request."""
        groups: dict[tuple[int, str], list[Finding]] = {}
        for finding in self._once.due(findings):
            groups.setdefault((finding.attempt, finding.mode), []).append(finding)
        for (attempt, mode), due in groups.items():
            if not source.attempt_ended(attempt):
                if sink is None:
                    raise SinkError("this process cannot write to the run, so it cannot request a capture")
                self._ask(attempt, mode, due, sink)
            self._once.told(due)

    def prime(self, keys: Iterable[NoticeKey]) -> None:
        """See Action."""
        self._once.prime(keys)

    def take_notes(self) -> list[str]:
        """See Action."""
        notes, self._notes = list(dict.fromkeys(self._notes)), []
        return notes

    def _ask(self, attempt: int, mode: str, findings: Sequence[Finding], sink: Sink) -> None:
        made = self._made.get(attempt, 0)
        if made >= self._max_requests:
            self._notes.append(f"{made} requests were made in attempt {attempt}; max_requests allows no more")
            return
        names = self._fitting(self._wanted(attempt, findings, sink))
        if not names:
            raise ActionError(
                "the findings have no tensor, and no saved name matches; give tensors= or regex="
            )
        request = CaptureRequest(
            tensors=names,
            steps=self._steps,
            level=self._level,
            modes=self._modes or (() if mode == SYSTEM_SAMPLES else (mode,)),
            by=f"rule {findings[0].rule}",
            reason=finding_line(findings[0]),
        )
        data = request.document(attempt=attempt)
        number = put_request(sink, attempt, data, self._next.get(attempt, 0))  # raises: tried again
        if number is None:
            raise ActionError(f"attempt {attempt} already has {MAX_CAPTURE_REQUESTS} requests, the maximum")
        self._next[attempt] = number + 1
        self._made[attempt] = made + 1

    def _wanted(self, attempt: int, findings: Sequence[Finding], sink: Sink) -> list[str]:
        if not self._names and not self._patterns:
            named = (each.tensor for each in findings if each.tensor and each.mode != SYSTEM_SAMPLES)
            return list(dict.fromkeys(named))
        known = _known_names(sink, attempt) if self._patterns else []
        matching = [name for name in known if any(pattern.search(name) for pattern in self._patterns)]
        return list(dict.fromkeys([*self._names, *matching]))

    def _fitting(self, names: Sequence[str]) -> tuple[str, ...]:
        """The first names, as many as fit into one request."""
        taken, size = 0, 0
        for name in names[:MAX_NAMES]:
            size += len(json.dumps(name)) + 2
            if size > _ENOUGH_BYTES:
                break
            taken += 1
        if taken < len(names):
            self._notes.append(f"{len(names) - taken} of {len(names)} tensors do not fit into one request")
        return tuple(names[:taken])


def _known_names(sink: Sink, attempt: int) -> list[str]:
    """Names that the attempt has saved so far, sorted. Raises ActionError if they cannot be read."""
    from tdcore.trial.documents import read_collections, texts

    try:
        collections = read_collections(sink).get(attempt, {})
    except RunError as error:
        raise ActionError(f"the names of the run's tensors cannot be read: {error}") from error
    return sorted({name for entry in collections.values() for name in texts(entry, "tensor_names")})
