"""Documents: the small JSON files of a run, read and checked.

run.json, collections.json, end/, findings/. For an invalid document, RunCorrupt or UnsupportedFormat is
raised with the key and the reason (tdcore/format/documents.py). Threads: any (functions without state).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdcore.errors import RunCorrupt, SinkKeyError
from tdcore.format import layout
from tdcore.format.collection_names import expand_names
from tdcore.format.documents import (
    Attempt,
    DropTotal,
    Fields,
    Run,
    check_format,
    claimed_process,
    clipped,
    parse_json,
    parse_run,
)
from tdcore.sinks.base import announce, is_key
from tdcore.text.short_repr import cut

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
class RunEnd:
    """The end of one worker's attempt.

    Attributes:
        clean: Whether the training itself closed the capture.
        reason: The reason in words.
        drops: Tensors that were not stored as requested, by reason.
        document: The whole end file.
    """

    worker: str
    attempt: int
    clean: bool
    reason: str
    drops: Mapping[str, DropTotal]
    document: Mapping[str, Any]

    def __repr__(self) -> str:
        how = "clean" if self.clean else "unclean"
        reason = str(self.document.get("reason") or "no reason given")
        return cut(f"<RunEnd of {self.worker} in attempt {self.attempt}: {how}, {reason}>")


def read_run(sink: Sink) -> Run:
    """Read run.json. Raises SinkKeyError if it does not exist."""
    return parse_run(_bounded(sink, layout.RUN_KEY), layout.RUN_KEY)


def claim_key(worker: str, attempt: int) -> str:
    """Key of the claim of a worker: the file that it writes at the start of an attempt."""
    return f"attempts/{attempt:04d}-{worker}.json"


def read_claim(sink: Sink, worker: str, attempt: int) -> Mapping[str, Any]:
    """The claim of a worker at the start of an attempt; empty if it cannot be read."""
    try:
        return _object(sink, claim_key(worker, attempt)).document
    except (SinkKeyError, RunCorrupt, ValueError):
        return {}


def read_collections(sink: Sink) -> dict[int, dict[str, Mapping[str, Any]]]:
    """The merged collections of all workers: attempt -> name -> entry.

    A collection has the tensors of all workers. All other fields are the first worker's.
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
        fields = _object(sink, key)
    except SinkKeyError:
        return {}
    check_format(fields, key)
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    attempts = {number: entry.document for number, entry in fields.objects("attempts", required=True).items()}
    try:
        whole = Fields({"attempts": expand_names(attempts)}, key)
    except ValueError as error:
        raise RunCorrupt(f"{key}: {error}") from error
    for number, entry in whole.objects("attempts", required=True).items():
        if not _is_number(number):
            raise RunCorrupt(f"{key}: attempt {clipped(number)} is not a number")
        collections = entry.objects("collections", required=True)
        for collection in collections.values():
            for field in ("include_regex", "tensor_names", "module_regex"):
                collection.texts(field)
        found[int(number)] = {name: collection.document for name, collection in collections.items()}
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def read_notes(sink: Sink) -> dict[int, dict[str, Any]]:
    """The merged notes in the workers' files of collections: attempt -> heading -> note.

    Notes of several workers under one heading are joined. If two workers have the same entry, the entry of
    the first worker is used.
    """
    found: dict[int, dict[str, Any]] = {}
    for _, attempt, said in read_notes_of_workers(sink):
        notes = found.setdefault(attempt, {})
        for heading in sorted(said):
            notes[heading] = _joined(notes.get(heading), said[heading])
    return found


def read_notes_of_workers(sink: Sink) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """(worker, attempt, notes) of each worker's file of collections; "" is the first worker."""
    for key in _collection_keys(sink):
        try:
            attempts = _object(sink, key).document.get("attempts")
        except SinkKeyError:
            continue
        worker = key.removeprefix(layout.COLLECTIONS_PREFIX).removesuffix(".json")
        for number, entry in attempts.items() if isinstance(attempts, dict) else ():
            if _is_number(number) and isinstance(entry, dict):
                notes = {heading: said for heading, said in entry.items() if heading != "collections"}
                yield "" if key == layout.COLLECTIONS_KEY else worker, int(number), notes


def _joined(first: Any, said: Any) -> Any:
    """The joined notes of two workers under one heading."""
    if first is None:
        return said
    if isinstance(first, dict) and isinstance(said, dict):
        return {**said, **first}
    if not isinstance(first, list) or not isinstance(said, list):
        return first
    known = {str(one) for one in first}
    return first + [one for one in said if str(one) not in known]


def _collection_keys(sink: Sink) -> list[str]:
    more = [key for key in sink.list(layout.COLLECTIONS_PREFIX) if key.endswith(".json") and is_key(key)]
    return [layout.COLLECTIONS_KEY, *sorted(more)]


def read_ends(
    sink: Sink, keys: Sequence[str], known: Mapping[tuple[str, int], RunEnd], run_id: str
) -> dict[tuple[str, int], RunEnd]:
    """End files by worker and attempt.

    Args:
        sink: The run.
        keys: Keys of end files. Other keys are ignored.
        known: End files that were read before. They are not read again, because an end file is written once.
        run_id: Id of the run.

    Raises:
        RunCorrupt: An end file is invalid, or is of another run.
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
            fields = _object(sink, key)
        except SinkKeyError:
            continue
        check_format(fields, key)
        if fields.text("run_id", run_id) != run_id:
            raise fields.wrong("run_id", f"that of run.json, {clipped(run_id)}")
        found[place] = RunEnd(
            worker=place[0],
            attempt=place[1],
            clean=fields.flag("clean"),
            reason=fields.text("reason", ""),
            drops=fields.drops(),
            document=fields.document,
        )
    return found


def read_findings(sink: Sink) -> list[dict[str, Any]]:
    """All lines of findings/, in order of rules and lines. An incomplete last line is left out."""
    findings: list[dict[str, Any]] = []
    keys = [key for key in sink.list(layout.FINDINGS_PREFIX) if key.endswith(".jsonl") and is_key(key)]
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
                where = f"{key}, line {number}"
                findings.append(Fields(parse_json(line, where), where).document)
    return findings


def _object(sink: Sink, key: str) -> Fields:
    return Fields(parse_json(_bounded(sink, key), key), key)


def _bounded(sink: Sink, key: str) -> bytes:
    """The bytes of a document. A folder rejects a document that is too large before reading it."""
    data, limit = sink.get(key), layout.size_limit(key)
    if limit is not None and len(data) > limit:
        raise RunCorrupt(f"{key} has {len(data):,} bytes; at most {limit:,} are read")
    return data


def texts(entry: Mapping[str, Any], field: str) -> Sequence[str]:
    """A list of texts in an entry of collections.json; empty if it is missing."""
    found: Sequence[str] = entry.get(field, [])
    return found
