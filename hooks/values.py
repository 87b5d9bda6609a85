"""Values that a script hands over itself: scalars, tensors under a name of its own, functional losses.

Knows no framework. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.collection import CollectionManager
from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import Clock
from tdcore.hooks.left_out import shortened
from tdcore.hooks.plan import Batch
from tdcore.hooks.recorder import Recorder, as_array
from tdcore.modes import ModeKeys

__all__ = ["ScriptValues"]


class ScriptValues:
    """Captures them under the current step. Each call tells whether there was something to capture."""

    def __init__(
        self, collections: CollectionManager, clock: Clock, recorder: Recorder, warn: Callable[[str], None]
    ) -> None:
        self._collections = collections
        self._clock = clock
        self._recorder = recorder
        self._warn = warn

    def scalar(self, name: str, value: Any) -> bool:
        """A number, or what has one element."""
        when = self._collections.get(CollectionKeys.SCALARS).save_config
        stamp = self._clock.now.stamp
        if when is not None and not when.should_save_step(ModeKeys(stamp.mode), stamp.mode_step):
            return False
        want = self._clock.plan_of([CollectionKeys.SCALARS]).want(name, TensorKind.SCALAR)
        if want is None:
            return False
        self._recorder.capture([as_array(value)], Batch([want]), call=self._clock.now.next_call(name))
        return True

    def tensor(self, name: str, value: Any, collections: str | Iterable[str]) -> bool:
        """A tensor, array or number, for these collections."""
        for collection in [collections] if isinstance(collections, str) else list(collections):
            self._collections.get(collection).add_tensor_name(name)
            self._clock.include(collection)
        return self._by_name(name, value, TensorKind.CUSTOM)

    def gradient(self, name: str, value: Any) -> bool:
        """The gradient of a tensor that the script named, for the collections that take the name."""
        return self._by_name(name, value, TensorKind.GRADIENT)

    def functional_loss(self, tensor_name: str, value: Any) -> bool:
        """What a function gave, as if it were the output of a module."""
        name = f"{tensor_name}_output_0"
        kind = TensorKind.LOSS if "loss" in tensor_name.lower() else TensorKind.CUSTOM
        if not self._clock.plan_of(self._clock.included).takes(name, kind):
            self._warn(
                f"record_tensor_value: no saved collection takes the name {shortened(name)!r}; "
                "put 'loss' into the name, or add a pattern that matches it to a collection"
            )
        return self._by_name(name, value, kind)

    def _by_name(self, name: str, value: Any, kind: TensorKind) -> bool:
        want = self._clock.plan_now().want(name, kind)
        if want is None:
            return False
        array = as_array(value)
        single = kind is TensorKind.LOSS and set(array.shape) <= {1}
        batch = Batch([want.whole if single else want])
        self._recorder.capture([array], batch, call=self._clock.now.next_call(name))
        return True
