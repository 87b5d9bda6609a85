"""Arrays of JAX, for the hooks of JAX and of Keras on JAX. Threads: any."""

from __future__ import annotations

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
    """The tree with copies of its arrays: a step may consume the originals."""
    return jax.tree_util.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def host_array(value: Any) -> Any:
    """An array on the host; an array of one accelerator as it is."""
    devices: set[Any] = getattr(value, "devices", set)()
    on_host = all(device.platform == "cpu" for device in devices)
    return np.asarray(value) if on_host or len(devices) > 1 else value
