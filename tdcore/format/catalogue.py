"""Catalogue of an index file: its steps and its names, without its rows.

A merged index file has a catalogue in the metadata of its footer, so a reader lists the steps and names of a
run without reading a column. The catalogue of a file without one is computed from twelve of its columns.

A *stretch* is a sequence of adjacent rows of one mode and step. An *entry* is a combination of name, kind,
status and mode that occurs in the file. docs/format.md specifies the text. Plain values, any thread.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.format.catalogue_details import DETAIL_LISTS, Details, DetailsBuilder
from tdcore.format.packed import Ints, packed, spans, unpacked
from tdcore.format.row_order import ORDER_LISTS, RowOrder, RowOrderBuilder
from tdcore.format.seal import Seal

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CATALOGUE_COLUMNS",
    "CATALOGUE_KEY",
    "PLAIN_COLUMNS",
    "Catalogue",
    "CatalogueBuilder",
    "CatalogueCheck",
    "decode_catalogue",
]

CATALOGUE_KEY = b"tdcore.catalogue"
CATALOGUE_COLUMNS = ("mode", "mode_step", "step", "name", "kind", "status", "time_ns")
_WORDS = ("mode", "name", "kind", "status")
_STRETCH = ("rows", "mode", "mode_step", "step")
_ENTRY = ("name", "kind", "status", "mode")
PLAIN_COLUMNS = ("parts", "shard", "call", "ticket", "seq")  # that show whether rows are plain
_PLACE = ("call", "ticket", "seq")
_MAX_CALL = 1 << 16
_MAX_KEYS = 1 << 22  # combinations of texts for which a check has a table
_CRC_DIGITS = 8
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Steps and names of an index file.

    Attributes:
        words: The texts of each text column, by column. Codes are positions in these lists.
        stretches: Columns rows (number of rows), mode (code), mode_step and step, one element per stretch, in
            the order of the rows.
        entries: Columns name, kind, status and mode (codes), one element per entry, in the order of their
            first rows.
        last_time_ns: The latest time of a row; -1 without rows.
        plain: Whether each row is a whole tensor of one worker: it has one part and no `shard`, and within a
            stretch no name and call occurs twice, and the rows are in order of ticket and seq. False if
            unknown.
        details: Entries of each stretch and totals of each entry; None if unknown.
        order: Entry of each row; None if unknown.
        seal: Checksums of the bytes of the columns that the catalogue describes; None if unknown.
    """

    words: Mapping[str, Sequence[str]]
    stretches: Mapping[str, Ints]
    entries: Mapping[str, Ints]
    last_time_ns: int
    plain: bool = False
    details: Details | None = None
    order: RowOrder | None = None
    seal: Seal | None = None

    @property
    def rows(self) -> int:
        """Number of rows of the file."""
        return int(self.stretches["rows"].sum())

    def encode(self) -> bytes:
        """The text of the catalogue in the metadata of a file."""
        document: dict[str, Any] = {
            "words": {name: list(self.words[name]) for name in _WORDS},
            "stretches": {name: packed(self.stretches[name]) for name in _STRETCH},
            "entries": {name: packed(self.entries[name]) for name in _ENTRY},
            "last_time_ns": self.last_time_ns,
            "plain": self.plain,
        }
        if self.details is not None:
            lists = {name: packed(column) for name, column in self.details.lists().items()}
            document["details"] = {"dtypes": list(self.details.dtypes), **lists}
        if self.order is not None:
            document["order"] = {name: packed(column) for name, column in self.order.lists().items()}
        if self.seal is not None:
            document["seal"] = self.seal.to_document()
        text = json.dumps(document, separators=(",", ":")).encode()
        return b"%08x" % zlib.crc32(text) + text


