"""A training that runs with a hook and without one; the run without a hook is the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tdcore.hooks.pytorch import Hook

from .conftest import Captured

__all__ = ["Record", "Training", "check_values", "run_twins"]


class Record:
    """Values that a training records about itself. values: by name and step."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.values: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def note(self, name: str, step: int, value: torch.Tensor | float | None) -> None:
        """Record a value that a hook should capture under this name; None is not recorded."""
        if value is not None:
            array = value.detach().clone() if isinstance(value, torch.Tensor) else torch.tensor(value)
            self.values[name, step] = (
                array.float().numpy() if array.dtype is torch.bfloat16 else array.numpy()
            )

    def of(self, name: str) -> dict[int, npt.NDArray[Any]]:
        """Return the values of one name, by step."""
        return {step: value for (found, step), value in self.values.items() if found == name}


Training = Callable[[Hook | None, Record], None]


def run_twins(training: Training, hook: Hook) -> Record:
    """Run the training without and with the hook, from the same seed; return the record without the hook.

    The losses must be equal in every bit.
    """
    records = []
    for one in (None, hook):
        torch.manual_seed(3)
        record = Record()
        training(one, record)
        records.append(record)
    plain, hooked = records
    assert len(plain.losses) == len(hooked.losses) > 0
    for without, with_hook in zip(plain.losses, hooked.losses, strict=True):
        assert torch.equal(without, with_hook)
    assert not hook._faults
    return plain


def check_values(run: Captured, reference: Record, *names: str) -> None:
    """Check that every value of the reference is in the run, bit by bit.

    names: names to check; all by default.
    """
    looked = 0
    for (name, step), value in reference.values.items():
        if not names or name in names:
            found = run.value(name, step)
            assert np.array_equal(found.astype(value.dtype), value, equal_nan=True), (name, step)
            looked += 1
    assert looked
