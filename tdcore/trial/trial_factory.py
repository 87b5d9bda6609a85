"""create_trial: open a run for reading. open_trial: open the run of a sink, in tests and tools."""

from __future__ import annotations

import logging
import math
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError, RunNotFound, SinkKeyError
from tdcore.trial.reader import Reader
from tdcore.trial.run_location import RunLocation, open_location, poll_interval
from tdcore.trial.trial import Trial

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["create_trial", "open_trial"]

_log = logging.getLogger("tdcore")
_REMINDER_SECONDS = 60.0


def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    range_steps: tuple[int | None, int | None] | None = None,
    attempt: int | None = None,
    verify: bool = True,
    wait: timedelta | None = timedelta(0),
    settle: timedelta = timedelta(seconds=5),
    refresh_interval: timedelta | None = None,
    compat: bool = False,
) -> Trial:
    """Open a run for reading, even while it is being written.

    Args:
        path: Folder or URL of the run ("s3://bucket/prefix?options").
        name: Name for the user. None: the last part of the path.
        range_steps: Read only these global steps: (first, end) with end exclusive; None: no bound.
        attempt: Read only this attempt. None: the latest history, in which an attempt replaces the earlier
            attempts from its own first step on.
        verify: Compare the checksum of every payload that is read.
        wait: Maximum time to wait for a run that has not begun to write; None: no limit. The place is logged
            immediately and then once a minute.
        settle: A step counts as complete if a worker has added no rows to it for this time.
        refresh_interval: Minimum time between two reads of new data. None: zero for a folder, one second for
            a bucket.
        compat: Return values, collections and scalars in the form of smdebug. Arrays are writable
            copies, a number of save_scalar() has shape (1,) instead of (), and collection() creates a
            collection that is missing in the run.

    Raises:
        RunNotFound: There is no run, even after `wait`.
        UnsupportedFormat, RunCorrupt, InvalidAttempt, ConfigError, SinkError: The run cannot be read.
    """
    low, high = range_steps or (None, None)
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"range_steps {range_steps!r} is empty; the end must be larger than the first step")
    place = open_location(path)
    try:
        reader = _reader(
            place,
            wait,
            verify=verify,
            attempt=attempt,
            step_range=(low, high),
            settle=settle,
            refresh_interval=poll_interval(place.root, near=0)
            if refresh_interval is None
            else refresh_interval,
            compat=compat,
        )
        reader.refresh()
        if attempt is not None:
            reader.check_attempt(attempt)
    except BaseException:
        place.sink.close()
        raise
    return Trial(reader, place.url, name or place.name)


def _reader(place: RunLocation, wait: timedelta | None, **options: Any) -> Reader:
    """Create a reader of the run after it has begun."""
    begun = time.monotonic()
    limit = math.inf if wait is None else wait.total_seconds()
    reminded = -math.inf
    while True:
        try:
            return Reader(place.sink, place.root, **options)
        except SinkKeyError as error:  # noqa: PERF203 -- once a look, with a pause between two
            waited = time.monotonic() - begun
            if waited >= limit or (place.root is not None and place.root.is_file()):
                raise _not_found(place) from error
            if waited - reminded >= _REMINDER_SECONDS:
                reminded = waited
                until = "" if wait is None else f", at most {wait}"
                _log.warning("tdcore: create_trial waits for a run to begin at %s%s", place.shown, until)
            time.sleep(min(poll_interval(place.root, near=0.1).total_seconds(), limit - waited))


def open_trial(sink: Sink, name: str = "run", **options: Any) -> Trial:
    """Open the run of any sink, for tests and tools. options: see Reader."""
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


def _not_found(place: RunLocation) -> RunNotFound:
    if place.root is None or place.root.is_dir():
        below = "; `tdcore ls` lists the runs below a prefix"
        return RunNotFound(
            f"{place.shown} has no run.json: it is not a run of tdcore, or the training has not begun to "
            "write; check the path given to the hook as out_dir, or wait until it has begun"
            + (below if place.root is None else "")
        )
    if place.root.exists():
        return RunNotFound(f"{place.shown} is a file; give the folder of a run, the hook's out_dir")
    return RunNotFound(f"{place.shown} does not exist; give the folder of a run, the hook's out_dir")
