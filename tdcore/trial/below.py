"""Runs below a place: in a folder, or under a prefix of a bucket. Any thread."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from tdcore.errors import SinkKeyError
from tdcore.layout import RUN_KEY
from tdcore.sinks import is_remote, local_path, open_sink, place_text

__all__ = ["runs_below"]

_DEPTH = 3  # how many levels below a place runs are looked for


def runs_below(place: str | os.PathLike[str]) -> list[str]:
    """Places of the runs below, sorted; none when it is a run itself, or holds none.

    In a bucket this lists all keys under the prefix: a request for every thousand of them. Raises SinkError
    when the bucket refuses.
    """
    url = place_text(place)
    return _below_prefix(url) if is_remote(url) else _below_folder(Path(local_path(url)))


def _below_folder(folder: Path) -> list[str]:
    if not folder.is_dir() or (folder / RUN_KEY).exists():
        return []
    found = []
    level = [folder]
    for _ in range(_DEPTH):
        inside = [child for parent in level for child in sorted(parent.iterdir()) if child.is_dir()]
        found += [child for child in inside if (child / RUN_KEY).exists()]
        level = [child for child in inside if not (child / RUN_KEY).exists()]
    return [str(place) for place in sorted(found)]


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
