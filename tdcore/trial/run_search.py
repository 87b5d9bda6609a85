"""runs_below: search for runs in a folder or under a prefix of a bucket. Any thread."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from tdcore.errors import SinkKeyError
from tdcore.format.layout import RUN_KEY
from tdcore.format.smdebug import recording_of
from tdcore.sinks import is_remote, local_path, open_sink, place_text
from tdcore.trial.run_location import is_recording_folder

__all__ = ["is_run_folder", "runs_below"]

_DEPTH = 3  # levels below the place that are searched


def runs_below(place: str | os.PathLike[str]) -> list[str]:
    """Places of the runs below `place`, sorted. Empty if `place` is a run itself, or contains no run.

    Folders without read permission are skipped. In a bucket all keys under the prefix are listed, with one
    request for each thousand keys. Raises SinkError if the bucket rejects a request.
    """
    url = place_text(place)
    return _below_prefix(url) if is_remote(url) else _below_folder(Path(local_path(url)))


def _below_folder(folder: Path) -> list[str]:
    if not folder.is_dir() or is_run_folder(folder):
        return []
    found: list[Path] = []
    level = [folder]
    for _ in range(_DEPTH):
        inside = [child for parent in level for child in _folders_in(parent)]
        found += filter(is_run_folder, inside)
        level = [child for child in inside if not is_run_folder(child)]
    return [str(place) for place in sorted(found)]


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [child for child in folder.iterdir() if os.path.isdir(child)]
    except OSError:
        return []


def is_run_folder(folder: Path) -> bool:
    """Whether a folder has a run, or a recording of smdebug.

    True for a run.json that is a link, which is rejected later; False without permission.
    """
    return os.path.lexists(folder / RUN_KEY) or is_recording_folder(folder)


def _below_prefix(url: str) -> list[str]:
    base, mark, options = url.partition("?")
    with closing(open_sink(url)) as sink:
        try:
            sink.get(RUN_KEY)
            return []
        except SinkKeyError:
            pass
        keys = sink.list("")
    folders = sorted({folder for folder in map(_run_of, keys) if folder})
    return [f"{base.rstrip('/')}/{folder}{mark}{options}" for folder in folders if folder.count("/") < _DEPTH]


def _run_of(key: str) -> str:
    """The prefix of the run or recording that has a file with this key; "" for other files."""
    return key[: -len(RUN_KEY) - 1] if key.endswith(f"/{RUN_KEY}") else recording_of(key)
