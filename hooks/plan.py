"""Plan: the form in which each tensor is captured while certain collections are saved.

Independent of the framework. A `Plan` belongs to one set of collections that are saved together. A hook keeps
one plan per set that occurs, and deletes all plans when a collection changes. A second call for the same name
costs one dictionary look-up. Threads: any (forward hooks of replicas); at worst two threads compute the same
result.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from tdcore.config.collection import Collection
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.reduction_config import ReductionConfig
from tdcore.format.layout import TensorKind
from tdcore.format.shard import ShardPosition
from tdcore.hooks.left_out import NO_ROOM, LeftOutNames, unfit

__all__ = ["NO_BACKWARD", "PAYLOAD", "STATISTICS", "CaptureSpec", "NameTable", "Plan", "TensorSpec"]

PAYLOAD = 1  # CaptureFlags of csrc/ring/record.hpp
STATISTICS = 2
NO_BACKWARD = 1  # AbsentReason of csrc/ring/record.hpp
_REASON_SHIFT = 4  # above the flags: why a tensor is absent
_UNFIT = 0xFFFFFFFE  # kUnfitName of csrc/capture/capture.hpp: the tensor is counted, and gets no row
# -1, "the table of names cannot grow", becomes an id that the capture counts as dropped.
_ID_BITS = 0xFFFFFFFF

# Tensors with one element. Their value costs as little as their statistics, so it is always captured.
_ALWAYS_WHOLE = frozenset(
    {TensorKind.SCALAR, TensorKind.HYPERPARAMETER, TensorKind.METRIC, TensorKind.REDUCTION}
)


class TensorSpec(NamedTuple):
    """Settings for the capture of one tensor.

    Attributes:
        id: Id of its name.
        flags: CaptureFlags.
        products: Pairs of "prod" or "abs_prod" and the id of the name of the product.
    """

    id: int
    flags: int
    products: tuple[tuple[str, int], ...] = ()

    @property
    def whole(self) -> TensorSpec:
        """The same spec with the payload, whatever the collections request."""
        return self._replace(flags=self.flags | PAYLOAD, products=())


class CaptureSpec:
    """The name ids and flags of a list of tensors, in the form that the native capture call takes."""

    __slots__ = ("flags", "ids", "products")

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.ids = array("I", [spec.id for spec in specs])
        self.flags = bytes([spec.flags for spec in specs])
        # (position in the list, "prod" or "abs_prod", spec of the result)
        self.products = [
            (position, product, CaptureSpec([TensorSpec(tensor_id, PAYLOAD | STATISTICS)]))
            for position, spec in enumerate(specs)
            for product, tensor_id in spec.products
        ]

    def with_ids(self, ids: array[int]) -> CaptureSpec:
        """Return the same spec with other ids."""
        whole = CaptureSpec(())
        whole.ids, whole.flags, whole.products = ids, self.flags, self.products
        return whole

    def with_reasons(self, reasons: Sequence[int]) -> CaptureSpec:
        """The same spec with an AbsentReason (csrc/ring/record.hpp) per tensor; 0: the tensor has a value."""
        whole = CaptureSpec(())
        flags = zip(self.flags, reasons, strict=True)
        whole.ids, whole.flags = self.ids, bytes(flag | reason << _REASON_SHIFT for flag, reason in flags)
        whole.products = self.products
        return whole

    def concat(self, more: CaptureSpec) -> CaptureSpec:
        """Return this spec followed by another spec."""
        whole = CaptureSpec(())
        whole.ids = self.ids + more.ids
        whole.flags = self.flags + more.flags
        moved = [(len(self.ids) + position, product, one) for position, product, one in more.products]
        whole.products = [*self.products, *moved]
        return whole

    def permuted(self, places: Sequence[int]) -> CaptureSpec:
        """Return the same spec in another order: first the tensor at places[0], then places[1], ..."""
        whole = CaptureSpec(())
        whole.ids = array("I", map(self.ids.__getitem__, places))
        whole.flags = bytes(map(self.flags.__getitem__, places))
        now_at = {place: position for position, place in enumerate(places)}
        whole.products = [(now_at[position], product, one) for position, product, one in self.products]
        return whole


class NameTable:
    """Ids of tensor names, and the collections to which the names belong."""

    def __init__(self, ring: Any, collections: CollectionManager) -> None:
        self.changed = False  # names were added since collections.json was last sent
        self.left_out = LeftOutNames()
        self._ring = ring
        self._collections = collections
        self._ids: dict[str, tuple[int, TensorKind, str]] = {}
        self._named: dict[int, str] = {}  # names by the ids of intern()
        self._shard_ids: dict[tuple[int, ShardPosition], int] = {}
        # By kind: a version of the collections, and those to which a tensor of the kind may belong.
        self._of_kind: dict[TensorKind, tuple[int, list[Collection]]] = {}
        # Selection of each collection at the last refresh.
        self._selected: dict[str, tuple[object, ...]] = {}

    def intern(self, name: str, kind: TensorKind, origin: str) -> int:
        """The id of the name. A new name is added to every collection to which it belongs."""
        known = self._ids.get(name)
        if known is not None:
            return known[0]
        why = unfit(name)
        tensor_id: int = _UNFIT if why else self._ring.intern(name, kind.value, origin) & _ID_BITS
        self._ids[name] = (tensor_id, kind, origin)
        self.changed = True
        if tensor_id >= _UNFIT:
            self._leave_out(name, kind, why or NO_ROOM)
            return tensor_id
        self._named[tensor_id] = name
        for collection in self._takers(kind):
            if collection.belongs(name, kind, origin):
                collection.seen.add(name)
        return tensor_id

    def _takers(self, kind: TensorKind) -> list[Collection]:
        """The collections to which a tensor of the kind may belong."""
        version = self._collections.version.value
        known = self._of_kind.get(kind)
        if known is None or known[0] != version:
            takers = [collection for collection in self._collections if collection.may_take(kind)]
            known = self._of_kind[kind] = (version, takers)
        return known[1]

    @property
    def any(self) -> bool:
        """Whether any tensor was selected so far."""
        return bool(self._ids)

    def name_and_kind(self, tensor_id: int) -> tuple[str, TensorKind]:
        """Return name and kind of an id of intern() or intern_shard(). The name is "" if it was left out."""
        name = self._named.get(tensor_id, "")
        return name, self._ids[name][1] if name else TensorKind.CUSTOM

    def intern_shard(self, tensor_id: int, shard: ShardPosition) -> int:
        """Return the id of the same name for a shard of a larger tensor."""
        found = self._shard_ids.get((tensor_id, shard))
        if found is None:
            name = self._named.get(tensor_id)
            found = tensor_id
            if name is not None:
                _, kind, origin = self._ids[name]
                found = self._ring.intern(name, kind.value, origin, shard.as_text()) & _ID_BITS
                if found != _ID_BITS:
                    self._named[found] = name
                else:
                    self._leave_out(name, kind, NO_ROOM)
            self._shard_ids[tensor_id, shard] = found
        return found

    def _leave_out(self, name: str, kind: TensorKind, why: str) -> None:
        if self._ring.usable:  # otherwise no tensor is recorded any more
            self.left_out.add(name, kind, why)
            self.changed = True

    def refresh(self) -> None:
        """Add known names to changed collections."""
        for collection in self._collections:
            selects = (collection, *collection.selection)
            if self._selected.get(collection.name) == selects:
                continue  # intern() has added newer names
            self._selected[collection.name] = selects
            collection.seen.update(
                name
                for name, (tensor_id, kind, origin) in self._ids.items()
                if tensor_id < _UNFIT and collection.belongs(name, kind, origin)
            )
        self.changed = True


class Plan:
    """Settings for the capture of all tensors, for one set of collections."""

    def __init__(
        self, collections: Sequence[Collection], reduction_config: ReductionConfig | None, names: NameTable
    ) -> None:
        self.collections = tuple(collections)
        self.cache: dict[Any, Any] = {}  # values that a framework's hook derives from this plan
        self._reduction_config = reduction_config
        self._names = names
        self._specs: dict[str, TensorSpec | None] = {}
        # Only tensors of these kinds can be selected.
        self.kinds = frozenset(
            kind for kind in TensorKind if any(collection.may_take(kind) for collection in self.collections)
        )

    def spec(self, name: str, kind: TensorKind, origin: str = "") -> TensorSpec | None:
        """Return the spec of a tensor; None: it is not captured."""
        try:
            return self._specs[name]
        except KeyError:
            spec = self._specs[name] = self._decide(name, kind, origin)
            return spec

    def always(self, name: str, kind: TensorKind, origin: str = "") -> TensorSpec:
        """Return the spec of a tensor that is captured whether a collection selects it or not."""
        return TensorSpec(self._names.intern(name, kind, origin), PAYLOAD | STATISTICS)

    def takes(self, name: str, kind: TensorKind, origin: str = "") -> bool:
        """Whether a collection selects the tensor. Creates no id."""
        return any(collection.belongs(name, kind, origin) for collection in self.collections)

    def may_take(self, kind: TensorKind) -> bool:
        """Whether a tensor of the kind may be selected. False: none is selected, whatever its name."""
        return kind in self.kinds

    def _decide(self, name: str, kind: TensorKind, origin: str) -> TensorSpec | None:
        takers = [collection for collection in self.collections if collection.belongs(name, kind, origin)]
        if not takers:
            return None
        configs = [taker.reduction_config or self._reduction_config for taker in takers]
        tensor_id = self._names.intern(name, kind, origin)
        if kind in _ALWAYS_WHOLE or any(config is None or config.save_raw_tensor for config in configs):
            return TensorSpec(tensor_id, PAYLOAD | STATISTICS)
        products: dict[str, int] = {}
        for config in filter(None, configs):
            for requested, product in ((config.reductions, "prod"), (config.abs_reductions, "abs_prod")):
                if "prod" in requested and product not in products:
                    products[product] = self._names.intern(f"{name}/{product}", TensorKind.REDUCTION, name)
        return TensorSpec(tensor_id, STATISTICS, tuple(products.items()))
