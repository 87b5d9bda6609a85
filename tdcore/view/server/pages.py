"""The files of the page: tdcore/view/static, read once. Any thread."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from tdcore.errors import RunError

__all__ = ["PageFile", "load_pages"]

_FOLDER = Path(__file__).resolve().parents[1] / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file. packed: the content, compressed by gzip. etag: with quotes, as in the header."""

    content: bytes
    packed: bytes
    media_type: str
    etag: str


def load_pages(folder: Path = _FOLDER) -> dict[str, PageFile]:
    """The files by name. Raises RunError if this installation lacks them."""
    found = {}
    for path in sorted(folder.glob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = PageFile(
                content=content,
                packed=gzip.compress(content, 9, mtime=0),
                media_type=_TYPES[path.suffix],
                etag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            )
    if "index.html" not in found:
        raise RunError(
            f"this installation has no files of the page in {folder}; install tdcore again, or run "
            "`npm run build` in the folder web of the sources"
        )
    return found
