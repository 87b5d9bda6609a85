"""Parts of recorded values: iterations of a scan, and shards with their place in the whole.

The place of "<name>/shard_<number>" is stored in a note of the run and not in the index column `shard`. The
column is for parts of one name that several workers save. With it, a reader would look for the other parts
under the name of this shard, and raise an error because they have other names.

Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.jax.step_functions import Tapped
from tdcore.hooks.jax.tapped_jaxpr import Scanned, Sharded
from tdcore.hooks.jax_arrays import host_array

__all__ = ["Part", "parts_of_array", "split_tap"]

_PER_AXIS = ("offset", "global_shape")  # of a place: one number for each axis
Part = tuple[str, Any, dict[str, Any]]  # name, array, and its place: empty for a whole value


def split_tap(tapped: Tapped, *, per_layer: bool) -> list[Part]:
    """The recorded values of one tap.

    A value that is equal on all devices is one value. Outputs and inputs that differ are the parts of a
    batch: the whole is recorded too, and the place of each part has its offset in this whole. Other values
    that differ are recorded per shard only.
    """
    name, levels = tapped.name, tapped.lifted.levels
    sharded = [each for each in levels if isinstance(each, Sharded)]
    value = tapped.value if not sharded else np.asarray(tapped.value)
    scans = sum(1 for each in levels if isinstance(each, Scanned))
    if not sharded:
        return list(_layers(name.name, _unmarked(name.scalar, value), {}, scans, per_layer))
    outer = levels[levels.index(sharded[-1]) + 1 :]
    axis = sum(1 for each in outer if isinstance(each, Scanned))
    shards = np.split(value, np.prod([each.count for each in sharded], dtype=int), axis)
    first = shards[0]
    if all(each.tobytes() == first.tobytes() for each in shards):
        return list(_layers(name.name, _unmarked(name.scalar, first), {}, scans, per_layer))
    found: list[Part] = []
    of_batch = name.kind in (TensorKind.OUTPUT, TensorKind.INPUT) and not name.scalar
    if of_batch:
        joined = np.concatenate(shards, scans)
        found += _layers(name.name, joined, {}, scans, per_layer)
    for number, shard in enumerate(shards):
        place: dict[str, Any] = {"mesh": _coordinates(sharded[-1], number)}
        if of_batch:
            offset = [number * size if at == scans else 0 for at, size in enumerate(shard.shape)]
            place |= {"offset": offset, "global_shape": list(joined.shape)}
        found += _layers(
            f"{name.name}/shard_{number}", _unmarked(name.scalar, shard), place, scans, per_layer
        )
    return found


def parts_of_array(name: str, value: Any, *, per_shard: bool) -> Iterator[Part]:
    """An array as a whole, then its shards if they are requested and differ in their place."""
    yield name, host_array(value), {}
    if not per_shard or not isinstance(value, jax.Array) or value.is_fully_replicated:
        return
    seen: set[tuple[int, ...]] = set()
    for shard in value.addressable_shards:
        offset = [start.indices(size)[0] for start, size in zip(shard.index, value.shape, strict=True)]
        if tuple(offset) not in seen:
            place = {"offset": offset, "global_shape": list(value.shape), "device": shard.device.id}
            yield f"{name}/shard_{len(seen)}", host_array(shard.data), place
            seen.add(tuple(offset))


def _unmarked(scalar: bool, value: Any) -> Any:
    """The value without the axis with which a scalar was marked."""
    return value[..., 0] if scalar else value


def _layers(name: str, value: Any, place: dict[str, Any], scans: int, per_layer: bool) -> Iterator[Part]:
    if not per_layer or not scans:
        yield name, value, place
        return
    for number in range(value.shape[0]):
        inner = {key: at[1:] if key in _PER_AXIS else at for key, at in place.items()}
        yield from _layers(f"{name}/layer_{number}", value[number], inner, scans - 1, per_layer)


def _coordinates(sharded: Sharded, number: int) -> dict[str, int]:
    """The position in the mesh of the shard with a number."""
    position = np.unravel_index(number % sharded.count, sharded.sizes)
    return {axis: int(at) for axis, at in zip(sharded.axes, position, strict=True)}
