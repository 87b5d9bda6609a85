"""The two requests that a page may send to a running training: stop, and capture more.

Both write one file into control/ of the run, as the actions of rules do (docs/actions.md). Functions without
state; the thread of the run calls them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError
from tdcore.format.control import MAX_CAPTURE_REQUESTS, MAX_TEXT, CaptureRequest
from tdcore.format.layout import FORMAT_VERSION, stop_key
from tdcore.sinks import open_sink
from tdcore.sinks.requests import put_request
from tdcore.text.short_repr import cut, how_many

if TYPE_CHECKING:
    from tdcore.view.answers import OpenRun

__all__ = ["request_capture", "request_stop"]

_BY = "tdcore view"


def request_stop(run: OpenRun, body: Mapping[str, Any]) -> str:
    """Request that the training of the newest attempt stops.

    body: `reason`, a text for people.

    Returns:
        A sentence for the user.

    Raises:
        ConfigError: The training does not run, or the reason is not a text.
        SinkError: The run cannot be written.
    """
    attempt = _running_attempt(run)
    document = {
        "format": FORMAT_VERSION,
        "attempt": attempt,
        "reason": _text(body, "reason") or "stopped by a user",
        "by": _BY,
        "requested_ns": time.time_ns(),
    }
    with closing(open_sink(run.path)) as sink:
        new = sink.put_new(stop_key(attempt), [json.dumps(document, indent=1).encode()])
    if not new:
        return f"A stop of attempt {attempt} was already requested."
    return f"The stop of attempt {attempt} is requested. The training stops at its next step."


def request_capture(run: OpenRun, body: Mapping[str, Any]) -> str:
    """Request that the training saves tensors at each of its next steps.

    body: `tensors`, a list of names; `steps`; and `level`, "values" or "statistics".

    Returns:
        A sentence for the user.

    Raises:
        ConfigError: The training does not run, or a value is invalid.
        SinkError: The run cannot be written.
    """
    attempt = _running_attempt(run)
    tensors, steps = body.get("tensors"), body.get("steps")
    if not isinstance(tensors, list) or not all(isinstance(name, str) for name in tensors):
        raise ConfigError(f"tensors must be a list of names, got {cut(repr(tensors))}")
    unknown = [name for name in tensors if not run.trial.has_tensor(name)]
    if unknown:
        raise ConfigError(f"the run has no tensor {cut(unknown[0])!r}")
    level = body.get("level")
    request = CaptureRequest(
        tensors=tuple(dict.fromkeys(tensors)),
        steps=steps if isinstance(steps, int) else 0,
        level=level if isinstance(level, str) and level else "values",
        by=_BY,
        reason=_text(body, "reason"),
    )
    with closing(open_sink(run.path)) as sink:
        number = put_request(sink, attempt, request.document(attempt=attempt))
    if number is None:
        raise ConfigError(f"attempt {attempt} already has {MAX_CAPTURE_REQUESTS} requests, the maximum")
    many = how_many(len(request.tensors), "tensor")
    return f"Request {number}: the next {request.steps} steps save the {request.level} of {many}."


def _running_attempt(run: OpenRun) -> int:
    trial = run.trial
    if trial.status != "running" or not trial.attempts:
        raise ConfigError(f"the training has {trial.status}, so that it accepts no requests")
    return max(trial.attempts)


def _text(body: Mapping[str, Any], name: str) -> str:
    text = body.get(name, "")
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be a text, got {cut(repr(text))}")
    return text[:MAX_TEXT]
