"""Operations that differ between Keras's backends. Threads: the training thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import keras

from tdcore.hooks.interception import Patch
from tdcore.hooks.step_collector import TraceOperations

if TYPE_CHECKING:
    from tdcore.hooks.keras.collector import Collector

__all__ = ["OUTPUTS", "TAPS", "Backend", "Read", "StatefulBackend", "UncapturableStepError"]

OUTPUTS, TAPS = "outputs", "taps of tdcore"  # keys of what a capturing step returns
Read = Callable[[Any], Any]


class UncapturableStepError(Exception):
    """Raised while a step is traced: a second compiled function would train with other random numbers."""


class Backend(TraceOperations, Protocol):
    """Operations on one backend of Keras.

    Attributes:
        name: Name of the backend.
        apply: Name of the optimizers' method that takes gradients.
        stateful: Whether variables hold their values while a step runs. Otherwise the first argument of the
            step holds them.
    """

    name: str
    apply: str
    stateful: bool

    def unchanged(self, model: Any, function: object) -> AbstractContextManager[Any]:
        """A context in which a capturing function runs. Its changes are taken back if that is possible."""

    def took_back(self) -> bool:
        """Whether the changes of the last capturing function were taken back.

        Then the model's own function has to run, and computes the next state.
        """

    def creating_at_once(self) -> AbstractContextManager[Any]:
        """A context in which variables that a traced step creates have their values at once.

        If the trace fails, the model's own function can use them.
        """

    def check_model(self, model: Any) -> None:
        """Raise UncapturableStepError if the steps of this model cannot have a second function."""

    def check_step(self) -> None:
        """Raise UncapturableStepError if the step that is traced cannot have a second compiled function."""

    def reader(self, model: Any, mode: str, state: tuple[Any, ...]) -> tuple[Read, Mapping[int, Any]]:
        """A function that returns a snapshot of a variable, and values by id() of their variable."""

    def outside_of_graphs(self) -> AbstractContextManager[Any]:
        """A context in which variables are read at once, also while a step is traced."""

    def patches(self, collector_of_thread: Callable[[], Collector | None]) -> Iterator[Patch]:
        """Functions of the backend that are replaced while a saved step runs."""

    def strategy_patches(self, model: Any) -> Iterator[Patch]:
        """Functions of the model's distribution strategy that are replaced while a saved step runs."""

    def next_batch(self, model: Any, iterator: Any) -> Any:
        """The next batch of Keras's iterator, for call(). Raises the error by which Keras detects the end."""

    def is_end(self, error: BaseException) -> bool:
        """Whether an error means that there is no further batch."""

    def call(self, function: Callable[..., Any], state: tuple[Any, ...], batch: Any, mode: str) -> Any:
        """Call a step function of Keras with one batch, which may be used again."""

    def for_capture(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The state of a step for the capturing function: a copy, if the model's own function runs too."""

    def result(self, returned: Any) -> tuple[Mapping[str, Any] | None, Any]:
        """Split the result of a capturing function into taps and the result as Keras expects it.

        The taps are None if the function does not call the model's step.
        """

    def state_after(self, result: Any) -> tuple[Any, ...]:
        """The arguments of the next step, before its batch."""

    def with_outputs(self, result: Any, outputs: Any) -> Any:
        """The result of a step with other outputs."""

    def outputs_of(self, result: Any) -> Any:
        """The outputs in the result of a step."""

    def is_of_step(self, error: Exception) -> bool:
        """Whether an error comes from the execution of a compiled step, and not from a lack of memory."""

    def has_run(self, model: Any, before: object, state: tuple[Any, ...]) -> bool:
        """Whether a step that raised an error may have changed the model."""

    def progress(self, model: Any) -> object:
        """A value that every update of the model changes, for has_run()."""

    def merged(self, name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
        """Names and values of a tensor that every replica has: the whole one, then those of the replicas."""

    def to_array(self, value: Any) -> Any:
        """The tensor in a form that the recorder takes."""


class StatefulBackend:
    """Common part of the backends whose variables hold their values while a step runs."""

    apply = "apply"
    stateful = True

    def for_capture(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Steps have no state."""
        return state

    def result(self, returned: Any) -> tuple[Mapping[str, Any] | None, Any]:
        """The outputs are the whole result."""
        if not isinstance(returned, dict) or TAPS not in returned:
            return None, returned
        return returned[TAPS], returned[OUTPUTS]

    def state_after(self, result: Any) -> tuple[Any, ...]:
        """Steps have no state."""
        return ()

    def with_outputs(self, result: Any, outputs: Any) -> Any:
        """The outputs are the whole result."""
        return outputs

    def outputs_of(self, result: Any) -> Any:
        """The outputs are the whole result."""
        return result

    def progress(self, model: Any) -> object:
        """The number of updates of the optimizer."""
        iterations = getattr(getattr(model, "optimizer", None), "_iterations", None)
        return None if iterations is None else int(keras.ops.convert_to_numpy(iterations))

    def has_run(self, model: Any, before: object, state: tuple[Any, ...]) -> bool:
        """Whether the optimizer has counted an update."""
        return self.progress(model) != before
