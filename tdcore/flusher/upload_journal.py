"""UploadJournal: a local file with the uploads of a flusher, so that a restart needs no listing.

Each line is a JSON object: {"begin": ...} before a file is written, {"file": ...} when an index file is
durable, {"merge": ...} when an index file replaces others. A restarted flusher writes all begun files again,
with the same names and the same bytes.

The journal must survive a crash of the flusher, but not of the machine, because the ring is then lost too.
The journal is therefore never synced to disk. Threads: only the flusher's thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tdcore.flusher.index_summary import IndexGap, IndexSummary
from tdcore.flusher.messages import print_message
from tdcore.format.layout import FileRange

__all__ = ["JournalContent", "UploadJournal"]

Line = tuple[FileRange, int, "IndexSummary | None"]  # range, size, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContent:
    """Contents of a journal. files: durable index files, oldest first. begun: ranges of incomplete files."""

    files: list[Line]
    begun: list[FileRange]


class UploadJournal:
    """The journal at `path`. It is created with its first line, and removed if a line cannot be written."""

    def __init__(self, path: Path, *, worker: str, attempt: int) -> None:
        self._path = path
        self._worker = worker
        self._attempt = attempt
        self._broken = False

    def start(self) -> None:
        """Begin a new journal, for the first flusher of the attempt. A file of an earlier run is removed."""
        self._remove()
        self._append({"start": self._attempt})

    def begin(self, place: FileRange) -> None:
        """Record that the segment and the index file of this range will be written next."""
        self._append({"begin": [place.first, place.last]})

    def add(self, place: FileRange, size: int, summary: IndexSummary | None) -> None:
        """Record that the index file of this range is durable."""
        self._append({"file": _file(place, size, summary)})

    def replace(self, place: FileRange, size: int, summary: IndexSummary | None) -> None:
        """Record that the index file of this range replaces the index files that it covers."""
        self._append({"merge": _file(place, size, summary)})

    def read(self) -> JournalContent | None:
        """The contents of the journal; None if it does not exist or is damaged."""
        try:
            lines = self._path.read_bytes().split(b"\n")
            if lines[-1]:  # an incomplete line, whose writer was killed
                os.truncate(self._path, self._path.stat().st_size - len(lines[-1]))
        except OSError:
            return None
        files: list[Line] = []
        begun: list[FileRange] = []
        try:
            if "start" not in json.loads(lines[0]):
                return None  # the beginning of the journal is missing
            for line in lines[1:-1]:
                self._apply(json.loads(line), files, begun)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        covered = files[-1][0].last if files else -1
        return JournalContent(files=files, begun=[place for place in begun if place.first > covered])

    def _apply(self, line: dict[str, Any], files: list[Line], begun: list[FileRange]) -> None:
        if "begin" in line:
            first, last = line["begin"]
            begun[:] = [place for place in begun if place.first < first]
            begun.append(self._range(first, last))
            return
        raw = line.get("file") or line["merge"]
        place = self._range(raw["first"], raw["last"])
        if "merge" in line:
            at = [place.contains(old[0]) for old in files].index(True)
            files[:] = [old for old in files if not place.contains(old[0])]
            files.insert(at, (place, int(raw["size"]), _summary(raw)))
        else:
            files.append((place, int(raw["size"]), _summary(raw)))

    def _range(self, first: int, last: int) -> FileRange:
        return FileRange(self._worker, self._attempt, int(first), int(last))

    def remove(self) -> None:
        """Remove the journal, after the flusher has ended normally."""
        self._remove()

    def _append(self, line: dict[str, Any]) -> None:
        if self._broken:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
                if os.write(handle, text) != len(text):
                    raise OSError("only a part could be written")
            finally:
                os.close(handle)
        except OSError as error:
            self._broken = True
            print_message(
                f"{self._worker}: the journal {self._path} cannot be written ({error}) and is "
                "removed; a restarted flusher lists the bucket instead"
            )
            self._remove()

    def _remove(self) -> None:
        """Remove the file. Without a journal a restarted flusher lists the bucket."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            print_message(f"{self._worker}: the journal {self._path} cannot be removed ({error})")


def _file(place: FileRange, size: int, summary: IndexSummary | None) -> dict[str, Any]:
    values = asdict(summary) if summary is not None else None
    return {"first": place.first, "last": place.last, "size": size, "summary": values}


def _summary(raw: dict[str, Any]) -> IndexSummary | None:
    values = raw["summary"]
    if values is None:
        return None
    gaps: Iterable[dict[str, Any]] = values.pop("gaps")
    return IndexSummary(**values, gaps=tuple(IndexGap(**gap) for gap in gaps))
