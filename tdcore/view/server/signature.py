"""Signature: a value that changes when a process writes into the folder of a run.

Files of a run are complete when they appear, because the writer renames them. Each new file therefore changes
the time of its folder. One `stat` of each folder detects all changes, and no file is read.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

__all__ = ["Signature", "signature_of"]

_MAX_FOLDERS = 4096  # more folders are not from tdcore; their files are found at the next read
_DEPTH = 3  # system/<host>/<worker>/
_RECENT_NS = 2_000_000_000  # file systems with coarse times: two writes may have the same time
_SKIPPED = frozenset({"data", "profiles"})  # a row in index/ follows each payload


@dataclass(frozen=True, slots=True)
class Signature:
    """The folders of a run at a moment.

    Attributes:
        folders: Path, inode and time of change of each folder, in order of paths.
        recent: Whether a folder has changed so recently that a further change may leave the time as it is.
    """

    folders: tuple[tuple[str, int, int], ...]
    recent: bool

    def differs(self, other: Signature | None) -> bool:
        """Whether files may have been written between the two moments. other: None: always."""
        return other is None or other.recent or self.folders != other.folders


def signature_of(root: str) -> Signature | None:
    """The signature of the run in the folder `root`; None if there is no folder."""
    found: list[tuple[str, int, int]] = []
    level = [root]
    for depth in range(_DEPTH + 1):
        below: list[str] = []
        for folder in level:
            try:
                status = os.stat(folder, follow_symlinks=depth == 0)
                inside = _folders_in(folder, depth) if depth < _DEPTH else []
            except OSError:
                if depth == 0:
                    return None
                continue
            found.append((folder, status.st_ino, status.st_mtime_ns))
            below += inside
        level = below[: _MAX_FOLDERS - len(found)]
    newest = max(changed for _, _, changed in found)
    return Signature(tuple(sorted(found)), recent=newest > time.time_ns() - _RECENT_NS)


def _folders_in(folder: str, depth: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [
            each.path
            for each in entries
            if each.is_dir(follow_symlinks=False) and not (depth == 0 and each.name in _SKIPPED)
        ]
