"""RequiredTensors: the tensors that a rule in the form of smdebug needs, collected before a step is judged.

    def set_required_tensors(self, step):
        self.req_tensors.add("loss_output_0", steps=[step])

    def invoke_at_step(self, step):
        for tensor in self.req_tensors.get():
            tensor.value(step)

The tensors are fetched before invoke_at_step() is called. If a tensor or a step is missing, fetching raises
and the step is skipped. Threads: those of the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.trial import Tensor, Trial

__all__ = ["RequiredTensors"]


class RequiredTensors:
    """Tensors of the base trial and of other trials, with the steps at which they are needed.

    In all methods, `trial=None` is the base trial.
    """

    def __init__(self, base_trial: Trial, other_trials: Sequence[Trial] = ()) -> None:
        self._trials = [base_trial, *other_trials]
        self._needed: list[dict[str, set[int]]] = [{} for _ in self._trials]

    def add(
        self, name: str, steps: Iterable[int], trial: Trial | None = None, should_match_regex: bool = False
    ) -> None:
        """Add a tensor and the steps at which it is needed.

        Args:
            name: Name of the tensor.
            steps: Global steps.
            trial: The trial of the tensor; None: the base trial.
            should_match_regex: `name` is a regular expression, and all tensors that match it are added. No
                match is not an error.

        Raises:
            TensorUnavailable: The trial has no tensor of this name.
        """
        owner, needed = self._of(trial)
        listed = set(steps)
        names = owner.tensor_names(regex=name) if should_match_regex else [owner.tensor(name).name]
        for each in names:
            needed.setdefault(each, set()).update(listed)

    def get(self, trial: Trial | None = None) -> list[Tensor]:
        """The tensors, in the order in which they were added."""
        owner, needed = self._of(trial)
        return [owner.tensor(name) for name in needed]

    def get_names(self, trial: Trial | None = None) -> list[str]:
        """The names of the tensors, in the order in which they were added."""
        return list(self._of(trial)[1])

    def get_tensor_steps(self, name: str, trial: Trial | None = None) -> list[int]:
        """The steps at which the tensor is needed, sorted; empty if it was not added."""
        return sorted(self._of(trial)[1].get(name, ()))

    def clear(self) -> None:
        """Remove all tensors."""
        for needed in self._needed:
            needed.clear()

    def fetch(self, *, wait: bool = True) -> None:
        """Check that each tensor has a value, or statistics, at its steps.

        Args:
            wait: First wait until the steps have been written.

        Raises:
            StepUnavailable: A step was not saved.
            StepNotYetAvailable: A step has not been written yet (without `wait`).
            NoMoreData: The run ended before a step.
            TensorUnavailableForStep: A tensor has neither a value nor statistics at a step.
        """
        for owner, needed in zip(self._trials, self._needed, strict=True):
            if wait:
                owner.wait_for_steps(sorted(set().union(*needed.values())))
            for name, steps in needed.items():
                tensor = owner.tensor(name)
                for step in sorted(steps):
                    tensor.shape(step)  # raises if there is neither a value nor a statistic

    def _of(self, trial: Trial | None) -> tuple[Trial, dict[str, set[int]]]:
        for each, needed in zip(self._trials, self._needed, strict=True):
            if trial is None or each is trial:
                return each, needed
        raise ConfigError(f"{trial!r} is not one of the rule's trials; pass it to the rule in other_trials")