def decode_catalogue(metadata: Mapping[bytes, bytes] | None, rows: int) -> Catalogue | None:
    """The catalogue in the metadata of an index file; None if the file has none.

    Raises ValueError if it is damaged, or is not of a file with this number of rows.
    """
    raw = (metadata or {}).get(CATALOGUE_KEY)
    if raw is None:
        return None
    text = raw[_CRC_DIGITS:]
    try:
        if int(raw[:_CRC_DIGITS], 16) != zlib.crc32(text):
            raise ValueError("its checksum is wrong")
        document: dict[str, Any] = json.loads(text)
        words = {name: [str(word) for word in document["words"][name]] for name in _WORDS}
        stretches = {name: unpacked(document["stretches"][name], rows) for name in _STRETCH}
        entries = {name: unpacked(document["entries"][name], rows) for name in _ENTRY}
        found = Catalogue(
            words=words,
            stretches=stretches,
            entries=entries,
            last_time_ns=int(document["last_time_ns"]),
            plain=document.get("plain") is True,
            details=_details(document.get("details"), rows),
            order=_order(document.get("order"), rows),
            seal=None if document.get("seal") is None else Seal.of_document(document["seal"], rows),
        )
    except (KeyError, TypeError, AttributeError, RecursionError, zlib.error, OverflowError) as error:
        raise ValueError(f"its catalogue cannot be read: {error!r}") from error
    _check(found, rows)
    return found


def _details(document: dict[str, Any] | None, rows: int) -> Details | None:
    if document is None:
        return None
    lists = {name: unpacked(document[name], rows) for name in DETAIL_LISTS}
    return Details.of_lists(lists, [str(word) for word in document["dtypes"]])


def _order(document: dict[str, Any] | None, rows: int) -> RowOrder | None:
    if document is None:
        return None
    return RowOrder(**{name: unpacked(document[name], rows) for name in ORDER_LISTS})


def _check(catalogue: Catalogue, rows: int) -> None:
    """Raise ValueError unless all codes and lengths fit together. rows: number of rows of the file."""
    for group in (catalogue.stretches, catalogue.entries):
        if len({len(column) for column in group.values()}) != 1:
            raise ValueError("the columns of its catalogue have different lengths")
        for name, column in group.items():
            limit = len(catalogue.words[name]) if name in _WORDS else None
            if len(column) and (
                (limit is not None and (column.min() < 0 or column.max() >= limit))
                or (name == "rows" and (column.min() < 1 or column.max() > rows))
            ):
                raise ValueError(f"its catalogue has an impossible value in {name!r}")
    if not _INT64.min <= catalogue.last_time_ns <= _INT64.max:
        raise ValueError("its catalogue has an impossible value in 'last_time_ns'")
    if catalogue.rows != rows:
        raise ValueError(f"its catalogue has {catalogue.rows} rows, and the file has {rows}")
    if catalogue.details is not None:
        catalogue.details.check(rows, len(catalogue.stretches["rows"]), len(catalogue.entries["name"]))
    if catalogue.order is not None:
        totals = None if catalogue.details is None else catalogue.details.totals
        catalogue.order.check(catalogue.stretches, catalogue.entries["mode"], totals)


