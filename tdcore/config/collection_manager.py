"""The collections of one hook by name. Not thread-safe: change them from the training thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tdcore.config.built_in_collections import BUILT_IN
from tdcore.config.collection import Collection, Version
from tdcore.config.collection_config import CollectionConfig
from tdcore.errors import InvalidCollectionConfiguration

__all__ = ["CollectionManager"]


class CollectionManager:
    """The collections of one hook, by name, including the built-in collections.

    further: Names of further collections (BOOSTING), for hooks that have them.
    """

    def __init__(self, further: Iterable[str] = ()) -> None:
        self.version = Version()
        self._collections: dict[str, Collection] = {}
        for name in (*BUILT_IN, *further):
            self._adopt(Collection.built_in(name))

    def __iter__(self) -> Iterator[Collection]:
        return iter(self._collections.values())

    def __contains__(self, name: str) -> bool:
        return name in self._collections

    def get(self, name: str, create: bool = True) -> Collection:
        """The collection of that name; created empty if it does not exist, unless create is False."""
        if name not in self._collections:
            if not create:
                known = ", ".join(sorted(self._collections))
                raise InvalidCollectionConfiguration(f"no collection {name!r}; there are {known}")
            self._adopt(Collection(name))
        return self._collections[name]

    def get_collections(self) -> dict[str, Collection]:
        """All collections, by name."""
        return dict(self._collections)

    @property
    def collections(self) -> dict[str, Collection]:
        """The same as get_collections()."""
        return self.get_collections()

    def create_collection(self, name: str) -> Collection:
        """The collection of that name; created empty if it does not exist."""
        return self.get(name)

    def add(self, collection: Collection | CollectionConfig | str) -> Collection:
        """Add a collection, or apply settings to the collection of that name. Return the collection."""
        if isinstance(collection, str):
            return self.get(collection)
        if isinstance(collection, CollectionConfig):
            found = self.get(collection.name)
            found.configure(collection)
            return found
        if not isinstance(collection, Collection):
            raise InvalidCollectionConfiguration(
                f"expected a Collection, a CollectionConfig or a name, got {type(collection).__name__}"
            )
        self._adopt(collection)
        return collection

    def _adopt(self, collection: Collection) -> None:
        collection.version = self.version
        self.version.value += 1
        self._collections[collection.name] = collection
