"""Runs the healthy trainings with dense capture, and judges each by all rules with default parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tdcore import CollectionConfig, SaveConfig
from tdcore.hooks.pytorch import Hook
from tdcore.rules import Status, run
from tdcore.rules.loading import all_rules
from tests.healthy.digits import DIGITS
from tests.healthy.generative import GENERATIVE
from tests.healthy.job import Job, train
from tests.healthy.tabular import TABULAR
from tests.healthy.text import TEXT
from tests.healthy.transfer import TRANSFER

__all__ = ["TRAININGS", "Outcome", "judge_all"]

TRAININGS: Mapping[str, Callable[[], Job]] = {**DIGITS, **TABULAR, **TEXT, **GENERATIVE, **TRANSFER}
_INTERVAL = 5  # much denser than usual: more steps at which a rule may be wrong
_WHOLE = ("weights", "biases", "gradients", "inputs", "outputs")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one rule for one training. text: the verdict, with the reason of the first finding."""

    training: str
    code: str
    rule: str
    status: Status
    findings: int
    judged: int
    text: str


def judge_all(
    folder: Path, names: tuple[str, ...] = (), seed: int = 0
) -> Iterator[tuple[float, list[Outcome]]]:
    """Return the last loss of each training and the results of all rules.

    Raises AssertionError if a loss is too high.
    """
    for at, (name, make) in enumerate(TRAININGS.items()):
        if names and name not in names:
            continue
        torch.manual_seed(seed)
        job = make()
        out = folder / f"{at:02d}"
        loss = _record(job, out)
        assert loss < job.limit, f"{name} is not a healthy training: loss {loss:.3f}, expected < {job.limit}"
        report = run(out, all_rules(), write_findings=False)
        yield (
            loss,
            [
                Outcome(
                    training=name,
                    code=verdict.code,
                    rule=verdict.rule,
                    status=verdict.status,
                    findings=verdict.finding_count,
                    judged=verdict.judged,
                    text=verdict.text + (f": {_first(verdict.findings)}" if verdict.findings else ""),
                )
                for verdict in report.verdicts
            ],
        )


def _record(job: Job, out: Path) -> float:
    save = SaveConfig(save_interval=_INTERVAL)
    with Hook(str(out), save_config=save, include_collections=_WHOLE) as hook:
        hook.add_collection(CollectionConfig(name="losses", save_config=SaveConfig(save_interval=1)))
        loss = train(job, hook)
        report = hook.close()
    assert report is not None
    assert (report.drained, report.counters.dropped_tensors) == (True, 0), report
    return loss


def _first(findings: tuple[object, ...]) -> str:
    first = findings[0]
    return f"{getattr(first, 'tensor', '')} at step {getattr(first, 'step', '')}: {getattr(first, 'why', '')}"
