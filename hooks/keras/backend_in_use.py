"""The choice of the backend. The files of other backends are not imported. Threads: any."""

from __future__ import annotations

import keras

from tdcore.errors import UnsupportedFeature
from tdcore.hooks.keras.backend import Backend

__all__ = ["backend_in_use"]


def backend_in_use() -> Backend:
    """The operations of Keras's backend. Raises UnsupportedFeature for a backend that is not covered."""
    name = keras.backend.backend()
    if name == "tensorflow":
        from tdcore.hooks.keras.tensorflow_backend import TensorFlowBackend

        return TensorFlowBackend()
    if name == "jax":
        from tdcore.hooks.keras.jax_backend import JaxBackend

        return JaxBackend()
    if name == "torch":
        from tdcore.hooks.keras.torch_backend import TorchBackend

        return TorchBackend()
    raise UnsupportedFeature(
        f"tdcore.hooks.keras captures on the backends tensorflow, jax and torch; Keras uses {name!r}: set "
        "KERAS_BACKEND before Keras is imported"
    )
