"""create_trial: opens a run for reading."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError, RunNotFound, SinkKeyError
from tdcore.trial.place import RunPlace, open_place, pause
from tdcore.trial.reader import Reader
from tdcore.trial.trial import Trial

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["create_trial", "open_trial"]


def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    range_steps: tuple[int | None, int | None] | None = None,
    attempt: int | None = None,
    verify: bool = True,
    wait: timedelta = timedelta(0),
    settle: timedelta = timedelta(seconds=5),
    refresh_interval: timedelta | None = None,
) -> Trial:
    """Opens a run for reading, also one that is still being written.

    path: the run's folder or URL ("s3://bucket/prefix?options"). name: for the user; the last part of the
    path when None. range_steps: only these global steps, (first, end) with end exclusive, None for no bound.
    attempt: that attempt alone; None is the latest history, in which an attempt replaces earlier ones from
    its own first step on. verify: compare the checksum of every payload read. wait: how long to wait for a
    run that has not begun to write. settle: a step counts as complete when a worker has added nothing to it
    for this long. refresh_interval: how old an answer may be before the run is looked at again; None: not at
    all old in a folder, a second in a bucket. Raises RunNotFound, UnsupportedFormat, RunCorrupt,
    InvalidAttempt, ConfigError, SinkError.
    """
    low, high = range_steps or (None, None)
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"range_steps {range_steps!r} is empty; the end must be larger than the first step")
    place = open_place(path)
    try:
        reader = _reader(
            place,
            wait,
            verify=verify,
            attempt=attempt,
            step_range=(low, high),
            settle=settle,
            refresh_interval=pause(place.root, near=0) if refresh_interval is None else refresh_interval,
        )
        reader.refresh()
        if attempt is not None:
            reader.check_attempt(attempt)
    except BaseException:
        place.sink.close()
        raise
    return Trial(reader, place.url, name or place.name)


def _reader(place: RunPlace, wait: timedelta, **options: Any) -> Reader:
    """A reader of the run, once it has begun."""
    deadline = time.monotonic() + wait.total_seconds()
    while True:
        try:
            return Reader(place.sink, place.root, **options)
        except SinkKeyError as error:  # noqa: PERF203 -- once a look, with a pause between two
            left = deadline - time.monotonic()
            if left <= 0:
                raise _not_found(place) from error
            time.sleep(min(pause(place.root, near=0.1).total_seconds(), left))


def open_trial(sink: Sink, name: str = "run", **options: Any) -> Trial:
    """A trial of the run in any sink, for tests and tools. options: as in Reader."""
    settings: dict[str, Any] = {
        "verify": True,
        "attempt": None,
        "step_range": (None, None),
        "settle": timedelta(seconds=5),
        "refresh_interval": timedelta(0),
    }
    trial = Trial(Reader(sink, None, **{**settings, **options}), name, name)
    trial.refresh()
    return trial


def _not_found(place: RunPlace) -> RunNotFound:
    if place.root is None or place.root.is_dir():
        below = "; `tdcore ls` lists the runs below a prefix"
        return RunNotFound(
            f"{place.shown} has no run.json: it is not a run of tdcore, or the training has not begun to "
            "write; check the path given to the hook as out_dir, or pass wait=timedelta(minutes=1)"
            + (below if place.root is None else "")
        )
    if place.root.exists():
        return RunNotFound(f"{place.shown} is a file; give the folder of a run, the hook's out_dir")
    return RunNotFound(f"{place.shown} does not exist; give the folder of a run, the hook's out_dir")
