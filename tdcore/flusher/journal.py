"""Journal: what a flusher has promised and done, in a local file, so that the next one need not ask a bucket.

Kinds of lines (JSON): a file that is about to be written ("begin"), one that is durable ("file"), and
one that took the place of others ("merge"). A restarted flusher writes what was begun under the same names
again, so that a bucket which has it already gets the same bytes once more.

It must outlive the flusher, not the machine: when the machine goes, the ring goes too. So nothing is synced.
One thread: the flusher's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tdcore.flusher.health import say
from tdcore.flusher.summary import Gap, IndexSummary
from tdcore.format.layout import FileRange

__all__ = ["Journal", "Recorded"]

Line = tuple[FileRange, int, "IndexSummary | None"]  # range, size, summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a journal says. files: durable index files, oldest first. begun: ranges that may be half there."""

    files: list[Line]
    begun: list[FileRange]


class Journal:
    """The journal at `path`, made with the first line. A line that cannot be written ends it, and is said."""

    def __init__(self, path: Path, *, worker: str, attempt: int) -> None:
        self._path = path
        self._worker = worker
        self._attempt = attempt
        self._broken = False

    def start(self) -> None:
        """The first flusher begins: nothing is written yet, whatever an earlier run at this place left."""
        self._remove()
        self._append({"start": self._attempt})

    def begin(self, place: FileRange) -> None:
        """The segment and index file of this range will be written."""
        self._append({"begin": [place.first, place.last]})

    def add(self, place: FileRange, size: int, summary: IndexSummary | None) -> None:
        """The index file of this range is durable."""
        self._append({"file": _file(place, size, summary)})

    def replace(self, place: FileRange, size: int, summary: IndexSummary | None) -> None:
        """The index file of this range took the place of those that it covers."""
        self._append({"merge": _file(place, size, summary)})

    def read(self) -> Recorded | None:
        """All that was recorded; None when there is no journal, or it cannot be trusted."""
        try:
            lines = self._path.read_bytes().split(b"\n")
            if lines[-1]:  # half a line: its writer was killed in it
                os.truncate(self._path, self._path.stat().st_size - len(lines[-1]))
        except OSError:
            return None
        files: list[Line] = []
        begun: list[FileRange] = []
        try:
            if "start" not in json.loads(lines[0]):
                return None  # it lost its beginning
            for line in lines[1:-1]:
                self._take(json.loads(line), files, begun)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        covered = files[-1][0].last if files else -1
        return Recorded(files=files, begun=[place for place in begun if place.first > covered])

    def _take(self, line: dict[str, Any], files: list[Line], begun: list[FileRange]) -> None:
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
        """The flusher has ended well: nobody will ask for it."""
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
            say(f"{self._worker}: the journal {self._path} cannot be written ({error}); it is given up")
            self._remove()

    def _remove(self) -> None:
        """Better none than one that lacks lines: without it the bucket is asked."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            say(f"{self._worker}: the journal {self._path} cannot be removed ({error})")


def _file(place: FileRange, size: int, summary: IndexSummary | None) -> dict[str, Any]:
    told = asdict(summary) if summary is not None else None
    return {"first": place.first, "last": place.last, "size": size, "summary": told}


def _summary(raw: dict[str, Any]) -> IndexSummary | None:
    told = raw["summary"]
    if told is None:
        return None
    gaps: Iterable[dict[str, Any]] = told.pop("gaps")
    return IndexSummary(**told, gaps=tuple(Gap(**gap) for gap in gaps))
