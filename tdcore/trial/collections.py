"""SavedCollection: a group of tensors as collections.json has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdcore import layout
from tdcore.errors import RunCorrupt
from tdcore.layout import TensorKind
from tdcore.trial.index_file import clipped

if TYPE_CHECKING:
    from tdcore.collection import Collection

__all__ = ["SavedCollection", "kind_of"]

_BY_NAME = {kind.label: kind for kind in TensorKind}


@dataclass(frozen=True, slots=True)
class SavedCollection:
    """A collection of a run. Tensors in it need not have been saved.

    include_regex: patterns, searched in names. tensor_names: names that were listed or seen to belong.
    save_config, reduction_config: as the hook had them, None where it had none of its own. document: the
    whole entry.
    """

    name: str
    include_regex: tuple[str, ...] = ()
    tensor_names: frozenset[str] = frozenset()
    save_config: Mapping[str, Any] | None = None
    reduction_config: Mapping[str, Any] | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_document(cls, name: str, entry: Mapping[str, Any]) -> SavedCollection:
        """From a checked entry of collections.json. Raises RunCorrupt for a pattern that is none."""
        for pattern in entry.get("include_regex", []):
            _check_pattern(pattern, name)
        return cls(
            name=name,
            include_regex=tuple(entry.get("include_regex", [])),
            tensor_names=frozenset(entry.get("tensor_names", [])),
            save_config=entry.get("save_config"),
            reduction_config=entry.get("reduction_config"),
            document=entry,
        )

    def matcher(self) -> Collection:
        """The same collection as hooks have it: `belongs(name, kind)` tells what is part of it.

        The patterns of a built-in collection select only the kinds of tensors that it is made for.
        """
        from tdcore.collection import Collection, CollectionManager

        manager = CollectionManager()
        collection = manager.get(self.name) if self.name else Collection("unnamed")
        if list(self.include_regex) != collection.include_regex:
            collection.include_regex = list(self.include_regex)
        collection.tensor_names = self.tensor_names
        return collection

    def belongs(self, name: str, kind: str) -> bool:
        """Whether a tensor of this name and kind ("weight", "gradient", ...) is part of the collection."""
        return self.matcher().belongs(name, kind_of(kind))


def _check_pattern(pattern: str, collection: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RunCorrupt(
            f"{layout.COLLECTIONS_KEY}: {clipped(pattern)} of collection {clipped(collection)} is not a "
            f"regular expression: {error}"
        ) from error


def kind_of(label: str) -> TensorKind:
    """TensorKind of a word in the `kind` column; CUSTOM for one that this version does not know."""
    return _BY_NAME.get(label, TensorKind.CUSTOM)
