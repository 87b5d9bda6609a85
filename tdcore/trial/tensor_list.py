"""The tensors of a run, each with its steps, types and bytes, for `tdcore ls`.

Of large files with details in their catalogues no column is read. The rows of other files are read in blocks.
Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.trial.model_order import FirstRow

if TYPE_CHECKING:
    from tdcore.trial.entries import Entries
    from tdcore.trial.reader import Reader, Selection

__all__ = ["MODE_ORDER", "ListedTensor", "detailed", "first_rows", "last_rows_of_details", "list_tensors"]

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

MODE_ORDER = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTensor:
    """One tensor of one kind.

    Attributes:
        name, kind: Its name and kind.
        dtypes, statuses: Names of the types and statuses that occur, sorted.
        steps: First and last global step, and number of global steps.
        mode_steps: Mode -> the same of the steps of the mode, in the order of MODE_ORDER.
        payload_bytes: Bytes of its saved values.
    """

    name: str
    kind: str
    dtypes: tuple[str, ...]
    statuses: tuple[str, ...]
    steps: tuple[int, int, int]
    mode_steps: dict[str, tuple[int, int, int]]
    payload_bytes: int


@dataclass(slots=True)
class _Found:
    """Rows of one tensor of one kind. stretches: sets of stretches, some from patterns and some from rows."""

    dtypes: set[int] = field(default_factory=set)
    statuses: set[int] = field(default_factory=set)
    sets: list[int] = field(default_factory=list)  # positions in a list of sets of stretches
    nbytes: int = 0


def detailed(reader: Reader, stretches: Mask) -> list[tuple[Entries, slice]]:
    """The large files with details whose stretches are all chosen, each with its stretches."""
    index = reader.index
    found = []
    for each in index.entries:
        first, end = np.searchsorted(index.stretches.first, (each.first, each.end)).tolist()
        if each.details is not None and each.end > each.first and bool(stretches[first:end].all()):
            found.append((each, slice(first, end)))
    return found


def list_tensors(reader: Reader, selection: Selection) -> list[ListedTensor]:
    """The tensors of a selection, sorted by name and kind. selection: without global steps."""
    stretches = selection.stretches.copy()
    found: dict[tuple[int, int], _Found] = {}
    sets: list[Ints] = []  # stretches
    for entries, part in detailed(reader, selection.stretches):
        _add_details(entries, part.start, entries.passing(selection.tests), found, sets)
        stretches[part] = False
    _add_rows(reader, selection, stretches, found, sets)
    index = reader.index
    names, kinds, dtypes, statuses = (index.texts(name) for name in ("name", "kind", "dtype", "status"))
    spans: dict[tuple[int, ...], _Spans] = {}  # many tensors have the same steps
    listed = []
    for (name, kind), each in found.items():
        key = tuple(each.sets)
        if key not in spans:
            spans[key] = _spans(reader, np.concatenate([sets[at] for at in key]))
        listed.append(
            ListedTensor(
                name=names[name],
                kind=kinds[kind],
                dtypes=tuple(sorted(dtypes[code] for code in each.dtypes)),
                statuses=tuple(sorted(statuses[code] for code in each.statuses)),
                steps=spans[key][0],
                mode_steps=spans[key][1],
                payload_bytes=each.nbytes,
            )
        )
    return sorted(listed, key=lambda tensor: (tensor.name, tensor.kind))


def _add_details(
    entries: Entries, start: int, passing: Mask, found: dict[tuple[int, int], _Found], sets: list[Ints]
) -> None:
    """Add the tensors of a file with details. start: its first stretch. passing: of the entries."""
    details = entries.details
    assert details is not None
    assert entries.dtype is not None
    columns = (
        entries.codes["name"],
        entries.codes["kind"],
        entries.codes["status"],
        details.totals["nbytes"],
    )
    of_entry: list[_Found | None] = []
    for name, kind, status, nbytes, passes in zip(
        *(c.tolist() for c in columns), passing.tolist(), strict=True
    ):
        each = found.setdefault((name, kind), _Found()) if passes else None
        of_entry.append(each)
        if each is not None:
            each.statuses.add(status)
            each.nbytes += nbytes
    for entry, dtype in zip(details.dtype_entry.tolist(), entries.dtype.tolist(), strict=True):
        each = of_entry[entry]
        if each is not None:
            each.dtypes.add(dtype)
    ends = np.cumsum(details.sizes)
    by_pattern = np.argsort(details.pattern, kind="stable")
    groups = np.split(by_pattern, np.cumsum(np.bincount(details.pattern, minlength=len(ends)))[:-1])
    for at, group in enumerate(groups):
        sets.append(start + group)
        for entry in details.entries[ends[at] - details.sizes[at] : ends[at]].tolist():
            each = of_entry[entry]
            if each is not None and len(sets) - 1 not in each.sets[-1:]:
                each.sets.append(len(sets) - 1)


def _add_rows(
    reader: Reader,
    selection: Selection,
    stretches: Mask,
    found: dict[tuple[int, int], _Found],
    sets: list[Ints],
) -> None:
    """Add the tensors of rows that are read."""
    index = reader.index
    narrow = ("name", "kind", "dtype", "status", "segment", "nbytes")
    pairs: dict[tuple[int, int], list[Ints]] = {}
    for rows, codes, _ in index.scan(selection.tests, stretches, narrow, ()) if stretches.any() else ():
        key = codes["name"].astype(np.int64) * len(index.texts("kind")) + codes["kind"]
        nbytes = np.where(codes["segment"] >= 0, codes["nbytes"], 0)
        of_rows = index.stretches.of(rows)
        order = np.argsort(key, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            at = int(group[0])
            place = int(codes["name"][at]), int(codes["kind"][at])
            each = found.setdefault(place, _Found())
            each.dtypes.update(code for code in _distinct(codes["dtype"][group]) if code >= 0)
            each.statuses.update(_distinct(codes["status"][group]))
            each.nbytes += int(nbytes[group].sum())
            pairs.setdefault(place, []).append(np.unique(of_rows[group]))
    known: dict[bytes, int] = {}
    for place, parts in pairs.items():
        mine = np.unique(np.concatenate(parts))
        number = known.setdefault(mine.tobytes(), len(sets))
        if number == len(sets):
            sets.append(mine)
        found[place].sets.append(number)


def _distinct(codes: npt.NDArray[np.integer]) -> list[int]:
    return [int(code) for code in np.unique(codes).tolist()]


_Spans: TypeAlias = "tuple[tuple[int, int, int], dict[str, tuple[int, int, int]]]"


def _spans(reader: Reader, stretches: Ints) -> _Spans:
    """Spans of the global steps, and of the steps of each mode, of some stretches."""
    index = reader.index
    columns = {name: index.stretches.column(name)[stretches] for name in ("step", "mode", "mode_step")}
    texts = index.texts("mode")
    codes = sorted(_distinct(columns["mode"]), key=lambda code: MODE_ORDER.index(texts[code]))
    modes = {texts[code]: _span(columns["mode_step"][columns["mode"] == code]) for code in codes}
    return _span(columns["step"]), modes


def _span(steps: Ints) -> tuple[int, int, int]:
    distinct = np.unique(steps)
    return int(distinct[0]), int(distinct[-1]), len(distinct)


def last_rows_of_details(reader: Reader, selection: Selection, stretches: Mask) -> list[Ints]:
    """The last row of each entry of the files with details whose stretches are all chosen.

    stretches: mask of the chosen stretches; those of these files are removed from it.
    """
    found = []
    for entries, part in detailed(reader, stretches):
        assert entries.details is not None
        found.append(entries.first + entries.details.totals["last"][entries.passing(selection.tests)])
        stretches[part] = False
    return found


def first_rows(reader: Reader) -> dict[str, FirstRow]:
    """The first row of each tensor that is shown, by name."""
    index, shown = reader.index, reader.view.visible_stretches
    rest, found = shown.copy(), dict[int, tuple[int, int, int]]()  # name -> first row, kind, seq

    def add(names: Iterable[int], rows: Iterable[int], kinds: Iterable[int], seqs: Iterable[int]) -> None:
        for name, row, kind, seq in zip(names, rows, kinds, seqs, strict=True):
            if name not in found or row < found[name][0]:
                found[name] = row, kind, seq

    for entries, part in detailed(reader, shown):
        assert entries.details is not None
        totals, codes = entries.details.totals, entries.codes
        rows = entries.first + totals["first"]
        add(codes["name"].tolist(), rows.tolist(), codes["kind"].tolist(), totals["seq"].tolist())
        rest[part] = False
    for rows, columns, _ in index.scan({}, rest, ("name", "kind", "seq"), ()) if rest.any() else ():
        _, first = np.unique(columns["name"], return_index=True)
        add(*(part[first].tolist() for part in (columns["name"], rows, columns["kind"], columns["seq"])))
    texts, kinds = index.texts("name"), index.texts("kind")
    of_rows = index.stretches.of(np.array([row for row, _, _ in found.values()], dtype=np.int64))
    steps = index.stretches.column("step")[of_rows].tolist()
    return {
        texts[name]: FirstRow(kinds[kind], int(step), seq)
        for (name, (_, kind, seq)), step in zip(found.items(), steps, strict=True)
    }
