"""Keras on torch: steps run at once, operation by operation.

The step that records is the model's own step with the same operations in the same order, so its results have
the same bits. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from tdcore.hooks.interception import Patch
from tdcore.hooks.keras.backend import Read, StatefulBackend, UncapturableStepError

if TYPE_CHECKING:
    from tdcore.hooks.keras.collector import Collector

__all__ = ["TorchBackend"]


class TorchBackend(StatefulBackend):
    """See backend.Backend."""

    name = "torch"

    def trace(self) -> object:
        """Nothing is traced."""
        return None

    def is_building(self) -> bool:
        """Shapes are computed with tensors of the device "meta", which is_tensor() leaves out."""
        return False

    def unchanged(self, model: Any, function: object) -> AbstractContextManager[Any]:
        """The changes remain."""
        return nullcontext()

    def took_back(self) -> bool:
        """The capturing function runs the operations of the model's own one, in the same order."""
        return False

    def creating_at_once(self) -> AbstractContextManager[Any]:
        """Variables have their values at once."""
        return nullcontext()

    def check_model(self, model: Any) -> None:
        """A compiled step with more outputs may round differently, and changes the training."""
        if model.jit_compile:
            raise UncapturableStepError(
                "with jit_compile=True on torch, a second compiled step may round differently; "
                "compile(jit_compile=False) can be captured"
            )

    def check_step(self) -> None:
        """Each step that runs at once can be captured."""

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a dense tensor of numbers."""
        return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta

    def kept(self, value: Any) -> Any:
        """A copy: later operations of the step may change a tensor in place."""
        return value.detach().clone()

    def dense(self, value: Any) -> Any:
        """The tensor; the sum of a sparse one."""
        return value.to_dense() if value.is_sparse else value

    def reader(self, model: Any, mode: str, state: tuple[Any, ...]) -> tuple[Read, Mapping[int, Any]]:
        """Variables hold their values, which an update changes in place."""
        return lambda variable: variable.value.detach().clone(), {}

    def outside_of_graphs(self) -> AbstractContextManager[Any]:
        """There are no graphs."""
        return nullcontext()

    def patches(self, collector_of_thread: Callable[[], Collector | None]) -> Iterator[Patch]:
        """PyTorch needs none."""
        return iter(())

    def strategy_patches(self, model: Any) -> Iterator[Patch]:
        """There are no strategies."""
        return iter(())

    def next_batch(self, model: Any, iterator: Any) -> Any:
        """The next batch."""
        return next(iterator)

    def is_end(self, error: BaseException) -> bool:
        """Whether the iterator has ended."""
        return isinstance(error, StopIteration)

    def call(self, function: Callable[..., Any], state: tuple[Any, ...], batch: Any, mode: str) -> Any:
        """Keras's step functions take a list of batches, and use the first one."""
        return function([batch])

    def is_of_step(self, error: Exception) -> bool:
        """Never: if no weight has changed, the model's own function runs the batch and raises the error."""
        return False

    def merged(self, name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """Never called: there are no replicas."""
        return [(name, values[0])]

    def to_array(self, value: Any) -> Any:
        """The tensor itself, on any device."""
        return value.detach() if isinstance(value, torch.Tensor) else value
