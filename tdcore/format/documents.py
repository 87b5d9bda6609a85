"""Documents: the small JSON files of a run, validated in one place.

    run.json    attempts/<attempt>-<worker>.json    end/<worker>/<attempt>.json    collections.json

The files may be damaged, or written by another program. Every fault raises RunCorrupt with the file, the
field and its value: text that is not JSON, a repeated key, more or deeper containers than any document has
(they would need many times the file's bytes in memory), and numbers that are not whole, negative or too
large. Fields that tdcore does not use are kept in `document`. Pure functions, any thread.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from tdcore.errors import RunCorrupt, UnsupportedFormat
from tdcore.format.layout import FORMAT_VERSION, MAX_ATTEMPT, valid_worker
from tdcore.text.short_repr import cut, how_many

__all__ = [
    "Attempt",
    "DropTotal",
    "Fields",
    "Run",
    "check_format",
    "claimed_process",
    "clipped",
    "parse_json",
    "parse_run",
]

_MAX_CONTAINERS = 1_000_000  # maximum number of lists and objects in one document
_MAX_DEPTH = 64
_MAX_ID_CHARS = 128
_MAX_NUMBER = (1 << 63) - 1
_MAX_PID = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the training.

    workers: names of the capturing workers, if run.json has them. document: the entry in run.json, also with
    fields that are not used here.
    """

    number: int
    started_ns: int
    world_size: int
    host: str
    pid: int
    workers: tuple[str, ...]
    document: Mapping[str, Any]

    def __repr__(self) -> str:
        started = datetime.fromtimestamp(self.started_ns / 1e9, timezone.utc).isoformat(" ", "seconds")
        framework = str(self.document.get("framework") or "?")
        workers = how_many(self.world_size, "worker")
        return cut(f"<Attempt {self.number}: {framework}, {workers}, on {self.host}, started {started}>")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Content of run.json. attempts: in order of their numbers, each once. document: the whole file."""

    run_id: str
    attempts: tuple[Attempt, ...]
    document: Mapping[str, Any]

    @cached_property
    def by_number(self) -> dict[int, Attempt]:
        """Attempts by number."""
        return {attempt.number: attempt for attempt in self.attempts}


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTotal:
    """Tensors that were not stored as requested, for one reason."""

    tensors: int
    bytes: int


def clipped(text: str, limit: int = 200) -> str:
    """A text from a file for use in a message: quoted, and cut if it is long."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} characters)"


def parse_json(data: bytes, where: str) -> Any:
    """Parse a document. where: the file, for messages. Raises RunCorrupt."""
    containers = data.count(b"[") + data.count(b"{")
    if containers > _MAX_CONTAINERS:
        raise RunCorrupt(
            f"{where} has {containers:,} lists and objects; at most {_MAX_CONTAINERS:,} are read"
        )
    try:
        document = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise RunCorrupt(f"{where} is not JSON: {clipped(str(error))}") from error
    _check_depth(document, where)
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {clipped(twice, 80)} occurs twice in one object")
    return found


