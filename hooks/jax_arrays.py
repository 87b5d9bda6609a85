"""Arrays of JAX, for the hooks of JAX and of Keras on JAX. Threads: any."""

from __future__ import annotations

from itertools import compress
from typing import Any

import jax
import numpy as np

__all__ = ["copied", "host_array", "is_numeric"]


def is_numeric(value: object) -> bool:
    """Whether a value is an array of numbers, or stands for one in a trace."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "OSU"
    return isinstance(value, jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


def copied(tree: Any) -> Any:
    """The tree with copies of its arrays: a step may consume the originals.

    Arrays of one device are copied in one call.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    simple = [_on_one_device(leaf) for leaf in leaves]
    together = iter(_copies(list(compress(leaves, simple))))
    copies = [next(together) if one else _copy(leaf) for one, leaf in zip(simple, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, copies)


_copies = jax.jit(lambda arrays: [array.copy() for array in arrays])


def _copy(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _on_one_device(leaf: Any) -> bool:
    """Whether an array may be copied by _copies(), which does not promise to keep how arrays are sharded."""
    if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) > 1:
        return False
    return not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)


def host_array(value: Any) -> Any:
    """An array on the host; an array of one accelerator is returned unchanged."""
    devices: set[Any] = getattr(value, "devices", set)()
    on_host = all(device.platform == "cpu" for device in devices)
    return np.asarray(value) if on_host or len(devices) > 1 else value
