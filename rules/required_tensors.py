"""RequiredTensors: what a rule of the older kind needs at a step, collected before the step is judged.

    def set_required_tensors(self, step):
        self.req_tensors.add("loss_output_0", steps=[step])

    def invoke_at_step(self, step):
        for tensor in self.req_tensors.get():
            tensor.value(step)

Before invoke_at_step() the tensors are fetched: a tensor or step that is not there raises, so the step is
skipped. Threads: as the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.trial import Tensor, Trial

__all__ = ["RequiredTensors"]


class RequiredTensors:
    """Tensors of the base trial and of other trials, each with the steps at which it is needed.

    Wherever `trial` is left out, the base trial is meant.
    """

    def __init__(self, base_trial: Trial, other_trials: Sequence[Trial] = ()) -> None:
        self._trials = [base_trial, *other_trials]
        self._needed: list[dict[str, set[int]]] = [{} for _ in self._trials]

    def add(
        self, name: str, steps: Iterable[int], trial: Trial | None = None, should_match_regex: bool = False
    ) -> None:
        """Adds a tensor, or with should_match_regex all tensors whose names the pattern matches.

        Raises TensorUnavailable when the trial has no tensor of the name. A pattern may match none.
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
        """Their names, in the order in which they were added."""
        return list(self._of(trial)[1])

    def get_tensor_steps(self, name: str, trial: Trial | None = None) -> list[int]:
        """The steps at which the tensor is needed, sorted; empty when it was not added."""
        return sorted(self._of(trial)[1].get(name, ()))

    def clear(self) -> None:
        """Forgets all of them."""
        for needed in self._needed:
            needed.clear()

    def fetch(self, *, wait: bool = True) -> None:
        """Checks that each tensor has a value, or statistics, at its steps. wait: for the steps, before.

        Raises StepUnavailable, StepNotYetAvailable, NoMoreData or TensorUnavailableForStep.
        """
        for owner, needed in zip(self._trials, self._needed, strict=True):
            if wait:
                owner.wait_for_steps(sorted(set().union(*needed.values())))
            for name, steps in needed.items():
                tensor = owner.tensor(name)
                for step in sorted(steps):
                    tensor.shape(step)  # raises where there is neither a value nor a statistic

    def _of(self, trial: Trial | None) -> tuple[Trial, dict[str, set[int]]]:
        for each, needed in zip(self._trials, self._needed, strict=True):
            if trial is None or each is trial:
                return each, needed
        raise ConfigError(f"{trial!r} is not one of the rule's trials; give the rule it in other_trials")
