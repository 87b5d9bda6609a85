"""Catalog: the tensors of a run in the order of the model, with kinds, modes and workers. Plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.modes import ModeKeys
from tdcore.view.answers.arrow import coded, is_in, whole_numbers

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["Catalog", "TensorEntry"]

Ints = npt.NDArray[np.int64]

_COLUMNS = (
    "name",
    "kind",
    "mode",
    "mode_step",
    "origin",
    "dtype",
    "shape",
    "shard",
    "status",
    "nbytes",
    "worker",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor of a run.

    Attributes:
        name, kind, origin, dtype: Columns of the index, of the first row with a value.
        shape: Shape of the whole tensor at that row.
        steps: Number of steps with a value.
        has_values: Whether values were saved, and not only statistics.
        modes: Modes in which the tensor has rows.
        workers: Workers that have rows of the tensor.
    """

    name: str
    kind: str
    origin: str
    dtype: str
    shape: tuple[int, ...]
    steps: int
    has_values: bool
    modes: frozenset[str]
    workers: frozenset[str]

    def to_json(self) -> dict[str, Any]:
        """`LayerRow` of the contract."""
        return {
            "name": self.name,
            "kind": self.kind,
            "origin": self.origin,
            "shape": list(self.shape),
            "dtype": self.dtype,
        }


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """The tensors of a run.

    Attributes:
        tensors: Entries by name, in the order of the model.
        rows: Number of rows of the index.
    """

    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    rows: int = 0

    @property
    def kinds(self) -> list[str]:
        """Kinds of tensors, in the order of the model."""
        return list(dict.fromkeys(each.kind for each in self.tensors.values()))

    def modes_of(self, names: Iterable[str]) -> list[str]:
        """Modes in which any of these tensors has rows, TRAIN first."""
        found = {mode for name in names for mode in self.tensors[name].modes}
        return [mode.name for mode in ModeKeys if mode.name in found]

    def of_kind(self, *kinds: str) -> list[str]:
        """Names of the tensors of these kinds, in the order of the model."""
        return [each.name for each in self.tensors.values() if each.kind in kinds]

    @classmethod
    def of(cls, trial: Trial) -> Catalog:
        """The catalog of all rows that the trial has read."""
        table = trial.rows(columns=_COLUMNS)
        if not table.num_rows:
            return cls()
        kinds, kind_texts = coded(table, "kind")
        keep = np.flatnonzero(~is_in(kinds, kind_texts, ("reduction",)))
        table = table.take(pa.array(keep)) if len(keep) < table.num_rows else table
        entries = _entries(table)
        return cls(
            tensors={name: entries[name] for name in trial.in_model_order(entries)}, rows=table.num_rows
        )


def _entries(table: pa.Table) -> dict[str, TensorEntry]:
    codes, names = coded(table, "name")
    status, statuses = coded(table, "status")
    saved = is_in(status, statuses, ("ok", "lost"))
    first = _first_rows(codes, np.flatnonzero(saved), len(names))
    anywhere = _first_rows(codes, np.arange(len(codes)), len(names))
    first = np.where(first < 0, anywhere, first)
    there = np.flatnonzero(first >= 0)
    steps = _step_counts(table, codes, saved, len(names))
    valued = np.zeros(len(names), dtype=np.bool_)
    valued[codes[np.asarray(table.column("nbytes").is_valid().to_numpy(), dtype=np.bool_)]] = True
    modes, workers = (_texts_of(table, each, codes, len(names)) for each in ("mode", "worker"))
    rows = table.take(pa.array(first[there])).to_pylist()  # one row per tensor
    return {
        row["name"]: TensorEntry(
            name=row["name"],
            kind=row["kind"],
            origin=row["origin"] or "",
            dtype=row["dtype"] or "",
            shape=_shape(row),
            steps=int(steps[code]),
            has_values=bool(valued[code]),
            modes=modes[code],
            workers=workers[code],
        )
        for code, row in zip(there.tolist(), rows, strict=True)
    }


def _first_rows(codes: Ints, rows: Ints, size: int) -> Ints:
    """The first of the rows with each code; -1 for a code without a row."""
    first = np.full(size, -1, dtype=np.int64)
    first[codes[rows[::-1]]] = rows[::-1]
    return first


def _step_counts(table: pa.Table, codes: Ints, saved: npt.NDArray[np.bool_], size: int) -> Ints:
    """Number of steps with a value of each tensor. A step is a mode and a step of the mode."""
    modes, _ = coded(table, "mode")
    steps = whole_numbers(table, "mode_step")
    key = np.lexsort([steps[saved], modes[saved], codes[saved]])
    parts = [each[saved][key] for each in (codes, modes, steps)]
    new = np.ones(len(key), dtype=np.bool_)
    new[1:] = np.logical_or.reduce([part[1:] != part[:-1] for part in parts])
    return np.bincount(parts[0][new], minlength=size)


def _texts_of(table: pa.Table, column: str, codes: Ints, size: int) -> list[frozenset[str]]:
    """The texts of a column that each tensor has."""
    found, texts = coded(table, column)
    there = np.zeros((size, len(texts)), dtype=np.bool_)
    there[codes, found] = True
    return [frozenset(texts[each] for each in np.flatnonzero(row).tolist()) for row in there]


def _shape(row: dict[str, Any]) -> tuple[int, ...]:
    if row["shard"] is not None:
        return tuple(row["shard"]["global_shape"] or ())
    return tuple(row["shape"] or ())
