"""Requests to a running training, in the control folder of its run, as values and as documents.

    control/stop-<attempt>.json               stop (tdcore.session.StopRequest reads it)
    control/capture-<attempt>-<number>.json   capture more for some steps: CaptureRequest; or, with the kind
                                              "profile", profile some steps: ProfileRequest

These requests are numbered from 0 without gaps, and each is created exclusively (Sink.put_new). Several
processes can therefore send requests without overwriting each other's requests, and the flusher reads only
the key of the next number. Requests contain exact names of tensors: the training never runs a pattern from a
file. Plain values; any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tdcore.errors import ConfigError
from tdcore.format.layout import FORMAT_VERSION
from tdcore.modes import ModeKeys

__all__ = [
    "LEVELS",
    "MAX_CAPTURE_REQUESTS",
    "MAX_NAMES",
    "MAX_NAME_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_STEPS",
    "MAX_TEXT",
    "PROFILE_KIND",
    "CaptureRequest",
    "check_steps",
    "request_object",
    "texts_of",
]

LEVELS = ("values", "statistics")
MAX_CAPTURE_REQUESTS = 100  # per attempt; the flusher ignores later requests
MAX_NAMES = 64  # per request
MAX_NAME_BYTES = 1024
MAX_STEPS = 1000
MAX_REQUEST_BYTES = 8192  # size of the field in the control page
MAX_TEXT = 200  # maximum length of a text for people
PROFILE_KIND = "profile"  # kind of a ProfileRequest; a CaptureRequest has no kind


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """Capture these tensors at each of the next `steps` steps.

    Attributes:
        tensors: Names of saved tensors.
        steps: Number of steps of each mode, from the step at which a worker reads the request.
        level: "values" saves whole tensors, "statistics" their statistics. If a collection saves the tensor
            too, the higher level is used.
        modes: Names of ModeKeys; empty: all modes.
        by, reason: Text for people.

    Raises:
        ConfigError: A value is invalid.
    """

    tensors: tuple[str, ...]
    steps: int
    level: str = "values"
    modes: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.tensors) <= MAX_NAMES:
            raise ConfigError(f"a request names 1 to {MAX_NAMES} tensors, got {len(self.tensors)}")
        for name in self.tensors:
            if not isinstance(name, str) or not 1 <= len(name.encode(errors="replace")) <= MAX_NAME_BYTES:
                raise ConfigError(f"a tensor's name has 1 to {MAX_NAME_BYTES} bytes, got {name!r:.80}")
        check_steps(self.steps)
        if self.level not in LEVELS:
            raise ConfigError(f"level must be {' or '.join(map(repr, LEVELS))}, got {self.level!r:.80}")
        unknown = [mode for mode in self.modes if mode not in ModeKeys.__members__]
        if unknown:
            raise ConfigError(f"modes must be {', '.join(ModeKeys.__members__)}, got {unknown[0]!r:.80}")

    def document(self, *, attempt: int) -> bytes:
        """Content of the file. Raises ConfigError if it is larger than a training accepts."""
        data = json.dumps(
            {
                "format": FORMAT_VERSION,
                "attempt": attempt,
                "tensors": list(self.tensors),
                "steps": self.steps,
                "level": self.level,
                "modes": list(self.modes),
                "by": self.by[:MAX_TEXT],
                "reason": self.reason[:MAX_TEXT],
            }
        ).encode()
        if len(data) > MAX_REQUEST_BYTES:
            raise ConfigError(
                f"the request is {len(data)} bytes, a training takes at most {MAX_REQUEST_BYTES}; "
                "name fewer tensors"
            )
        return data

    @classmethod
    def parse(cls, text: str) -> CaptureRequest:
        """Parse the text of a file from an untrusted writer. Raises ConfigError."""
        return cls.from_object(request_object(text))

    @classmethod
    def from_object(cls, raw: dict[str, Any]) -> CaptureRequest:
        """Check the object that request_object() has returned. Raises ConfigError."""
        return cls(
            tensors=texts_of(raw, "tensors"),
            steps=raw.get("steps", 0),
            level=raw.get("level", LEVELS[0]),
            modes=texts_of(raw, "modes"),
            by=str(raw.get("by") or "")[:MAX_TEXT],
            reason=str(raw.get("reason") or "")[:MAX_TEXT],
        )


def request_object(text: str) -> dict[str, Any]:
    """The object in the text of a request from an untrusted writer. Raises ConfigError.

    The caller checks the fields of the kind: from_object() of CaptureRequest or ProfileRequest.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is not JSON: {error!s:.80}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"it is a JSON {type(raw).__name__}, expected an object")
    if "too_large" in raw:
        raise ConfigError(f"it has {raw['too_large']!r:.80} bytes, expected 1 to {MAX_REQUEST_BYTES}")
    if "unreadable" in raw:
        raise ConfigError(f"it is not a file that may be read: {raw['unreadable']!s:.400}")
    if raw.get("format") != FORMAT_VERSION:
        raise ConfigError(f"its format is {raw.get('format')!r:.80}, expected {FORMAT_VERSION}")
    return raw


def check_steps(steps: object) -> None:
    """Raise ConfigError unless this is a number of steps that a request may have."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise ConfigError(f"steps must be 1 to {MAX_STEPS}, got {steps!r:.80}")


def texts_of(raw: dict[str, Any], name: str) -> tuple[str, ...]:
    """A list of texts without repetitions, from an object of a request. Raises ConfigError."""
    value = raw.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{name} must be a list of strings, got {value!r:.80}")
    return tuple(dict.fromkeys(value))