class CatalogueBuilder:
    """Computes a catalogue from rows: call add() with each table of rows, in order, then finish().

    A catalogue of rows without PLAIN_COLUMNS is not plain. One without DETAIL_COLUMNS has no details.
    """

    def __init__(self) -> None:
        self._words: dict[str, dict[str, int]] = {name: {} for name in _WORDS}
        self._stretches: list[dict[str, Ints]] = []
        self._entries: dict[tuple[int, ...], int] = {}  # codes -> number
        self._details = DetailsBuilder()
        self._order = RowOrderBuilder()
        self._last_time_ns = -1
        self._plain = True
        self._tail: dict[str, Ints] = {}  # the rows of the last stretch

    def add(self, table: pa.Table) -> None:
        """Add rows. The table has at least the columns CATALOGUE_COLUMNS; texts are dictionary-encoded."""
        if not table.num_rows:
            return
        codes = {name: self._codes(name, table.column(name)) for name in _WORDS}
        numbers = {
            name: np.asarray(table.column(name).to_numpy(), dtype=np.int64) for name in ("mode_step", "step")
        }
        columns = {"mode": codes["mode"], **numbers}
        new = np.zeros(table.num_rows, dtype=np.bool_)
        new[0] = True
        for column in columns.values():
            new[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(new)
        lengths = np.diff(np.append(first, table.num_rows))
        self._stretches.append({"rows": lengths, **{name: column[first] for name, column in columns.items()}})
        entry = self._add_entries(codes)
        self._details.add(table, entry, first)
        self._order.add(entry, first)
        self._check_plain(table, codes["name"])
        self._last_time_ns = max(
            self._last_time_ns, int(np.asarray(table.column("time_ns").to_numpy()).max())
        )

    def finish(self) -> Catalogue:
        """The catalogue of all rows that were added."""
        stretches = {
            name: np.concatenate([np.empty(0, dtype=np.int64), *(each[name] for each in self._stretches)])
            for name in _STRETCH
        }
        first = _starts(stretches)
        joined = {name: column[first] for name, column in stretches.items()}
        if len(first):
            joined["rows"] = np.add.reduceat(stretches["rows"], first)
        entries = np.array(list(self._entries), dtype=np.int64).reshape(-1, len(_ENTRY))
        return Catalogue(
            words={name: list(words) for name, words in self._words.items()},
            stretches=joined,
            entries={name: entries[:, at].copy() for at, name in enumerate(_ENTRY)},
            last_time_ns=self._last_time_ns,
            plain=self._plain,
            details=self._details.finish(first),
            order=self._order.finish(first),
        )

    def _check_plain(self, table: pa.Table, names: Ints) -> None:
        """Check whether the rows are plain, also together with the rows that the last table ended with."""
        if not self._plain or not set(PLAIN_COLUMNS) <= set(table.column_names):
            self._plain = False
            return
        parts = np.asarray(table.column("parts").to_numpy())
        self._plain = bool((parts == 1).all()) and table.column("shard").null_count == table.num_rows
        now = self._stretches[-1]
        stretch = np.repeat(np.arange(len(now["rows"])), now["rows"])
        rows = {name: np.asarray(table.column(name).to_numpy(), dtype=np.int64) for name in _PLACE}
        rows |= {"name": names, "stretch": stretch}
        before = self._stretches[-2:-1]
        if before and all(before[0][name][-1] == now[name][0] for name in _STRETCH[1:]):
            rows = {name: np.concatenate([self._tail[name], column]) for name, column in rows.items()}
        same = np.diff(rows["stretch"]) == 0
        ticket, seq = np.diff(rows["ticket"]), np.diff(rows["seq"])
        ordered = (ticket > 0) | ((ticket == 0) & (seq > 0))
        key = (rows["call"] * len(self._words["name"]) + rows["name"]) * len(now["rows"]) + rows["stretch"]
        unique = rows["call"].max() < _MAX_CALL and len(np.unique(key)) == len(key)
        self._plain = self._plain and bool(unique and ordered[same].all())
        last = rows["stretch"] == rows["stretch"][-1]
        self._tail = {name: column[last] for name, column in rows.items()}
        self._tail["stretch"] = np.zeros(int(last.sum()), dtype=np.int64)

    def _codes(self, name: str, column: pa.ChunkedArray) -> Ints:
        words = self._words[name]
        parts = []
        for chunk in column.chunks:
            texts = chunk.dictionary.to_pylist()
            places = np.array([words.setdefault(text, len(words)) for text in texts], dtype=np.int64)
            parts.append(places[np.asarray(chunk.indices.to_numpy(zero_copy_only=False))])
        found: Ints = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found

    def _add_entries(self, codes: Mapping[str, Ints]) -> Ints:
        """Add the combinations in these rows, and return the number of the combination of each row."""
        key = np.zeros(len(codes["name"]), dtype=np.int64)
        for name in _ENTRY:
            key = key * max(1, len(self._words[name])) + codes[name]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        numbers = np.empty(len(first), dtype=np.int64)
        for at in np.argsort(first).tolist():
            entry = tuple(int(codes[name][first[at]]) for name in _ENTRY)
            numbers[at] = self._entries.setdefault(entry, len(self._entries))
        found: Ints = numbers[np.ravel(inverse)]
        return found


def _starts(stretches: Mapping[str, Ints]) -> Ints:
    """The first of several neighbours of one mode and step, where two tables met."""
    new = np.ones(len(stretches["rows"]), dtype=np.bool_)
    for name in ("mode", "mode_step", "step"):
        column = stretches[name]
        differs = column[1:] != column[:-1]
        new[1:] = differs if name == "mode" else new[1:] | differs
    return np.flatnonzero(new)


class CatalogueCheck:
    """Compares the rows of a file with its catalogue. Threads: any."""

    # The columns that are compared. CATALOGUE_COLUMNS also has the time, which only the writer uses.
    columns = tuple(name for name in CATALOGUE_COLUMNS if name != "time_ns")

    def __init__(self, catalogue: Catalogue) -> None:
        self.seal = catalogue.seal
        self._order = catalogue.order
        self._stretches = catalogue.stretches
        self._ends = np.cumsum(catalogue.stretches["rows"])
        self._codes = {
            name: {word: code for code, word in enumerate(catalogue.words[name])} for name in _WORDS
        }
        self._places: dict[str, tuple[pa.Array, npt.NDArray[np.int32]]] = {}  # codes of the last dictionary
        self._sizes = {name: max(1, len(catalogue.words[name])) for name in _ENTRY}
        self._entries = self._keys(catalogue.entries)
        self._known: npt.NDArray[np.bool_] | None = None  # for each key, whether there is such an entry
        if np.prod([float(size) for size in self._sizes.values()]) <= _MAX_KEYS:
            self._known = np.zeros(int(np.prod(list(self._sizes.values()))), dtype=np.bool_)
            self._known[self._entries] = True

    def check(self, table: pa.Table, first: int) -> None:
        """Raise ValueError unless the catalogue has the steps and entries of these rows, and their order.

        Args:
            table: The columns `columns`, each without chunks; texts are dictionary-encoded.
            first: The number of the first row in the file.
        """
        if not table.num_rows:
            return
        found = {name: self._code(name, table.column(name).chunk(0)) for name in _WORDS}
        numbers = {name: np.asarray(table.column(name).to_numpy()) for name in ("mode_step", "step")}
        stretches, sizes = self._stretches_of(first, first + table.num_rows)
        for name, column in {**numbers, "mode": found["mode"]}.items():
            differ = np.repeat(self._stretches[name][stretches], sizes) != column
            if differ.any():
                raise ValueError(f"its catalogue has another {name!r} for row {first + int(differ.argmax())}")
        keys = self._keys(found)
        if any(column.min() < 0 for column in found.values()) or not self._has(keys):
            raise ValueError(f"its catalogue lacks a name, kind or status of rows from {first} on")
        if self._order is not None:
            self._check_order(self._order, keys, first, stretches)

    def _check_order(self, order: RowOrder, keys: Ints, first: int, stretches: slice) -> None:
        """Raise ValueError unless the rows of stretches with a known order are in this order.

        keys: of the rows from number `first` on; see _keys. stretches: those with the rows.
        """
        at = np.arange(stretches.start, stretches.stop)
        at = at[order.stretch[at] >= 0]
        starts = self._ends[at] - self._stretches["rows"][at]
        begin = np.maximum(starts, first)
        sizes = np.minimum(self._ends[at], first + len(keys)) - begin
        rows, entries = spans(begin, sizes), order.entries_of(at, begin - starts, sizes)
        differ = keys[rows - first] != self._entries[entries]
        if differ.any():
            raise ValueError(f"its catalogue has another tensor for row {int(rows[differ.argmax()])}")

    def _stretches_of(self, first: int, end: int) -> tuple[slice, Ints]:
        """The stretches of the rows first..end-1, and the number of these rows in each."""
        low, high = np.searchsorted(self._ends, (first, end - 1), side="right").tolist()
        bounds = np.clip(self._ends[low : high + 1], first, end)
        return slice(low, high + 1), np.diff(bounds, prepend=first)

    def _code(self, name: str, column: pa.DictionaryArray) -> npt.NDArray[np.int32]:
        """Codes of the catalogue; -1 for a text that it does not have."""
        last = self._places.get(name)
        if last is None or not last[0].equals(column.dictionary):  # row groups often have equal dictionaries
            codes = self._codes[name]
            words = [codes.get(word, -1) for word in column.dictionary.to_pylist()]
            last = self._places[name] = (column.dictionary, np.array(words, dtype=np.int32))
        if len(last[1]) == 1 and not column.null_count:
            return np.full(len(column), last[1][0], dtype=np.int32)
        found: npt.NDArray[np.int32] = last[1][np.asarray(column.indices.to_numpy(zero_copy_only=False))]
        return found

    def _keys(self, codes: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """One number for each combination of name, kind, status and mode."""
        key = codes[_ENTRY[0]].astype(np.int64)
        for name in _ENTRY[1:]:
            key *= self._sizes[name]
            key += codes[name]
        return key

    def _has(self, keys: Ints) -> bool:
        """Whether the catalogue has all of these combinations."""
        if self._known is not None:
            return bool(self._known[keys].all())
        distinct = keys[np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))]  # without equal neighbours
        return bool(np.isin(distinct, self._entries).all())
