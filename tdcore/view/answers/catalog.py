"""Catalog: the tensors of a run in the order of the model, with kinds, modes and workers. Plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["Catalog", "TensorEntry"]

_COLUMNS = ("name", "kind", "origin", "dtype", "shape", "shard")
_SAVED = frozenset({"ok", "lost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor of a run.

    Attributes:
        name, kind, origin, dtype: Columns of the index, of the first row with a value.
        shape: Shape of the whole tensor at that row.
        was_saved: Whether a row has a value or statistics.
        modes: Modes in which the tensor has rows.
        workers: Workers that have rows of the tensor.
    """

    name: str
    kind: str
    origin: str
    dtype: str
    shape: tuple[int, ...]
    was_saved: bool
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
    """The tensors of a run. tensors: entries by name, in the order of the model."""

    tensors: dict[str, TensorEntry] = field(default_factory=dict)

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
        """The catalog of all rows that the trial has read. Of large files only the first rows are read."""
        first = {row["name"]: row for row in trial.first_saved_rows(_COLUMNS).to_pylist()}
        modes: dict[str, set[str]] = {name: set() for name in first}
        workers: dict[str, set[str]] = {name: set() for name in first}
        saved: set[str] = set()
        for name, kind, status, mode, worker in trial.combinations(
            ("name", "kind", "status", "mode", "worker")
        ):
            if name in first and kind != "reduction":
                modes[name].add(mode)
                workers[name].add(worker)
                saved.update([name] if status in _SAVED else [])
        return cls(
            tensors={
                name: TensorEntry(
                    name=name,
                    kind=first[name]["kind"],
                    origin=first[name]["origin"] or "",
                    dtype=first[name]["dtype"] or "",
                    shape=_shape(first[name]),
                    was_saved=name in saved,
                    modes=frozenset(modes[name]),
                    workers=frozenset(workers[name]),
                )
                for name in trial.in_model_order(first)
            }
        )


def _shape(row: dict[str, Any]) -> tuple[int, ...]:
    if row["shard"] is not None:
        return tuple(row["shard"]["global_shape"] or ())
    return tuple(row["shape"] or ())
