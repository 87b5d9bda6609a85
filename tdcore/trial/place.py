"""RunPlace: where a run is, opened for reading: a folder, or a bucket behind a cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs

from tdcore.sinks import Sink, is_remote, local_path, open_sink, place_text, shown_place

__all__ = ["RunPlace", "open_place", "pause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """url: as given, fit to open the run again. shown: the same for messages, without options.

    sink: the run. root: its folder; None where it is not on this machine.
    """

    url: str
    shown: str
    sink: Sink
    root: Path | None

    @property
    def name(self) -> str:
        """The last part of the place."""
        return os.path.basename(self.shown.rstrip("/")) or self.shown


def pause(root: Path | None, *, near: float) -> timedelta:
    """Between two looks at a run: `near` seconds where it is local, and a second where it is not."""
    return timedelta(seconds=near if root is not None else 1.0)


def open_place(place: str | os.PathLike[str]) -> RunPlace:
    """The run at a path or URL; nothing is read yet.

    Raises UnsupportedFeature for a scheme that is not served, ConfigError for a URL that is wrong.
    """
    url = place_text(place)
    if not is_remote(url):
        root = Path(local_path(url))
        return RunPlace(url=url, shown=url, sink=open_sink(url), root=root)
    from tdcore.sinks.cache import CachedSink

    shown = shown_place(url)
    endpoint = parse_qs(url.partition("?")[2]).get("endpoint_url", [""])[0]
    return RunPlace(url=url, shown=shown, sink=CachedSink(open_sink(url), f"{shown} {endpoint}"), root=None)
