"""RowFiles: names of Parquet files with numbered rows, such as samples of the machine and times of steps.

    <prefix>[<folder>/]<worker>/<attempt>-<first>-<last>.parquet

The rows of a worker and attempt (and folder) are numbered from 0; <first> and <last> are the numbers of the
first and the last row in the file. A file supersedes another file of its folder whose range is inside its own
(format/layout.py: live_ranges). Pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tdcore.format.layout import FileRange, parse_index_key

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_ROW", "TIME_LIMIT", "RowFiles"]

MAX_ROW = 10**12 - 1  # highest number of a row, which has twelve digits in a key
TIME_LIMIT = 1 << 62  # above the nanoseconds of all times

_FOLDER_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFiles:
    """One kind of files.

    Attributes:
        what: The rows, for messages: "system samples".
        prefix: Start of all keys: "system/".
        has_folders: Whether a key has a folder before the worker, such as the name of the host.
        number: Column with the number of the row.
        limits: Columns with whole numbers from 0, and the number that is above all their values.
        sums: Columns of `limits` that have a sum below the limit too, in each table that is read.
        names: Columns with names, and the possible names.
        schema: Returns the columns of a file. The call imports pyarrow.
    """

    what: str
    prefix: str
    has_folders: bool
    number: str
    limits: Mapping[str, int]
    sums: tuple[str, ...] = ()
    names: Mapping[str, frozenset[str]] = field(default_factory=dict)
    schema: Callable[[], pa.Schema]

    def prefix_of(self, folder: str, worker: str) -> str:
        """Prefix of the files of a worker. folder: "" if this kind has no folders."""
        return f"{self.prefix}{folder}/{worker}/" if self.has_folders else f"{self.prefix}{worker}/"

    def key(self, folder: str, place: FileRange) -> str:
        """Key of the file with the rows `place.first` to `place.last` of a worker's attempt."""
        return self.prefix_of(folder, place.worker) + place.index_key.rpartition("/")[2]

    def parse(self, key: str) -> tuple[str, FileRange] | None:
        """Folder and range of rows of a file; None for any other key."""
        if not key.startswith(self.prefix):
            return None
        folder, rest = "", key[len(self.prefix) :]
        if self.has_folders:
            folder, _, rest = rest.partition("/")
            if _FOLDER_PATTERN.fullmatch(folder) is None:
                return None
        place = parse_index_key(f"index/{rest}")
        return None if place is None else (folder, place)
