"""Sinks: storage of a run in a local folder or a bucket. Other implementations use the same protocol."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from tdcore.errors import ConfigError, UnsupportedFeature
from tdcore.sinks.base import Sink, SinkError, SinkErrorKind, SinkKeyError
from tdcore.sinks.local import LocalSink
from tdcore.sinks.memory import MemorySink

__all__ = [
    "LocalSink",
    "MemorySink",
    "Sink",
    "SinkError",
    "SinkErrorKind",
    "SinkKeyError",
    "is_remote",
    "local_path",
    "open_sink",
    "place_text",
    "shown_place",
]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def local_path(url: str) -> str:
    """Folder of `url`, which is a plain path or a file:// URL.

    Raises UnsupportedFeature for every other scheme.
    """
    if _SCHEME.match(url) is None:
        if not url:
            raise UnsupportedFeature("the place of a run is empty; give a folder, such as 'runs/demo'")
        return url
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise UnsupportedFeature(f"{url!r} names the host {parts.netloc!r}; write file:///absolute/path")
        return unquote(parts.path)
    if parts.scheme == "s3":
        raise UnsupportedFeature(f"{url!r} is a place in a bucket, not a folder")
    raise UnsupportedFeature(
        f"{url!r}: no sink for {parts.scheme}://; give a folder, a file:// URL or s3://bucket/prefix"
    )


def is_remote(url: str) -> bool:
    """Whether `url` is a place in a bucket."""
    return url[:5].lower() == "s3://"


def place_text(place: str | os.PathLike[str], *, name: str = "the place of a run") -> str:
    """Convert a place to text for open_sink().

    Args:
        place: Folder or URL.
        name: Name of the place in messages.

    Raises:
        ConfigError: The value is not a place, or is a URL that was converted to a Path.
    """
    text = os.fspath(place)
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{name} must be a folder or a URL, got {place!r}")
    if text.lower().startswith("s3:/") and not is_remote(text):
        raise ConfigError(
            f"{text!r}: pathlib.Path replaces '//' by '/'; give the URL as a string, such as 's3://bucket/run'"
        )
    return text


def shown_place(url: str) -> str:
    """A place for messages: the URL of a bucket without its options."""
    return url.partition("?")[0] if is_remote(url) else url


def open_sink(url: str) -> Sink:
    """The sink of the run at `url`: a local path, file:// or s3://bucket/prefix?options.

    Nothing is created before the first put.

    Raises:
        UnsupportedFeature: The URL has another scheme.
        ConfigError: The options are invalid.
    """
    if is_remote(url):
        from tdcore.sinks.s3 import S3Sink

        return S3Sink(url)
    return LocalSink(local_path(url))
