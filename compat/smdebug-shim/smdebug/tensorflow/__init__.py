"""smdebug.tensorflow: the hook for Keras 3 as KerasHook. Loops with tapes need tdcore.hooks.tensorflow."""

from __future__ import annotations

from typing import Any

from tdcore.errors import UnsupportedFeature
from tdcore.hooks.keras import Hook, del_hook, get_hook, set_hook
from tdcore.smd import Collection, CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes

__all__ = [
    "Collection",
    "CollectionKeys",
    "KerasHook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]


class KerasHook(Hook):
    """tdcore's hook for Keras, with the methods of smdebug's KerasHook."""

    def register_model(self, model: Any) -> None:
        """Record this model."""
        self.watch(model)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer unchanged: gradients are recorded from fit()."""
        return optimizer

    def wrap_tape(self, tape: Any) -> Any:
        """Raise UnsupportedFeature: another hook records loops with tapes."""
        raise UnsupportedFeature(
            "KerasHook of the smdebug shim records fit() only; for a loop with tf.GradientTape, use "
            "tdcore.hooks.tensorflow.Hook, which has wrap_tape()"
        )


def __getattr__(name: str) -> object:
    if name in ("SessionHook", "EstimatorHook"):
        raise AttributeError(
            f"{name} is not available: Keras 3 has neither sessions nor estimators; use KerasHook, or stay "
            "with smdebug for TensorFlow 1"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
