"""Plan: the form in which each tensor is captured while certain collections are saved.

Independent of the framework. A `Plan` belongs to one set of collections that are saved together. A hook keeps
one plan per set that occurs, and deletes all plans when a collection changes. A second call for the same name
costs one dictionary look-up. Threads: any (forward hooks of replicas); at worst two threads compute the same
result.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

from tdcore.config.collection import Collection
from tdcore.config.collection_manager import CollectionManager
from tdcore.config.reduction_config import ReductionConfig
from tdcore.format.layout import TensorKind
from tdcore.format.shard import ShardPosition
from tdcore.hooks.left_out import NO_ROOM, LeftOutNames, unfit

__all__ = ["NO_BACKWARD", "PAYLOAD", "STATISTICS", "CaptureSpec", "NameTable", "Plan", "Spec", "TensorSpec"]

PAYLOAD = 1  # CaptureFlags of csrc/ring/record.hpp
STATISTICS = 2
NO_BACKWARD = 1  # AbsentReason of csrc/ring/record.hpp
_REASON_SHIFT = 4  # above the flags: why a tensor is absent
_UNFIT = 0xFFFFFFFE  # kUnfitName of csrc/capture/capture.hpp: the tensor is counted, and gets no row
# -1, "the table of names cannot grow", becomes an id that the capture counts as dropped.
_ID_BITS = 0xFFFFFFFF

_Nature: TypeAlias = tuple[TensorKind, str]  # kind and origin of a tensor

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


# The fields of a TensorSpec. The garbage collector does not track plain tuples of numbers, so many names do
# not cause collections.
Spec: TypeAlias = tuple[int, int, tuple[tuple[str, int], ...]]

# Position in the list of tensors, "prod" or "abs_prod", spec of the result.
_Product: TypeAlias = "tuple[int, str, CaptureSpec]"
_NO_PRODUCTS: Sequence[_Product] = ()
_FLAGS = [bytes((flags,)) for flags in range(1 << _REASON_SHIFT)]


class CaptureSpec:
    """The name ids and flags of a list of tensors, in the form that the native capture call takes."""

    __slots__ = ("flags", "ids", "products")

    def __init__(self, specs: Sequence[TensorSpec | Spec]) -> None:
        self.ids = array("I", [tensor_id for tensor_id, _, _ in specs])
        self.flags = bytes([flags for _, flags, _ in specs])
        self.products: Sequence[_Product] = [
            (position, product, CaptureSpec([TensorSpec(tensor_id, PAYLOAD | STATISTICS)]))
            for position, (_, _, products) in enumerate(specs)
            for product, tensor_id in products
        ] or _NO_PRODUCTS

    @classmethod
    def of_one(cls, spec: TensorSpec | Spec) -> CaptureSpec:
        """The same as CaptureSpec([spec]), for one of many modules."""
        tensor_id, flags, products = spec
        if products:
            return cls((spec,))
        whole = cls.__new__(cls)
        whole.ids, whole.flags, whole.products = array("I", (tensor_id,)), _FLAGS[flags], _NO_PRODUCTS
        return whole

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


class _Takers(NamedTuple):
    """The collections to which tensors of one kind may belong.

    Attributes:
        version: Version of the collections.
        every: Collections to which all tensors of the kind belong.
        by_name: Collections to which some of them belong.
    """

    version: int
    every: list[Collection]
    by_name: list[Collection]

    @classmethod
    def of(cls, kind: TensorKind, collections: CollectionManager) -> _Takers:
        """Sort the collections for a kind."""
        candidates = [collection for collection in collections if collection.may_take(kind)]
        every = [collection for collection in candidates if collection.takes_every(kind)]
        by_name = [collection for collection in candidates if not collection.takes_every(kind)]
        return cls(collections.version.value, every, by_name)


class NameTable:
    """Ids of tensor names, and the collections to which the names belong."""

    def __init__(self, ring: Any, collections: CollectionManager) -> None:
        self.changed = False  # names were added since collections.json was last sent
        self.left_out = LeftOutNames()
        self._ring = ring
        self._collections = collections
        self._ids: dict[str, int] = {}
        # Kind and origin of each name. Equal pairs are one object, because a model has many names.
        self._natures: dict[str, _Nature] = {}
        self._pairs: dict[_Nature, _Nature] = {}
        self._named: dict[int, str] = {}  # names by the ids of intern()
        self._shard_ids: dict[tuple[int, ShardPosition], int] = {}
        self._takers: dict[TensorKind, _Takers] = {}
        # Selection of each collection at the last refresh.
        self._selected: dict[str, tuple[object, ...]] = {}

    def intern(self, name: str, kind: TensorKind, origin: str) -> int:
        """The id of the name. A new name is added to every collection to which it belongs."""
        known = self._ids.get(name)
        if known is not None:
            return known
        nature = kind, origin
        self._natures[name] = self._pairs.setdefault(nature, nature)
        why = unfit(name)
        tensor_id: int = _UNFIT if why else self._ring.intern(name, kind, origin) & _ID_BITS
        self._ids[name] = tensor_id
        self.changed = True
        if tensor_id >= _UNFIT:
            self._leave_out(name, kind, why or NO_ROOM)
            return tensor_id
        self._named[tensor_id] = name
        takers = self._takers_of(kind)
        for collection in takers.every:
            collection.seen.add(name)
        for collection in takers.by_name:
            if collection.belongs(name, kind, origin):
                collection.seen.add(name)
        return tensor_id

    def intern_all(
        self, names: Sequence[str], kinds: Sequence[TensorKind], origins: Sequence[str]
    ) -> list[int]:
        """The ids of many names, each with its kind and origin: the same ids as of intern() for each name."""
        new = self._ids.keys().isdisjoint(names) and len(set(names)) == len(names)
        found: list[int] = []
        if new and not any(map(unfit, names)):
            found = list(map(self._ring.intern, names, kinds, origins))
        if not found or min(found) < 0 or max(found) >= _UNFIT:
            return list(map(self.intern, names, kinds, origins))  # which counts the names that are left out
        for nature in set(zip(kinds, origins, strict=True)):
            self._pairs.setdefault(nature, nature)
        natures = map(self._pairs.__getitem__, zip(kinds, origins, strict=True))
        self._natures.update(zip(names, natures, strict=True))
        self._ids.update(zip(names, found, strict=True))
        self._named.update(zip(found, names, strict=True))
        self.changed = True
        for kind in set(kinds):
            of_kind = list(map(kind.__eq__, kinds))
            own, own_origins = list(compress(names, of_kind)), list(compress(origins, of_kind))
            takers = self._takers_of(kind)
            for collection in takers.every:
                collection.seen.update(own)
            for collection in takers.by_name:
                collection.seen.update(collection.members(own, kind, own_origins))
        return found

    def _takers_of(self, kind: TensorKind) -> _Takers:
        takers = self._takers.get(kind)
        if takers is None or takers.version != self._collections.version.value:
            takers = self._takers[kind] = _Takers.of(kind, self._collections)
        return takers

    @property
    def any(self) -> bool:
        """Whether any tensor was selected so far."""
        return bool(self._ids)

    def name_and_kind(self, tensor_id: int) -> tuple[str, TensorKind]:
        """Return name and kind of an id of intern() or intern_shard(). The name is "" if it was left out."""
        name = self._named.get(tensor_id, "")
        return name, self._natures[name][0] if name else TensorKind.CUSTOM

    def intern_shard(self, tensor_id: int, shard: ShardPosition) -> int:
        """Return the id of the same name for a shard of a larger tensor."""
        found = self._shard_ids.get((tensor_id, shard))
        if found is None:
            name = self._named.get(tensor_id)
            found = tensor_id
            if name is not None:
                kind, origin = self._natures[name]
                found = self._ring.intern(name, kind, origin, shard.as_text()) & _ID_BITS
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
                for name, tensor_id in self._ids.items()
                if tensor_id < _UNFIT and collection.belongs(name, *self._natures[name])
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
        self._specs: dict[str, Spec | None] = {}
        self._kind_plans: dict[TensorKind, _KindPlan] = {}
        # Only tensors of these kinds can be selected.
        self.kinds = frozenset(
            kind for kind in TensorKind if any(collection.may_take(kind) for collection in self.collections)
        )

    def spec(self, name: str, kind: TensorKind, origin: str = "") -> TensorSpec | None:
        """Return the spec of a tensor; None: it is not captured."""
        spec = self.fields(name, kind, origin)
        return None if spec is None else TensorSpec(*spec)

    def fields(self, name: str, kind: TensorKind, origin: str) -> Spec | None:
        """Return the fields of the spec of a tensor; None: it is not captured."""
        try:
            return self._specs[name]
        except KeyError:
            spec = self._specs[name] = self._decide(name, kind, origin)
            return spec

    def specs(
        self, names: Sequence[str], kinds: Sequence[TensorKind], origins: Sequence[str]
    ) -> list[Spec | None]:
        """Return the specs of many tensors for a CaptureSpec.

        Args:
            names: Name of each tensor.
            kinds: Kind of each tensor.
            origins: Class of the module or optimizer of each tensor.

        Returns:
            The fields of each TensorSpec; None: the tensor is not captured.
        """
        known = self._specs
        if known.keys().isdisjoint(names):
            self._decide_all(names, kinds, origins)
        try:
            return list(map(known.__getitem__, names))
        except KeyError:
            return list(map(self.fields, names, kinds, origins))

    def always(self, name: str, kind: TensorKind, origin: str = "") -> TensorSpec:
        """Return the spec of a tensor that is captured whether a collection selects it or not."""
        return TensorSpec(self._names.intern(name, kind, origin), PAYLOAD | STATISTICS)

    def takes(self, name: str, kind: TensorKind, origin: str = "") -> bool:
        """Whether a collection selects the tensor. Creates no id."""
        return self.of_kind(kind).form(name, origin) is not None

    def may_take(self, kind: TensorKind) -> bool:
        """Whether a tensor of the kind may be selected. False: none is selected, whatever its name."""
        return kind in self.kinds

    def of_kind(self, kind: TensorKind) -> _KindPlan:
        """Return the settings for the tensors of one kind."""
        known = self._kind_plans.get(kind)
        if known is None:
            known = self._kind_plans[kind] = _KindPlan(kind, self.collections, self._reduction_config)
        return known

    def _decide_all(self, names: Sequence[str], kinds: Sequence[TensorKind], origins: Sequence[str]) -> None:
        """Store the specs of new names in few calls; none if a product of elements needs a name."""
        plans = {kind: self.of_kind(kind) for kind in set(kinds)}
        if all(plan.is_constant for plan in plans.values()):
            form_of = {kind: plan.form("", "") for kind, plan in plans.items()}
            forms = list(map(form_of.__getitem__, kinds))
        else:
            tensors = zip(names, kinds, origins, strict=True)
            forms = [plans[kind].form(name, origin) for name, kind, origin in tensors]
        if any(form.products for form in filter(None, set(forms))):
            return
        chosen = [form is not None for form in forms]
        own, own_kinds = list(compress(names, chosen)), list(compress(kinds, chosen))
        ids = iter(self._names.intern_all(own, own_kinds, list(compress(origins, chosen))))
        specs = [None if form is None else (next(ids), form.flags, ()) for form in forms]
        self._specs.update(zip(names, specs, strict=True))

    def _decide(self, name: str, kind: TensorKind, origin: str) -> Spec | None:
        form = (self._kind_plans.get(kind) or self.of_kind(kind)).form(name, origin)
        if form is None:
            return None
        tensor_id = self._names.intern(name, kind, origin)
        if not form.products:
            return tensor_id, form.flags, ()
        products = [
            (product, self._names.intern(f"{name}/{product}", TensorKind.REDUCTION, name))
            for product in form.products
        ]
        return tensor_id, form.flags, tuple(products)


class _Form(NamedTuple):
    """Form in which tensors are captured. flags: CaptureFlags. products: some of "prod" and "abs_prod"."""

    flags: int
    products: tuple[str, ...]


class _KindPlan:
    """Settings for the tensors of one kind.

    Attributes:
        takes_every: Whether all tensors of the kind are captured, in the same form.
        is_constant: Whether takes_every, or no tensor of the kind is captured.
    """

    def __init__(
        self, kind: TensorKind, collections: Sequence[Collection], reduction_config: ReductionConfig | None
    ) -> None:
        self._kind = kind
        self._reduction_config = reduction_config
        self._candidates = [collection for collection in collections if collection.may_take(kind)]
        every = [collection.takes_every(kind) for collection in self._candidates]
        self._forms: dict[tuple[bool, ...], _Form | None] = {}  # by the candidates that select the tensor
        self.takes_every = all(every) and any(every)
        self.is_constant = self.takes_every or not every
        self._form_of_every = self._form_for(tuple(every)) if self.takes_every else None

    def form(self, name: str, origin: str) -> _Form | None:
        """Return the form of a tensor; None: it is not captured."""
        if self.takes_every:
            return self._form_of_every
        takers = tuple([each.belongs(name, self._kind, origin) for each in self._candidates])
        try:
            return self._forms[takers]
        except KeyError:
            form = self._forms[takers] = self._form_for(takers)
            return form

    def _form_for(self, takers: tuple[bool, ...]) -> _Form | None:
        if not any(takers):
            return None
        chosen = compress(self._candidates, takers)
        configs = [taker.reduction_config or self._reduction_config for taker in chosen]
        if self._kind in _ALWAYS_WHOLE or any(config is None or config.save_raw_tensor for config in configs):
            return _Form(PAYLOAD | STATISTICS, ())
        requested = [
            product
            for config in filter(None, configs)
            for names, product in ((config.reductions, "prod"), (config.abs_reductions, "abs_prod"))
            if "prod" in names
        ]
        return _Form(STATISTICS, tuple(dict.fromkeys(requested)))
