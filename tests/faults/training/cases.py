"""Cases: every fault in every training of one part in which it can be planted. A name identifies a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from tests.faults.training.architectures import DEVELOP
from tests.faults.training.faults import FAULTS, Fault
from tests.faults.training.healthy import HEALTHY
from tests.faults.training.healthy.parts import Make
from tests.faults.training.held_out import HELD_OUT
from tests.faults.training.job import Job, Loop
from tests.faults.training.planting import layers_of

__all__ = ["Case", "Part", "case_of", "cases", "made"]

Part = Literal["develop", "held_out", "healthy"]
_TRAININGS: Mapping[Part, Mapping[str, Make]] = {
    "develop": DEVELOP,
    "held_out": HELD_OUT,
    "healthy": HEALTHY,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training with the planted fault; with fault None it is healthy."""

    training: str
    fault: Fault | None
    seed: int

    @property
    def name(self) -> str:
        """For example "mlp: rate x1000 (seed 0)"."""
        return f"{self.training}: {self.fault.name if self.fault else 'healthy'} (seed {self.seed})"


def cases(part: Part, seeds: Sequence[int], *, healthy: bool = True) -> list[Case]:
    """Return all cases of one part."""
    trainings = _TRAININGS[part]
    found = [
        Case(training=name, fault=fault, seed=seed)
        for seed in seeds
        for fault in FAULTS
        for name in fault.on
        if name in trainings
    ]
    sound = [Case(training=name, fault=None, seed=seed) for seed in seeds for name in trainings]
    return found + (sound if healthy else [])


def case_of(name: str) -> Case:
    """Return the case of this name. Raises ValueError."""
    for part in _TRAININGS:
        seed = int(name.rpartition("(seed ")[2].rstrip(")"))
        found = [case for case in cases(part, [seed]) if case.name == name]
        if found:
            return found[0]
    raise ValueError(f"no case is called {name!r}; `--list` prints their names")


def made(case: Case) -> tuple[Job | Loop, str]:
    """Return the job with its fault, and a part of the names of tensors that show the fault."""
    torch.manual_seed(case.seed)
    make = next(trainings[case.training] for trainings in _TRAININGS.values() if case.training in trainings)
    job = make(torch.Generator().manual_seed(case.seed))
    if case.fault is None or isinstance(job, Loop):
        return job, ""
    names = [name for name, _ in layers_of(job.model)]
    at = {"first": names[0], "middle": names[len(names) // 2], "last": names[-1]} if names else {}
    case.fault.plant(job)
    return job, case.fault.where.format(**at)