def _check_depth(document: Any, where: str) -> None:
    level = [document]
    for _ in range(_MAX_DEPTH):
        level = [inner for each in level for inner in _inside(each) if isinstance(inner, (list, dict))]
        if not level:
            return
    raise RunCorrupt(f"{where} is nested deeper than {_MAX_DEPTH} lists and objects")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class Fields:
    """The fields of one object of a document, validated when they are read. where: for messages.

    The constructor raises RunCorrupt if the document is not an object; each method raises RunCorrupt for a
    field of another type.
    """

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, dict):
            raise RunCorrupt(f"{where} is {_got(document)}, expected an object")
        self.document: dict[str, Any] = document
        self.where = where

    def wrong(self, name: str, expected: str) -> RunCorrupt:
        """The error for an invalid field."""
        got = _got(self.document[name]) if name in self.document else "not there"
        return RunCorrupt(f"{self.where}: {name} is {got}, expected {expected}")

    def whole(self, name: str, default: int | None = None, *, most: int = _MAX_NUMBER) -> int:
        """A whole number from 0 to `most`. default: for a missing field; None: the field is required."""
        value = self.document.get(name, default)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(name, f"a whole number from 0 to {most}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A text field."""
        value = self.document.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        value = self.document.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty for a missing field."""
        value = self.document.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, "a list of texts")
        return value

    def objects(self, name: str, *, required: bool = False) -> dict[str, Fields]:
        """An object of objects, by name; empty for a missing field."""
        value = self.document.get(name, None if required else {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return {key: Fields(each, f"{self.where}: {name} {clipped(key, 80)}") for key, each in value.items()}

    def drops(self) -> dict[str, DropTotal]:
        """Dropped tensors, by reason."""
        return {
            reason: DropTotal(tensors=each.whole("tensors", 0), bytes=each.whole("bytes", 0))
            for reason, each in self.objects("drops").items()
        }


def check_format(fields: Fields, key: str) -> None:
    """Raise UnsupportedFormat for a document of another version of the format."""
    version = fields.document.get("format")
    if version != FORMAT_VERSION or isinstance(version, (bool, float)):
        raise UnsupportedFormat(
            f"{key} is of format {clipped(str(version))}, this version of tdcore reads format "
            f"{FORMAT_VERSION}; read the run with the version that wrote it"
        )


def parse_run(data: bytes, where: str) -> Run:
    """Parse run.json. Raises RunCorrupt, UnsupportedFormat."""
    fields = Fields(parse_json(data, where), where)
    if "format" not in fields.document:
        raise RunCorrupt(f"{where} is not the file of a tdcore run: it has no field 'format'")
    check_format(fields, where)
    run_id = fields.text("run_id")
    if not 0 < len(run_id) <= _MAX_ID_CHARS:
        raise fields.wrong("run_id", f"1 to {_MAX_ID_CHARS} characters")
    entries = fields.document.get("attempts")
    if not isinstance(entries, list):
        raise fields.wrong("attempts", "a list")
    if len(entries) > MAX_ATTEMPT + 1:
        raise RunCorrupt(f"{where} has {len(entries):,} attempts; a run has at most {MAX_ATTEMPT + 1:,}")
    found: dict[int, Attempt] = {}
    for entry in entries:
        attempt = _attempt(Fields(entry, f"{where}: an attempt"))
        if attempt.number in found:
            raise RunCorrupt(f"{where}: attempt {attempt.number} occurs twice")
        found[attempt.number] = attempt
    return Run(
        run_id=run_id, attempts=tuple(found[number] for number in sorted(found)), document=fields.document
    )


def _attempt(fields: Fields) -> Attempt:
    number = fields.whole("attempt", most=MAX_ATTEMPT)
    fields.where = f"{fields.where} ({number})"
    workers = fields.texts("workers")
    if not all(map(valid_worker, workers)):
        raise fields.wrong("workers", "a list of names of workers")
    return Attempt(
        number=number,
        started_ns=fields.whole("started_ns", 0),
        world_size=fields.whole("world_size", 1),
        host=fields.text("host", ""),
        pid=fields.whole("pid", 0, most=_MAX_PID),
        workers=tuple(workers),
        document=fields.document,
    )


def claimed_process(claim: Mapping[str, Any]) -> tuple[str, int, int]:
    """Host, process id and start time of a claim, for process_is_gone; ("", 0, 0) if they are missing."""
    host, pid, started_ns = (claim.get(name) for name in ("host", "pid", "started_ns"))
    if not isinstance(host, str) or type(pid) is not int or type(started_ns) is not int:
        return "", 0, 0
    if not 0 < pid <= _MAX_PID or not 0 <= started_ns <= _MAX_NUMBER:
        return "", 0, 0
    return host, pid, started_ns


def _got(value: object) -> str:
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    return clipped(str(value), 80) if isinstance(value, str) else f"{value!s:.80}"
