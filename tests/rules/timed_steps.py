"""Made-up times of steps: even ones, and those of a machine that other programs use too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tdcore.rules.base import Rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run

__all__ = ["USUAL", "even_steps", "fired_share", "is_silent_in_a_run", "noisy_steps", "with_samples"]

USUAL: dict[str, Any] = {
    "rest": 1.0,
    "data": 1.0,
    "forward": 15.0,
    "loss": 1.0,
    "backward": 28.0,
    "optimizer": 4.0,
}
Change = Callable[[int, dict[str, Any]], None]


def even_steps(number: int, *, mode: str = "TRAIN", worker: str = "worker_0", **phases: Any) -> Trace:
    """Return steps with the same milliseconds in each phase."""
    trace = Trace()
    for step in range(number):
        trace.add_step_time(step, mode=mode, worker=worker, **(USUAL | phases))
    return trace


def noisy_steps(
    seed: int,
    number: int,
    *,
    usual: Mapping[str, Any] = USUAL,
    change: Change = lambda step, phases: None,
    workers: int = 1,
) -> Trace:
    """Return steps of a machine that other programs use too.

    Each phase has noise of its own. Other programs slow down all phases for some time, by a factor of up to
    four, and stop single steps. Ranks wait for the slowest one in the backward pass.

    change: changes the phases of a step: the planted fault.
    """
    random = np.random.default_rng(seed)
    factor = np.ones(number)
    at = 0
    while at < number:
        length = int(random.integers(20, 400))
        factor[at : at + length] = random.uniform(1.2, 4.0) if random.random() < 0.3 else 1.0
        at += length
    trace = Trace()
    for step in range(number):
        of_ranks: list[dict[str, Any]] = []
        for rank in range(workers):
            noise = factor[step] * random.lognormal(0.0, 0.3, len(usual))
            phases: dict[str, Any] = {
                name: ms * float(each) for (name, ms), each in zip(usual.items(), noise, strict=True)
            }
            if random.random() < 0.004:
                phases[str(random.choice(list(usual)))] += float(random.uniform(20, 200))
            change(step if workers == 1 else rank, phases)
            of_ranks.append(phases)
        longest = max(_sum(each) for each in of_ranks)
        for rank, phases in enumerate(of_ranks):
            if workers > 1:
                phases["backward"] += longest - _sum(phases)
            trace.add_step_time(step, worker=f"worker_{rank}", **phases)
    return trace


def _sum(phases: Mapping[str, float]) -> float:
    return sum(ms for name, ms in phases.items() if name not in ("data_waits", "checkpoints", "compiles"))


def with_samples(trace: Trace, *, host: str = "node-1", worker: str = "worker_0", **values: Any) -> Trace:
    """Add samples every 500 ms in the time of the steps."""
    rows = trace.step_times[0, worker]
    end = rows[-1]["time_ns"] + rows[-1]["duration_ns"]
    for number in range(-2, (end - rows[0]["time_ns"]) // 500_000_000 + 1):
        trace.add_sample(worker=worker, host=host, **values)
        trace.samples[-1]["time_ns"] = rows[0]["time_ns"] + 500_000_000 * number
    return trace


def fired_share(rule: Rule, make: Callable[[int], Trace], seeds: int) -> float:
    """Return the share of the traces with a finding."""
    return sum(bool(judge(rule, make(seed))[0]) for seed in range(seeds)) / seeds


def is_silent_in_a_run(rule: Rule, place: Path, trace: Trace) -> bool:
    """Write a run, and return whether the rule judged it without a finding."""
    found, verdict = judged_trace_in_a_run(rule, place, trace)
    return not found and verdict.judged > 0 and verdict.text.startswith("no issue")
