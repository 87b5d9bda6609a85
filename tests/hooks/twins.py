"""A training run twice, with a hook and without: the one without is the reference for the other."""

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
    """What one of the twins saw of itself. values: by name and step."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.values: dict[tuple[str, int], npt.NDArray[Any]] = {}

    def note(self, name: str, step: int, value: torch.Tensor | float | None) -> None:
        """A value that a hook should capture under this name; None is not a value."""
        if value is not None:
            array = value.detach().clone() if isinstance(value, torch.Tensor) else torch.tensor(value)
            self.values[name, step] = (
                array.float().numpy() if array.dtype is torch.bfloat16 else array.numpy()
            )

    def of(self, name: str) -> dict[int, npt.NDArray[Any]]:
        """The values of one name, by step."""
        return {step: value for (found, step), value in self.values.items() if found == name}


Training = Callable[[Hook | None, Record], None]


def run_twins(training: Training, hook: Hook) -> Record:
    """Runs it without the hook and with it, from one seed; losses must be the same bits. The reference."""
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
    """Every value of the reference is in the run, bit by bit. names: those to look at; none are all."""
    looked = 0
    for (name, step), value in reference.values.items():
        if not names or name in names:
            found = run.value(name, step)
            assert np.array_equal(found.astype(value.dtype), value, equal_nan=True), (name, step)
            looked += 1
    assert looked
