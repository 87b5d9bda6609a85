"""Places to keep a run: a local folder now; others join behind the same protocol."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from tdcore.errors import UnsupportedFeature
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
    "local_path",
    "open_sink",
]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def local_path(url: str) -> str:
    """Folder that `url` names: a plain path as it is, or that of a file:// URL.

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
        raise UnsupportedFeature(
            f"{url!r}: S3 is not in this version of tdcore (it will come as the extra tdcore-capture[s3]); "
            "give a local folder and copy the finished run"
        )
    raise UnsupportedFeature(f"{url!r}: no sink for {parts.scheme}://; give a local folder or a file:// URL")


def open_sink(url: str) -> Sink:
    """The sink of the run at `url`: a local path or file://. Creates nothing; the first put does.

    Raises UnsupportedFeature for other schemes.
    """
    return LocalSink(local_path(url))
