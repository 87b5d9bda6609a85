"""runs_below: search for runs in a folder or under a prefix of a bucket. Any thread."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from tdcore.errors import SinkKeyError
from tdcore.format.layout import RUN_KEY
from tdcore.sinks import is_remote, local_path, open_sink, place_text

__all__ = ["runs_below"]

_DEPTH = 3  # levels below the place that are searched


def runs_below(place: str | os.PathLike[str]) -> list[str]:
    """Places of the runs below `place`, sorted. Empty if `place` is a run itself, or contains no run.

    Folders without read permission are skipped. In a bucket all keys under the prefix are listed, with one
    request for each thousand keys. Raises SinkError if the bucket rejects a request.
    """
    url = place_text(place)
    return _below_prefix(url) if is_remote(url) else _below_folder(Path(local_path(url)))


def _below_folder(folder: Path) -> list[str]:
    if not folder.is_dir() or _is_run(folder):
        return []
    found: list[Path] = []
    level = [folder]
    for _ in range(_DEPTH):
        inside = [child for parent in level for child in _folders_in(parent)]
        found += filter(_is_run, inside)
        level = [child for child in inside if not _is_run(child)]
    return [str(place) for place in sorted(found)]


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [child for child in folder.iterdir() if os.path.isdir(child)]
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return os.path.lexists(
        folder / RUN_KEY
    )  # True for a link, which is rejected later; False without permission


def _below_prefix(url: str) -> list[str]:
    base, mark, options = url.partition("?")
    with closing(open_sink(url)) as sink:
        try:
            sink.get(RUN_KEY)
            return []
        except SinkKeyError:
            pass
        keys = sink.list("")
    folders = sorted(key[: -len(RUN_KEY) - 1] for key in keys if key.endswith(f"/{RUN_KEY}"))
    return [f"{base.rstrip('/')}/{folder}{mark}{options}" for folder in folders if folder.count("/") < _DEPTH]
