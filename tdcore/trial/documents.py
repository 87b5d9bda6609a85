"""Documents: the small JSON files of a run, read and checked.

run.json, collections.json, end/, findings/. Whatever is wrong with one becomes RunCorrupt or
UnsupportedFormat with its key and the reason. Threads: functions without state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdcore import layout
from tdcore.errors import RunCorrupt, SinkKeyError, UnsupportedFormat
from tdcore.sinks.base import announce
from tdcore.trial.index_file import clipped

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = [
    "Attempt",
    "Run",
    "RunEnd",
    "claim_key",
    "claimed_process",
    "read_claim",
    "read_collections",
    "read_ends",
    "read_findings",
    "read_notes",
    "read_notes_of_workers",
    "read_run",
    "texts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the training.

    workers: those that were to save something, as far as that was said. document: its entry in run.json, with
    whatever else the writer put there.
    """

    number: int
    started_ns: int
    world_size: int
    host: str
    pid: int
    workers: tuple[str, ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """run.json. attempts: in order of their numbers."""

    run_id: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How one worker's attempt ended. clean: closed by the training itself. document: the whole end file."""

    worker: str
    attempt: int
    clean: bool
    document: Mapping[str, Any]


def read_run(sink: Sink) -> Run:
    """run.json. Raises SinkKeyError when there is none."""
    document = _object(sink, layout.RUN_KEY)
    _check_format(document, layout.RUN_KEY)
    entries = document.get("attempts")
    run_id = document.get("run_id")
    if not isinstance(run_id, str) or not isinstance(entries, list):
        raise RunCorrupt(
            f"{layout.RUN_KEY} has no run_id or no list of attempts; it was not written by tdcore"
        )
    attempts = [_attempt(entry) for entry in entries]
    return Run(run_id=run_id, attempts=tuple(sorted(attempts, key=lambda attempt: attempt.number)))


def _attempt(entry: object) -> Attempt:
    number = entry.get("attempt") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise RunCorrupt(
            f"{layout.RUN_KEY}: an attempt is {clipped(str(entry))}, expected an object with its number"
        )
    return Attempt(
        number=number,
        started_ns=_whole(entry, "started_ns", 0),
        world_size=_whole(entry, "world_size", 1),
        host=str(entry.get("host", "")),
        pid=_whole(entry, "pid", 0),
        workers=_workers(entry.get("workers", [])),
        document=entry,
    )


def _whole(entry: Mapping[str, Any], name: str, default: int) -> int:
    value = entry.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise RunCorrupt(f"{layout.RUN_KEY}: {name} is {clipped(str(value))}, expected a whole number")
    return value


def _workers(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(n, str) and layout.valid_worker(n) for n in names):
        raise RunCorrupt(f"{layout.RUN_KEY}: workers is {clipped(str(names))}, expected a list of workers")
    return tuple(names)


def claim_key(worker: str, attempt: int) -> str:
    """Where a worker says of itself that it takes part in an attempt."""
    return f"attempts/{attempt:04d}-{worker}.json"


def read_claim(sink: Sink, worker: str, attempt: int) -> Mapping[str, Any]:
    """What a worker said of itself when it began an attempt; empty when nothing that can be read."""
    try:
        return _object(sink, claim_key(worker, attempt))
    except (SinkKeyError, RunCorrupt, ValueError):
        return {}


def claimed_process(claim: Mapping[str, Any]) -> tuple[str, int, int]:
    """Host, process and start time of a claim, for process_is_gone; of nobody where it does not say."""
    host, pid, started_ns = (claim.get(name) for name in ("host", "pid", "started_ns"))
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in (pid, started_ns))
    if not isinstance(host, str) or not whole or not 0 < int(pid or 0) < 1 << 31:
        return "", 0, 0
    return host, int(pid or 0), int(started_ns or 0)


def read_collections(sink: Sink) -> dict[int, dict[str, Mapping[str, Any]]]:
    """What the workers' files of collections say together: attempt -> name -> entry. Empty without any.

    A collection has the tensors that it has in any worker; all else is as the first worker says.
    """
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for key in _collection_keys(sink):
        for attempt, collections in _read_collections(sink, key).items():
            known = found.setdefault(attempt, {})
            for name, entry in collections.items():
                names = {*entry.get("tensor_names", ()), *known.get(name, {}).get("tensor_names", ())}
                known[name] = {**entry, **known.get(name, {}), "tensor_names": sorted(names)}
    return found


def _read_collections(sink: Sink, key: str) -> dict[int, dict[str, Mapping[str, Any]]]:
    try:
        document = _object(sink, key)
    except SinkKeyError:
        return {}
    _check_format(document, key)
    attempts = document.get("attempts")
    if not isinstance(attempts, dict):
        raise RunCorrupt(f"{key} has no attempts; it was not written by tdcore")
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    for number, entry in attempts.items():
        collections = entry.get("collections") if isinstance(entry, dict) else None
        if (
            not number.isascii()
            or not number.isdigit()
            or len(number) > 9
            or not isinstance(collections, dict)
        ):
            raise RunCorrupt(f"{key}: attempt {clipped(number)} is not a number with a list of collections")
        for name, collection in collections.items():
            _check_collection(key, name, collection)
        found[int(number)] = collections
    return found


