"""create_trial: opens a run for reading."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError, RunNotFound, SinkKeyError, UnsupportedFeature
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
    refresh_interval: timedelta = timedelta(0),
) -> Trial:
    """Opens a run for reading, also one that is still being written.

    path: the run's folder or URL. name: for the user; the folder's name when None. range_steps: only these
    global steps, (first, end) with end exclusive, None for no bound. attempt: that attempt alone; None is
    the latest history, in which an attempt replaces earlier ones from its own first step on. verify:
    compare the checksum of every payload read. wait: how long to wait for a run that has not begun to
    write. settle: a step counts as complete when a worker has added nothing to it for this long.
    refresh_interval: how old an answer may be before the folder is listed again. Raises RunNotFound,
    UnsupportedFormat, RunCorrupt, InvalidAttempt, SinkError.
    """
    from tdcore.sinks import local_path, open_sink

    where = os.fspath(path)
    try:
        root: Path | None = Path(local_path(where))
    except UnsupportedFeature:
        root = None
    sink = open_sink(where)
    low, high = range_steps or (None, None)
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"range_steps {range_steps!r} is empty; the end must be larger than the first step")
    deadline = time.monotonic() + wait.total_seconds()
    while True:
        try:
            reader = Reader(
                sink,
                root,
                verify=verify,
                attempt=attempt,
                step_range=(low, high),
                settle=settle,
                refresh_interval=refresh_interval,
            )
            break
        except SinkKeyError as error:
            if time.monotonic() >= deadline:
                raise _not_found(where, root) from error
            time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))
    trial = Trial(reader, where, name or os.path.basename(where.rstrip("/")) or where)
    reader.refresh()
    if attempt is not None:
        reader.check_attempt(attempt)
    return trial


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


def _not_found(where: str, root: Path | None) -> RunNotFound:
    if root is None or root.is_dir():
        return RunNotFound(
            f"{where} has no run.json: it is not a run of tdcore, or the training has not begun to write; "
            "check the path given to the hook as out_dir, or pass wait=timedelta(minutes=1)"
        )
    if root.exists():
        return RunNotFound(f"{where} is a file; give the folder of a run, the hook's out_dir")
    return RunNotFound(f"{where} does not exist; give the folder of a run, the hook's out_dir")
