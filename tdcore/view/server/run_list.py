"""RunList: the runs at the place that the view has opened, by their ids.

The place is a run, a folder or prefix with runs below it, or a place where no run has begun. A request names
a run by its id and never by a path, so no request reaches another place. Any thread.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tdcore.compat.place import RunOrRecording
from tdcore.errors import RunNotFound, SinkKeyError
from tdcore.format.layout import RUN_KEY
from tdcore.sinks import is_remote, local_path, open_sink, shown_place
from tdcore.text.quoting import quoted
from tdcore.trial.run_search import is_run_folder, runs_below
from tdcore.view.answers.names import id_of

__all__ = ["ListedRun", "RunList"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run at the place.

    Attributes:
        id: Id in requests: the path from the opened folder, or the name of a run that was opened alone, with
            escapes for commas.
        place: Folder or URL.
        error: Why the run is not opened; "" if it may be opened.
    """

    id: str
    place: str
    error: str = ""


class RunList:
    """The runs at a place.

    place: a folder, or s3://bucket/prefix. It need not exist yet.

    Raises RunNotFound if the place is a file.
    """

    def __init__(self, place: str) -> None:
        self.remote = is_remote(place)
        self.place = place if self.remote else os.path.abspath(local_path(place))
        self.shown = shown_place(self.place)
        if not self.remote and os.path.isfile(self.place):
            raise RunNotFound(
                f"{self.place} is a file; give the folder of a run, or a folder with runs below it"
            )

    def scan(self) -> dict[str, ListedRun]:
        """The runs that are there now, by id. Raises SinkError if a bucket rejects a request."""
        below = runs_below(self.place)
        if not below:
            return self._alone() if self._is_run() else {}
        root = os.path.realpath(self.place)
        found: dict[str, ListedRun] = {}
        for place in below:
            run_id = id_of(quoted(self._relative(place)))
            if run_id not in found:
                found[run_id] = ListedRun(id=run_id, place=place, error=self._outside(place, root))
        return found

    def _alone(self) -> dict[str, ListedRun]:
        run_id = id_of(quoted(os.path.basename(self.shown.rstrip("/")) or self.shown))
        return {run_id: ListedRun(id=run_id, place=self.place)}

    def _is_run(self) -> bool:
        if not self.remote:
            return is_run_folder(Path(self.place))
        with closing(RunOrRecording(open_sink(self.place))) as sink, suppress(SinkKeyError):
            sink.get(RUN_KEY)
            return True
        return False

    def _relative(self, place: str) -> str:
        if self.remote:
            return shown_place(place)[len(self.shown.rstrip("/")) + 1 :]
        return Path(place).relative_to(self.place).as_posix()

    def _outside(self, place: str, root: str) -> str:
        """Why a run is not opened: it is outside of the opened folder; "" if it is inside."""
        if self.remote or os.path.commonpath([root, os.path.realpath(place)]) == root:
            return ""
        return (
            f"{quoted(place)} is a link to a folder outside of {quoted(self.place)}; open that folder itself"
        )
