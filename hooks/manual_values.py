"""Values that a script passes to the hook: scalars, named tensors, functional losses.

Independent of the framework. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.collection_manager import CollectionManager
from tdcore.format.layout import EPOCH_SCALAR, TensorKind
from tdcore.hooks.clock import Clock
from tdcore.hooks.left_out import shortened
from tdcore.hooks.plan import CaptureSpec
from tdcore.hooks.recorder import Recorder, as_array
from tdcore.modes import ModeKeys

__all__ = ["ManualValues"]


class ManualValues:
    """Capture of a script's values in the current step. Each method returns whether a value was captured."""

    def __init__(
        self, collections: CollectionManager, clock: Clock, recorder: Recorder, warn: Callable[[str], None]
    ) -> None:
        self._collections = collections
        self._clock = clock
        self._recorder = recorder
        self._warn = warn

    def scalar(self, name: str, value: Any) -> bool:
        """Capture a number, or a value with one element."""
        when = self._collections.get(CollectionKeys.SCALARS).save_config
        step_id = self._clock.now.step_id
        if when is not None and not when.should_save_step(ModeKeys(step_id.mode), step_id.mode_step):
            return False
        return self._scalar(name, value)

    def epoch(self, epoch: int) -> bool:
        """Capture the epoch that the current step belongs to. Return whether the ring has stored it."""
        spec = self._clock.plan_of([CollectionKeys.SCALARS]).spec(EPOCH_SCALAR, TensorKind.SCALAR)
        return spec is not None and self._recorder.capture([as_array(epoch)], CaptureSpec([spec]))

    def tensor(self, name: str, value: Any, collections: str | Iterable[str]) -> bool:
        """Capture a tensor, array or number, for these collections."""
        self.include(name, collections)
        return self._by_name(name, value, TensorKind.CUSTOM)

    def include(self, name: str, collections: str | Iterable[str]) -> None:
        """Save these collections, and the tensor of this name with them."""
        for collection in [collections] if isinstance(collections, str) else list(collections):
            self._collections.get(collection).add_tensor_name(name)
            self._clock.include(collection)

    def gradient(self, name: str, value: Any) -> bool:
        """Capture the gradient of a tensor that the script named, for the collections that match the name."""
        return self._by_name(name, value, TensorKind.GRADIENT)

    def functional_loss(self, tensor_name: str, value: Any) -> bool:
        """Capture the result of a function, as if it were the output of a module."""
        name = f"{tensor_name}_output_0"
        kind = TensorKind.LOSS if "loss" in tensor_name.lower() else TensorKind.CUSTOM
        if not self._clock.plan_of(self._clock.included).takes(name, kind):
            self._warn(
                f"record_tensor_value: no saved collection includes the name {shortened(name)!r}; "
                "put 'loss' into the name, or add a pattern that matches the name to a collection"
            )
        return self._by_name(name, value, kind)

    def _scalar(self, name: str, value: Any) -> bool:
        spec = self._clock.plan_of([CollectionKeys.SCALARS]).spec(name, TensorKind.SCALAR)
        if spec is None:
            return False
        self._recorder.capture([as_array(value)], CaptureSpec([spec]), call=self._clock.now.next_call(name))
        return True

    def _by_name(self, name: str, value: Any, kind: TensorKind) -> bool:
        spec = self._clock.plan_now().spec(name, kind)
        if spec is None:
            return False
        array = as_array(value)
        single = kind is TensorKind.LOSS and set(array.shape) <= {1}
        capture_spec = CaptureSpec([spec.whole if single else spec])
        self._recorder.capture([array], capture_spec, call=self._clock.now.next_call(name))
        return True