def read_notes(sink: Sink) -> dict[int, dict[str, Any]]:
    """What the workers' files of collections say beside these: attempt -> heading -> what was noted.

    What several workers noted under one heading is joined; of one thing that two speak of, the first counts.
    """
    found: dict[int, dict[str, Any]] = {}
    for _, attempt, said in read_notes_of_workers(sink):
        notes = found.setdefault(attempt, {})
        for heading in sorted(said):
            notes[heading] = _joined(notes.get(heading), said[heading])
    return found


def read_notes_of_workers(sink: Sink) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(worker, attempt, notes) of each worker's file of collections; worker is "" for the first worker's."""
    for key in _collection_keys(sink):
        try:
            attempts = _object(sink, key).get("attempts")
        except SinkKeyError:
            continue
        worker = key.removeprefix(layout.COLLECTIONS_PREFIX).removesuffix(".json")
        for number, entry in attempts.items() if isinstance(attempts, dict) else ():
            if number.isascii() and number.isdigit() and len(number) < 10 and isinstance(entry, dict):
                notes = {heading: said for heading, said in entry.items() if heading != "collections"}
                yield "" if key == layout.COLLECTIONS_KEY else worker, int(number), notes


def _joined(first: Any, said: Any) -> Any:
    """What two workers noted under one heading."""
    if first is None:
        return said
    if isinstance(first, dict) and isinstance(said, dict):
        return {**said, **first}
    if not isinstance(first, list) or not isinstance(said, list):
        return first
    known = {str(one) for one in first}
    return first + [one for one in said if str(one) not in known]


def _collection_keys(sink: Sink) -> list[str]:
    more = [key for key in sink.list(layout.COLLECTIONS_PREFIX) if key.endswith(".json")]
    return [layout.COLLECTIONS_KEY, *sorted(more)]


def _check_collection(key: str, name: str, entry: object) -> None:
    if not isinstance(entry, dict):
        raise RunCorrupt(f"{key}: collection {clipped(name)} is not an object")
    for field in ("include_regex", "tensor_names", "module_regex"):
        texts = entry.get(field, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RunCorrupt(f"{key}: {field} of collection {clipped(name)} is not a list of texts")


def read_ends(
    sink: Sink, keys: Sequence[str], known: Mapping[tuple[str, int], RunEnd]
) -> dict[tuple[str, int], RunEnd]:
    """End files by worker and attempt. keys: of all that there are; others among them are left out.

    `known` ones are not read again: an end file is written once.
    """
    places = {key: layout.parse_end_key(key) for key in keys}
    announce(sink, [key for key, place in places.items() if place is not None and place not in known])
    found: dict[tuple[str, int], RunEnd] = {}
    for key, place in places.items():
        if place is None:
            continue
        if place in known:
            found[place] = known[place]
            continue
        try:
            document = _object(sink, key)
        except SinkKeyError:
            continue
        clean = document.get("clean")
        if not isinstance(clean, bool):
            raise RunCorrupt(f"{key}: clean is {clipped(str(clean))}, expected true or false")
        found[place] = RunEnd(worker=place[0], attempt=place[1], clean=clean, document=document)
    return found


def read_findings(sink: Sink) -> list[dict[str, Any]]:
    """All lines of findings/, in order of rules and lines. A last line still being written is left out."""
    findings: list[dict[str, Any]] = []
    keys = [key for key in sink.list(layout.FINDINGS_PREFIX) if key.endswith(".jsonl")]
    announce(sink, keys)
    for key in keys:
        try:
            data = sink.get(key)
        except SinkKeyError:
            continue
        *lines, rest = data.split(b"\n")
        del rest
        for number, line in enumerate(lines, 1):
            if line.strip():
                finding = _parsed(line, f"{key}, line {number}")
                if not isinstance(finding, dict):
                    raise RunCorrupt(
                        f"{key}, line {number}: a finding is a JSON object, got {clipped(str(finding))}"
                    )
                findings.append(finding)
    return findings


def _object(sink: Sink, key: str) -> dict[str, Any]:
    data = sink.get(key)
    if len(data) > layout.MAX_DOCUMENT_BYTES:
        raise RunCorrupt(f"{key} has {len(data)} bytes; at most {layout.MAX_DOCUMENT_BYTES} are read")
    document = _parsed(data, key)
    if not isinstance(document, dict):
        raise RunCorrupt(f"{key} is not a JSON object; it was not written by tdcore, or it is damaged")
    return document


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunCorrupt(f"{where} is not JSON: {clipped(str(error))}") from error


def _check_format(document: Mapping[str, Any], key: str) -> None:
    version = document.get("format")
    if version != layout.FORMAT_VERSION or isinstance(version, bool):
        raise UnsupportedFormat(
            f"{key} is of format {clipped(str(version))}, this version of tdcore reads format "
            f"{layout.FORMAT_VERSION}; read the run with the version that wrote it"
        )


def texts(entry: Mapping[str, Any], field: str) -> Sequence[str]:
    """A list of texts in an entry of collections.json; empty when it is not there."""
    found: Sequence[str] = entry.get(field, [])
    return found
