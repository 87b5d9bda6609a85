"""Points: the numbers of a batch, under names that a tool accepts.

A tensor with one element is exported under its name, and the statistics of a larger tensor as "name/mean"
and so on. A tool restricts the characters and the length of names. A name that has to be changed gets a
suffix from its own checksum, so that different names stay different, also in another process.

Threads: any; no shared state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from tdcore.export.histograms import magnitude_buckets
from tdcore.export.source import STATISTICS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tdcore.export.source import Selection

__all__ = ["HISTOGRAM", "Naming", "Point", "by_step", "points"]

HISTOGRAM = "magnitudes"  # last part of the name of a histogram
_SUFFIX = re.compile(r"(?:@[0-9]+|-[0-9a-f]{10})\Z")  # endings that tags() itself adds
_ENDINGS = tuple(f"/{name}" for name in (*STATISTICS, HISTOGRAM))


@dataclass(frozen=True, slots=True)
class Naming:
    """The names that a tool accepts.

    Attributes:
        allowed: Pattern of one accepted character.
        max_chars: Maximum length of a name.
        reserved: Names that have another meaning in the tool.
    """

    allowed: str
    max_chars: int = 250
    reserved: frozenset[str] = frozenset()
    _known: dict[tuple[str, int, str], str] = field(default_factory=dict, compare=False)

    def tag(self, name: str, call: int = 0, part: str = "") -> str:
        """The tool's name for a tensor, a call of its module, and a statistic ("": its only element)."""
        key = (name, call, part)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._made(*key)
        return known

    def _made(self, name: str, call: int, part: str) -> str:
        end = (f"@{call}" if call else "") + (f"/{part}" if part else "")
        text = re.sub(rf"(?!{self.allowed}).", "_", name + end, flags=re.DOTALL)
        ambiguous = _SUFFIX.search(name) or (not part and name.endswith(_ENDINGS))
        if (
            text == name + end
            and not ambiguous
            and len(text) <= self.max_chars
            and _is_path(text, self.reserved)
        ):
            return text
        source = repr((name, call, part)).encode(errors="surrogatepass")
        checksum = hashlib.sha256(source).hexdigest()[:10]
        parts = [each for each in text.split("/") if each not in ("", ".", "..")]
        return f"{'/'.join(parts)[: self.max_chars - 11].rstrip('/') or '_'}-{checksum}"


def _is_path(text: str, reserved: frozenset[str]) -> bool:
    """Whether a name is not reserved, and is a plain path, which tools with folders require."""
    return (
        text not in reserved
        and not {"", ".", ".."}.intersection(text.split("/"))
        and not text.startswith("__")
    )


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of one tensor at one step.

    Attributes:
        values: (name in the tool, number) pairs; a number may be NaN or infinite.
        histogram: Name in the tool, and buckets (histograms.py); None for a tensor with one element.
        label: "attempt_0/worker_0/TRAIN".
        step, mode_step: Global step, and step of the mode.
        time: Seconds since 1970.
    """

    values: Sequence[tuple[str, float]]
    histogram: tuple[str, npt.NDArray[np.float64]] | None
    label: str
    mode: str
    step: int
    mode_step: int
    time: float


def points(batch: pa.Table, selection: Selection, naming: Naming, *, mode_in_name: bool) -> Iterator[Point]:
    """The points of the rows with statistics, in the order of the rows.

    mode_in_name: Whether names begin with the mode: "TRAIN/loss".
    """
    for row in batch.filter(batch["count"].is_valid()).to_pylist():
        mode, call = row["mode"], row["call"]
        name = f"{mode}/{row['name']}" if mode_in_name else row["name"]
        histogram = None
        if row["value"] is not None:
            values = [(naming.tag(name, call), row["value"])]
        else:
            numbers = [(each, row[each]) for each in selection.statistics]
            values = [
                (naming.tag(name, call, each), float(number))
                for each, number in numbers
                if number is not None
            ]
            if selection.histograms:
                buckets = magnitude_buckets(
                    row["log2_first"], row["log2_counts"], row["zero_count"], row["abs_min"], row["abs_max"]
                )
                if len(buckets):
                    histogram = (naming.tag(name, call, HISTOGRAM), buckets)
        label = f"attempt_{row['attempt']}/{row['worker']}/{mode}"
        yield Point(values, histogram, label, mode, row["step"], row["mode_step"], row["time_ns"] / 1e9)


def by_step(batch: pa.Table, selection: Selection, naming: Naming) -> Iterator[list[Point]]:
    """The points of each global step, for tools that log all values of a step together."""
    for _, group in groupby(
        points(batch, selection, naming, mode_in_name=True), key=lambda point: point.step
    ):
        yield list(group)
