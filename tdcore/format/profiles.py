"""Profiles on disk: names, sizes and columns of the files below profiles/.

    profiles/<worker>/<attempt>-<number>.json                what was profiled, and the result; written last
    profiles/<worker>/<attempt>-<number>.trace.json.gz       the trace of torch.profiler, compressed
    profiles/<worker>/<attempt>-<number>.operators.parquet   totals of its operators
    profiles/<worker>/<attempt>-<number>.functions.parquet   totals of Python functions
    profiles/<worker>/<attempt>-<number>.pstats              the same as a file for the module pstats

A profile covers a window of training steps of one worker. <number> counts the profiles of a worker and
attempt from 0. Pure functions, any thread. The functions that return a schema import pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tdcore.errors import RunCorrupt
from tdcore.format.documents import Fields, check_format, parse_json
from tdcore.format.layout import MAX_ATTEMPT, PROFILES_PREFIX, valid_worker

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FILES",
    "MAX_TRACE_BYTES",
    "MAX_TRACE_EVENTS",
    "MAX_TRACE_JSON_BYTES",
    "STATES",
    "ProfileDocument",
    "functions_schema",
    "operators_schema",
    "parse_profile",
    "parse_profile_key",
    "profile_key",
]

FILES = {
    "trace": ".trace.json.gz",
    "operators": ".operators.parquet",
    "functions": ".functions.parquet",
    "pstats": ".pstats",
}
# A larger trace is not stored, and readers refuse it.
MAX_TRACE_BYTES = 64 << 20  # compressed
MAX_TRACE_JSON_BYTES = 1 << 30
MAX_TRACE_EVENTS = 5_000_000
STATES = ("complete", "partial", "failed")
_MAX_STEP = (1 << 63) - 1
_MAX_TEXTS = 100
_KEY = re.compile(
    r"profiles/(?P<worker>[A-Za-z0-9][A-Za-z0-9_.-]{0,127})/(?P<attempt>[0-9]{4})-(?P<number>[0-9]{4})\.json",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDocument:
    """The document of one profile.

    Attributes:
        state: "complete": all requested steps. "partial": the window ended early. "failed": nothing was kept.
        reason: The cause of the states "partial" and "failed".
        framework: Name of the framework of the training.
        request: Number of the request in the control folder; None for a window of ProfilerConfig.
        mode: Mode of the steps.
        first_step, last_step: The first and the last profiled step of the mode; None without a step.
        begin_ns, end_ns: Time of the window, in nanoseconds since 1970 (UTC).
        base_ns: Time that the trace's timestamps are relative to; None without a trace.
        messages: Parts that are missing, and their reasons.
        files: Sizes in bytes of the stored files, by their names in FILES.
        document: The whole document.
    """

    worker: str
    attempt: int
    number: int
    state: str
    reason: str
    framework: str
    request: int | None
    mode: str
    first_step: int | None
    last_step: int | None
    begin_ns: int
    end_ns: int
    base_ns: int | None
    messages: tuple[str, ...]
    files: Mapping[str, int]
    document: Mapping[str, Any]


def profile_key(worker: str, attempt: int, number: int, file: str | None = None) -> str:
    """Key of a file of a profile. file: a name in FILES; None: the document."""
    if not valid_worker(worker) or not 0 <= attempt <= MAX_ATTEMPT or not 0 <= number <= MAX_ATTEMPT:
        raise ValueError(f"no profile has the worker {worker!r}, attempt {attempt} and number {number}")
    suffix = ".json" if file is None else FILES[file]
    return f"{PROFILES_PREFIX}{worker}/{attempt:04d}-{number:04d}{suffix}"


def parse_profile_key(key: str) -> tuple[str, int, int] | None:
    """(worker, attempt, number) of the document of a profile; None for any other key."""
    match = _KEY.fullmatch(key)
    return None if match is None else (match["worker"], int(match["attempt"]), int(match["number"]))


def parse_profile(data: bytes, key: str, run_id: str) -> ProfileDocument:
    """Parse the document of a profile from an untrusted run. Raises RunCorrupt, UnsupportedFormat."""
    place = parse_profile_key(key)
    if place is None:
        raise ValueError(f"{key!r} is not the key of a profile")
    fields = Fields(parse_json(data, key), key)
    check_format(fields, key)
    if fields.text("run_id") != run_id:
        raise RunCorrupt(f"{key} is of another run; remove the file")
    if (fields.text("worker"), fields.whole("attempt"), fields.whole("number")) != place:
        raise RunCorrupt(f"{key} is about another profile; remove the file")
    state = fields.text("state")
    if state not in STATES:
        raise fields.wrong("state", f"one of {', '.join(STATES)}")
    sizes = Fields(fields.document.get("files", {}), f"{key}: files")
    messages = fields.texts("messages")
    return ProfileDocument(
        worker=place[0],
        attempt=place[1],
        number=place[2],
        state=state,
        reason=fields.text("reason", ""),
        framework=fields.text("framework", ""),
        request=_optional(fields, "request"),
        mode=fields.text("mode", ""),
        first_step=_optional(fields, "first_step"),
        last_step=_optional(fields, "last_step"),
        begin_ns=fields.whole("begin_ns"),
        end_ns=fields.whole("end_ns"),
        base_ns=_optional(fields, "base_ns"),
        messages=tuple(messages[:_MAX_TEXTS]),
        files={name: sizes.whole(name) for name in FILES if name in sizes.document},
        document=fields.document,
    )


def _optional(fields: Fields, name: str) -> int | None:
    return None if fields.document.get(name) is None else fields.whole(name, most=_MAX_STEP)


@cache
def operators_schema() -> pa.Schema:
    """Columns of the totals of operators. docs/profile.md describes them."""
    import pyarrow as pa

    times = ("cpu_total_ns", "cpu_self_ns", "device_total_ns", "device_self_ns")
    return pa.schema(
        [("name", pa.string()), ("category", pa.string()), ("calls", pa.int64())]
        + [(name, pa.int64()) for name in times]
    )


@cache
def functions_schema() -> pa.Schema:
    """Columns of the totals of Python functions. docs/profile.md describes them."""
    import pyarrow as pa

    return pa.schema(
        [("file", pa.string()), ("line", pa.int64()), ("function", pa.string())]
        + [(name, pa.int64()) for name in ("calls", "primitive_calls", "self_ns", "total_ns")]
    )
