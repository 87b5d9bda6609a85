"""SavedCollection: a collection of a run, from collections.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdcore.config import checks
from tdcore.format.layout import TensorKind
from tdcore.format.run_patterns import RunPatterns
from tdcore.text.short_repr import cut, how_many

if TYPE_CHECKING:
    from tdcore.config.collection import Collection, Pattern

__all__ = ["SavedCollection", "kind_of"]

_BY_NAME = {kind.label: kind for kind in TensorKind}


@dataclass(slots=True)
class SavedCollection:
    """A collection of a run. A tensor of the collection need not have been saved.

    include() and add_tensor_name() change only this object of the trial; the run is not changed.

    Attributes:
        include_regex: Patterns that are searched in names.
        tensor_names: Listed names, and names of captured tensors in the collection.
        save_config, reduction_config: Settings in the hook; None if the collection had no own settings.
        document: The whole entry in collections.json.
        patterns: Compiles the run's patterns, and lists rejected patterns.
    """

    name: str
    include_regex: tuple[str, ...] = ()
    tensor_names: frozenset[str] = frozenset()
    save_config: Mapping[str, Any] | None = None
    reduction_config: Mapping[str, Any] | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    patterns: RunPatterns = field(default_factory=RunPatterns, repr=False, compare=False)
    _own_regex: tuple[str, ...] = field(default=(), repr=False, compare=False)
    _own_names: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def __repr__(self) -> str:
        tensors = how_many(len(self.tensor_names), "tensor")
        return cut(f"<SavedCollection {self.name!r}: {tensors}, include_regex={list(self.include_regex)!r}>")

    @classmethod
    def from_document(cls, name: str, entry: Mapping[str, Any], patterns: RunPatterns) -> SavedCollection:
        """Create a collection from a checked entry of collections.json, without compiling its patterns."""
        return cls(
            name=name,
            include_regex=tuple(entry.get("include_regex", [])),
            tensor_names=frozenset(entry.get("tensor_names", [])),
            save_config=entry.get("save_config"),
            reduction_config=entry.get("reduction_config"),
            document=entry,
            patterns=patterns,
        )

    def include(self, regexes: str | Iterable[str]) -> None:
        """Add patterns that are searched in names. Raises ConfigError for an invalid pattern."""
        added = checks.patterns("include_regex", regexes)
        self._own_regex += added
        self.include_regex += added

    def add_tensor_name(self, name: str) -> None:
        """Add a tensor by its name."""
        self._own_names |= {name}
        self.tensor_names |= {name}

    def take(self, saved: SavedCollection) -> None:
        """Update the collection from the run, and keep additions of include() and add_tensor_name()."""
        self.include_regex = (*saved.include_regex, *self._own_regex)
        self.tensor_names = saved.tensor_names | self._own_names
        self.save_config, self.reduction_config = saved.save_config, saved.reduction_config
        self.document = saved.document

    def matcher(self) -> Collection:
        """The same collection as a tdcore.config.Collection, whose `belongs(name, kind)` checks membership.

        The patterns of a built-in collection select only the kinds of tensors of this collection.
        """
        from tdcore.config.built_in_collections import BUILT_IN
        from tdcore.config.collection import Collection

        if self.name in BUILT_IN:
            collection = Collection.built_in(self.name, self._compile)
        else:
            collection = Collection(self.name or "unnamed", compile_pattern=self._compile)
        if list(self.include_regex) != collection.include_regex:
            collection.include_regex = list(self.include_regex)
        collection.tensor_names = self.tensor_names
        return collection

    def _compile(self, text: str) -> Pattern:
        """Compile a pattern from include() as a user's pattern, any other pattern as a pattern of the run."""
        return re.compile(text) if text in self._own_regex else self.patterns.compile(text)

    def of(self, kinds: Mapping[str, str]) -> list[str]:
        """Return the names in `kinds` that are in the collection. kinds: kind of each tensor, by name."""
        collection = self.matcher()
        collection.expect(list(kinds))
        return [name for name, kind in kinds.items() if collection.belongs(name, kind_of(kind))]

    def belongs(self, name: str, kind: str) -> bool:
        """Whether a tensor of this name and kind ("weight", "gradient", ...) is in the collection."""
        return self.matcher().belongs(name, kind_of(kind))


def kind_of(label: str) -> TensorKind:
    """TensorKind for a word in the column `kind`; CUSTOM for an unknown word."""
    return _BY_NAME.get(label, TensorKind.CUSTOM)
