"""Overviews: for each tensor its last row and the history of one statistic, for `tdcore show`.

`overviews` returns whole histories, which need about 30 bytes of memory per row. `condensed` returns the
means of a few shares of each history. If all steps are plain and of one worker, it needs memory for the
shares and for one chunk of rows. Threads: see Trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.errors import RunCorrupt
from tdcore.format.packed import spans
from tdcore.modes import ModeKeys
from tdcore.trial.history_blocks import HISTORY_STATISTICS, merged_blocks, plain_blocks
from tdcore.trial.merge_blocks import plain_stretches

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader, Selection

__all__ = ["HISTORY_STATISTICS", "Condensed", "Overview", "condensed", "overviews"]

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_LAST = (
    "name", "kind", "status", "reason", "mode", "mode_step", "step", "count", "nan_count", "pos_inf_count",
    "neg_inf_count", "zero_count", "mean", "std", "min", "max", "l1", "l2", "abs_max",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """One tensor: its last row, and the means of shares of a history, see Overview.means.

    last: The columns of its last row that describe it, and its statistics without the histogram.
    """

    last: Mapping[str, Any]
    means: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One tensor at all steps, in the order of its merged statistics (Trial.stats(merged=True)).

    Attributes:
        last: The last row, by column.
        history: The statistic at each row; NaN is a value, and `known` is False where there is none.
        known: Whether the row has statistics.
        steps, mode_steps: Global step, and step of the mode, of each row.
        modes: Mode of each row, as text.
    """

    last: Mapping[str, Any]
    history: Floats
    known: npt.NDArray[np.bool_]
    steps: Ints
    mode_steps: Ints
    modes: Sequence[str]

    def values(self) -> list[float | None]:
        """The history as numbers; None without statistics."""
        found: list[float | None] = self.history.tolist()
        if not self.known.all():
            for at in np.flatnonzero(~self.known).tolist():
                found[at] = None
        return found

    def means(self, width: int) -> list[float | None]:
        """The means of the finite values in at most `width` equal shares of the history, in order.

        A share without a finite value is None. A history of at most `width` values is returned unchanged.
        """
        size = len(self.history)
        if size <= width:
            return self.values()
        starts = np.array([at * size // width for at in range(width)])
        usable = self.known & np.isfinite(self.history)
        with np.errstate(all="ignore"):
            sums = np.add.reduceat(np.where(usable, self.history, 0.0), starts)
            means = sums / np.add.reduceat(usable.astype(np.int64), starts)
        return [None if math.isnan(mean) else mean for mean in means.tolist()]


def overviews(
    reader: Reader, names: Iterable[str], step: int | None, mode: ModeKeys | None, statistic: str
) -> dict[str, Overview]:
    """Tensor -> its overview; tensors without rows are left out.

    Args:
        reader: The run, as of its last refresh.
        names: Names of tensors.
        step: Only this step, of `mode` if it is given; None: all steps.
        mode: Only this mode.
        statistic: A key of HISTORY_STATISTICS.
    """
    index = reader.index
    selection = _selection(reader, names, step, mode)
    plain = plain_stretches(reader, selection.stretches)
    blocks = list(plain_blocks(reader, selection, plain, statistic))
    moments = {name: [index.stretches.column(name)] for name in _MOMENT}
    known = len(index.stretches)
    for block in merged_blocks(reader, selection, selection.stretches & ~plain, statistic):
        for name, parts in moments.items():
            parts.append(block.pop(name))
        block["stretch"] = known + np.arange(len(block["name"]))
        known += len(block["name"])
        blocks.append(block)
    if not sum(len(block["name"]) for block in blocks):
        return {}
    columns = {name: np.concatenate([block.pop(name) for block in blocks]) for name in list(blocks[0])}
    steps, modes, mode_steps = (np.concatenate(moments[name]) for name in _MOMENT)
    of_rows = steps[columns["stretch"]]
    if not bool((of_rows[1:] >= of_rows[:-1]).all()):
        by_step = np.argsort(of_rows, kind="stable")
        columns = {name: column[by_step] for name, column in columns.items()}
    del of_rows
    order = _by_name(reader, columns["name"])
    ordered = columns["name"][order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    ends = np.append(firsts[1:], len(order))
    codes, at_last = ordered[firsts], columns["stretch"][order[ends - 1]]
    last = _last_rows(reader, selection, codes, steps[at_last])
    texts, names_of = index.texts("mode"), index.texts("name")
    found = {}
    for at, (begin, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
        mine = order[begin:end]
        moment = columns["stretch"][mine]
        found[names_of[int(codes[at])]] = Overview(
            last=last[at],
            history=columns["value"][mine],
            known=columns["known"][mine],
            steps=steps[moment],
            mode_steps=mode_steps[moment],
            modes=[texts[code] for code in modes[moment].tolist()],
        )
    return found


_MOMENT = ("step", "mode", "mode_step")


def condensed(
    reader: Reader,
    names: Iterable[str],
    step: int | None,
    mode: ModeKeys | None,
    statistic: str,
    width: int,
) -> dict[str, Condensed]:
    """Tensor -> its last row, and its history in at most `width` means; see Overview.means."""
    selection = _selection(reader, names, step, mode)
    chosen = np.flatnonzero(selection.stretches)
    steps = reader.index.stretches.column("step")[chosen]
    plain = plain_stretches(reader, selection.stretches)
    if not (plain[chosen].all() and (steps[1:] > steps[:-1]).all()):
        return {
            name: Condensed(last={column: each.last[column] for column in _LAST}, means=each.means(width))
            for name, each in overviews(reader, names, step, mode, statistic).items()
        }
    shares = _Shares(_sizes(reader, selection), width)
    for block in plain_blocks(reader, selection, plain, statistic):
        shares.add(block, _by_name(reader, block["name"]))
    shares.check()
    codes = np.flatnonzero(shares.sizes)
    last = _last_rows(reader, selection, codes, reader.index.stretches.column("step")[shares.last[codes]])
    texts = reader.index.texts("name")
    return {
        texts[code]: Condensed(last=row, means=means)
        for code, row, means in zip(codes.tolist(), last, shares.means(codes), strict=True)
    }


class _Shares:
    """Sums of the finite values in shares of histories, as in Overview.means.

    sizes: number of rows of each tensor, by code. width: maximum number of shares of a history. last: the
    stretch of the last row of each tensor.
    """

    def __init__(self, sizes: Ints, width: int) -> None:
        self.sizes = sizes
        self.last = np.zeros(len(sizes), dtype=np.int64)
        self._width = width
        self._seen = np.zeros(len(sizes), dtype=np.int64)  # rows so far
        self._sums = np.zeros(len(sizes) * width)
        self._counts = np.zeros(len(sizes) * width, dtype=np.int64)

    def add(self, block: Mapping[str, npt.NDArray[Any]], order: Ints) -> None:
        """Add the rows of a block, see plain_blocks. order: the rows sorted by name."""
        names, values, known = (block[name][order] for name in ("name", "value", "known"))
        firsts = np.flatnonzero(np.diff(names, prepend=-1))
        counts, codes = np.diff(firsts, append=len(names)), names[firsts]
        seen, sizes = self._seen[codes], self.sizes[codes]
        low, high = self._share(seen, sizes), self._share(seen + counts - 1, sizes)
        used = high - low + 1  # number of shares with rows of the block, which are neighbours
        share = spans(low, used)
        of_share = np.repeat(np.stack([firsts, seen, sizes, codes]), used, axis=1)
        begin = np.where(of_share[2] <= self._width, share, share * of_share[2] // self._width)
        starts = of_share[0] + np.maximum(begin - of_share[1], 0)
        key = of_share[3] * self._width + share
        usable = known & np.isfinite(values)
        if not usable.all():
            usable = known & (usable | np.repeat(sizes <= self._width, counts))  # see means()
            values = np.where(usable, values, 0.0)
        self._sums[key] += np.add.reduceat(values, starts)
        self._counts[key] += np.add.reduceat(usable.astype(np.int64), starts)
        self._seen[codes] += counts
        self.last[codes] = block["stretch"][order[firsts + counts - 1]]

    def _share(self, rank: Ints, size: Ints) -> Ints:
        """The share of the row with a rank in a history of a size."""
        share = np.where(size <= self._width, rank, ((rank + 1) * self._width - 1) // np.maximum(size, 1))
        return np.minimum(share, self._width - 1)  # more rows than counted: check() raises

    def check(self) -> None:
        """Raise RunCorrupt unless each tensor had the number of rows that was counted."""
        if not np.array_equal(self._seen, self.sizes):
            raise RunCorrupt("an index file has other rows than its catalogue counts: the file is damaged")

    def means(self, codes: Ints) -> list[list[float | None]]:
        """The means of each tensor; None for a share without a value. codes: the tensors.

        A short history is returned as it is.
        """
        counts = self._counts.reshape(-1, self._width)[codes]
        with np.errstate(all="ignore"):
            means = (self._sums.reshape(-1, self._width)[codes] / counts).astype(object)
        means[counts == 0] = None
        sizes = self.sizes[codes].tolist()
        return [row[:size] for row, size in zip(means.tolist(), sizes, strict=True)]


def _selection(reader: Reader, names: Iterable[str], step: int | None, mode: ModeKeys | None) -> Selection:
    dictionary = reader.index.dictionaries["name"]
    return reader.selection([dictionary.code(name) for name in names], step, mode)


def _sizes(reader: Reader, selection: Selection) -> Ints:
    """The number of rows of each tensor, by code. Rows that catalogues count are not read."""
    index, stretches = reader.index, reader.index.stretches
    sizes, rest = np.zeros(len(index.dictionaries["name"]), dtype=np.int64), selection.stretches.copy()
    lengths = stretches.lengths
    for entries in index.entries:
        if entries.details is None:
            continue
        part = slice(*np.searchsorted(stretches.first, (entries.first, entries.end)).tolist())
        counted, rows = entries.details.counted(rest[part], lengths[part])
        passing = entries.passing(selection.tests)
        np.add.at(sizes, entries.codes["name"][passing], rows[passing])
        rest[part] &= ~counted
    for _, codes, _ in index.scan(selection.tests, rest, ["name"], ()) if rest.any() else ():
        sizes += np.bincount(codes["name"], minlength=len(sizes))
    return sizes


def _by_name(reader: Reader, names: npt.NDArray[Any]) -> Ints:
    """The order of rows by name, stable."""
    small = len(reader.index.dictionaries["name"]) < 1 << 16  # sorted by counting
    order: Ints = np.argsort(names.astype(np.uint16) if small else names, kind="stable")
    return order


def _last_rows(reader: Reader, selection: Selection, names: Ints, steps: Ints) -> list[dict[str, Any]]:
    """The last merged row of each tensor. names: codes. steps: the step of the last row of each."""
    index = reader.index
    found: dict[int, dict[str, Any]] = {}
    for each in np.unique(steps).tolist():
        of_step = selection.stretches & (index.stretches.column("step") == each)
        rows = index.find({"name": index.among("name", names[steps == each].tolist())}, of_step)
        for row in reader.merged(reader.meant(rows, selection), _LAST).to_pylist():
            found[index.dictionaries["name"].code(row["name"])] = row
    return [found[code] for code in names.tolist()]
