"""The last lines of `tdcore run`: number of recorded rows, size, cost, and the next commands.

The lines are computed from the counters of the hook, so the files of the run are not read. Only their sizes
are read, if the run is in a folder. Threads: the main thread, at the end of the program.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tdcore.format.layout import worker_name
from tdcore.sinks import is_remote, shown_place
from tdcore.text.short_repr import how_many

if TYPE_CHECKING:
    from tdcore.hooks.base import BaseHook

__all__ = ["RunSummary"]

_MOST_FILES = 10_000  # maximum number of files whose sizes are added


class RunSummary:
    """Summary of the run of a hook, without a reference to the hook or its session.

    folder: where the command was started; paths are shown relative to it.
    """

    def __init__(self, hook: BaseHook, folder: str) -> None:
        session = hook._session
        self._counts = (
            session._supervisor if session is not None and session.worker == worker_name(0) else None
        )
        self._attempt = session.attempt if session is not None else 0
        self._clock = hook._clock
        self._recorder = hook._recorder
        self._place = hook.out_dir
        self._folder = folder

    def lines(self) -> Iterator[str]:
        """The lines, after the hook was closed; no line for workers other than the first."""
        if self._counts is None:
            return
        report = self._counts.close()  # waits for the data of a hook that was deleted with its model
        rows, drops = report.progress.rows, report.counters.drops
        attempt = f", attempt {self._attempt}" if self._attempt else ""
        what = f"{how_many(self._clock.saving, 'saved step')}, {how_many(rows, 'row')}"
        yield f"recorded {what}{_size(self._place, self._attempt)} in {self._shown()}{attempt}"
        if self._clock.saving:
            dropped = {reason: drop.tensors for reason, drop in drops.items()}
            yield f"capture took {self._cost()}; {_dropped(dropped)}"
        place = shlex.quote(self._place if is_remote(self._place) else self._shown())
        yield f"next: tdcore rules run {place}, or tdcore show {place}"

    def _cost(self) -> str:
        """The time in the hook; that of the first saved step includes the search for optimizers."""
        spent, first = self._recorder.spent_ns / 1e6, self._recorder.first_spent_ns / 1e6
        text = f"{spent:,.1f} ms of the training's time"
        if not first:
            return text
        later = (spent - first) / (self._clock.saving - 1)
        return f"{text}, {first:,.1f} ms for the first saved step and {later:,.2f} ms for each further one"

    def _shown(self) -> str:
        if is_remote(self._place):
            return shown_place(self._place)
        short = os.path.relpath(self._place, self._folder)
        return self._place if short.startswith(os.pardir) else short


def _dropped(drops: Mapping[str, int]) -> str:
    if not drops:
        return "nothing was dropped"
    reasons = ", ".join(f"{reason}: {count:,}" for reason, count in drops.items())
    return f"{how_many(sum(drops.values()), 'tensor')} dropped ({reasons})"


def _size(place: str, attempt: int) -> str:
    """ ", 1.2 MB" for the attempt's files; "" if they are in a bucket or cannot all be read."""
    total = 0
    try:
        for part in () if is_remote(place) else ("index", "data"):
            total += _bytes_of(os.path.join(place, part, worker_name(0)), f"{attempt:04d}-")
    except OSError:  # the folder, or a merged file, was just removed
        return ""
    if not total:
        return ""
    return f", {total / 1e6:,.1f} MB" if total >= 100_000 else f", {total / 1e3:,.1f} KB"


def _bytes_of(folder: str, prefix: str) -> int:
    """Bytes of the files with this prefix; 0 without the folder. Too many files also raise OSError."""
    if not os.path.isdir(folder):
        return 0
    with os.scandir(folder) as entries:
        found = itertools.islice(entries, _MOST_FILES + 1)
        files = [entry for entry in found if entry.name.startswith(prefix)]
    if len(files) > _MOST_FILES:
        raise OSError(f"more than {_MOST_FILES} files")
    return sum(file.stat(follow_symlinks=False).st_size for file in files)
