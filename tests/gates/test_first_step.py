"""Upper limits for the first saved step, which names all tensors of a model, in counts per module.

The first saved step of a model of 10,000 modules takes seconds if the cost per module grows. The limits have
the tolerance of test_hook_cost.py, and the same rules apply to a change of them.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import tdcore as td
from tdcore.config.collection import Collection
from tdcore.hooks.pytorch import Hook

from .counting import Counting
from .test_hook_cost import EVERY, RING, SLACK, Still, linears

SMALL, LARGE, LARGEST = 10, 40, 100


class Cost(NamedTuple):
    """Counts of a first saved step. questions: calls of Collection.belongs()."""

    instructions: float
    calls: float
    questions: float

    def per_module(self, smaller: Cost, modules: int) -> Cost:
        """The difference of two costs, divided by the number of modules."""
        return Cost(*((more - less) / modules for more, less in zip(self, smaller, strict=True)))


# Per nn.Linear: a weight and a bias with their gradients; with "everything" an input and an output too.
CEILINGS = {
    "parameters": Cost(1476, 38, 6),
    "everything": Cost(2974, 76, 7),
}


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    belongs = Collection.belongs

    def counted(self: Collection, name: str, *rest: object) -> bool:
        asked.append(name)
        return belongs(self, name, *rest)  # type: ignore[arg-type]  # kind and origin

    monkeypatch.setattr(Collection, "belongs", counted)
    return asked


def first_step(folder: Path, what: str, modules: int, questions: list[str]) -> Cost:
    """Count the first saved step of a new hook."""
    gc.collect()
    model = linears(modules)
    optimizer, x = Still(model.parameters()), torch.zeros(1, 4)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    collections = ("weights", "biases", "gradients", "losses")
    with Hook(
        folder / f"{what}{modules}",
        save_config=EVERY,
        include_collections=collections if what == "parameters" else (),
        save_all=what == "everything",
        reduction_config=td.ReductionConfig(),
        ring=RING,
        flusher="thread",
    ) as hook:
        hook.register_module(model)
        questions.clear()
        with Counting() as counting:
            model(x)
            optimizer.step()
    return Cost(counting.instructions.total(), counting.calls.total(), len(questions))


@pytest.mark.parametrize("what", CEILINGS)
def test_the_first_saved_step_has_a_limit_per_module(tmp_path: Path, questions: list[str], what: str) -> None:
    small, large, largest = (first_step(tmp_path, what, size, questions) for size in (SMALL, LARGE, LARGEST))
    found = large.per_module(small, LARGE - SMALL)
    grown = largest.per_module(large, LARGEST - LARGE)
    assert grown == pytest.approx(found, rel=0.02), "the cost per module grows with the size of the model"
    ceiling = CEILINGS[what]
    over = [field for field in Cost._fields if getattr(found, field) > getattr(ceiling, field) * SLACK]
    assert not over, f"{what}: {', '.join(over)} of {found}, ceiling {ceiling} with a factor of {SLACK}"
