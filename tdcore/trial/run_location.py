"""RunLocation: a run opened for reading, in a folder or in a bucket with a local cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs

from tdcore.format.layout import RUN_KEY
from tdcore.format.smdebug import COLLECTIONS_FOLDER, INDEX_FOLDER
from tdcore.sinks import Sink, is_remote, local_path, open_sink, place_text, shown_place

__all__ = ["RunLocation", "is_recording_folder", "open_location", "poll_interval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """The place of a run, and its sink.

    Attributes:
        url: Path or URL that opens the run again.
        shown: Path or URL without options, for messages.
        sink: The run.
        root: Folder of the run; None for a bucket.
    """

    url: str
    shown: str
    sink: Sink
    root: Path | None

    @property
    def name(self) -> str:
        """The last part of the path or URL."""
        return os.path.basename(self.shown.rstrip("/")) or self.shown


def poll_interval(root: Path | None, *, near: float) -> timedelta:
    """Interval between two polls of a run: `near` seconds for a folder (`root`), one second for a bucket."""
    return timedelta(seconds=near if root is not None else 1.0)


def open_location(place: str | os.PathLike[str]) -> RunLocation:
    """Open a path or URL. A folder is checked for a recording of smdebug; nothing else is read yet.

    Raises UnsupportedFeature for an unknown URL scheme, ConfigError for an invalid URL.
    """
    url = place_text(place)
    if not is_remote(url):
        root = Path(local_path(url))
        if not is_recording_folder(root):
            return RunLocation(url=url, shown=url, sink=open_sink(url), root=root)
    from tdcore.compat.place import RunOrRecording
    from tdcore.sinks.cache import CachedSink

    shown = shown_place(url)
    endpoint = parse_qs(url.partition("?")[2]).get("endpoint_url", [""])[0]
    place = f"{shown} {endpoint}" if is_remote(url) else os.path.abspath(local_path(url))
    return RunLocation(
        url=url, shown=shown, sink=CachedSink(RunOrRecording(open_sink(url)), place), root=None
    )


def is_recording_folder(folder: Path) -> bool:
    """Whether a folder has the folders of a recording of smdebug, and no run.json."""
    has_parts = all(os.path.isdir(folder / part) for part in (COLLECTIONS_FOLDER, INDEX_FOLDER))
    return has_parts and not os.path.lexists(folder / RUN_KEY)
