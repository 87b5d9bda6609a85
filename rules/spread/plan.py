"""Plan: which rules and which workers of a run each task judges. Pure functions; any thread.

Rules that judge the whole run have one task. It reads only the columns that these rules declare. The other
rules have one task for each group of workers. If there are fewer workers than tasks, rules that read the
values of each tensor alone get several tasks per group, each with a share of the names. Rules that read only
statistics do not: reading the rows takes most of their time, and all names of a worker are in the same files.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tdcore.rules.rule_attributes import JudgedBy, is_summary, judged_by, judges_tensors
from tdcore.rules.rule_run import RuleRun
from tdcore.trial.worker_order import worker_order

__all__ = ["Part", "make_plan"]

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The work of one task.

    Attributes:
        labels: Labels of its rules.
        workers: Workers whose rows it reads.
        whole: Whether the rules judge the whole run, so that the task returns their final state.
        share, shares: The task reads the names with crc32(name) % shares == share.
        number: Number of the task, from 1.
        counts: Whether its rows count for the report, because each row is in one such part.
    """

    labels: tuple[str, ...]
    workers: tuple[str, ...]
    whole: bool = False
    share: int = 0
    shares: int = 1
    number: int = 0
    counts: bool = False

    def __str__(self) -> str:
        if self.whole:
            return f"part {self.number} (the whole run)"
        names = ", ".join(self.workers[:_SHOWN])
        more = f" and {len(self.workers) - _SHOWN} more" if len(self.workers) > _SHOWN else ""
        share = f", share {self.share + 1} of {self.shares} of the names" if self.shares > 1 else ""
        return f"part {self.number} ({names}{more}{share})"


def make_plan(runs: Sequence[RuleRun], rows: Mapping[str, int], tasks: int) -> list[Part]:
    """The parts, the largest first.

    Args:
        runs: The rules of the report.
        rows: Number of rows of each worker.
        tasks: Number of tasks that run at the same time.
    """
    groups = _balanced(rows, tasks)
    shares = tasks // max(1, len(groups))
    labels: dict[str, list[str]] = {"run": [], "worker": [], "tensor": []}
    for run in runs:
        labels[_scope(run, len(groups), shares)].append(run.label)
    of_run, of_workers, of_names = (tuple(each) for each in labels.values())
    parts = [Part(labels=of_run, workers=tuple(rows), whole=True)] if of_run else []
    if of_workers:
        parts += [Part(labels=of_workers, workers=group) for group in groups]
    if of_names:
        places = [(group, share) for group in groups for share in range(shares)]
        parts += [Part(labels=of_names, workers=group, share=at, shares=shares) for group, at in places]
    counting = parts[0].labels if parts else ()  # the parts of these rules have each row once
    return [
        replace(part, number=number, counts=part.labels == counting)
        for number, part in enumerate(parts, start=1)
    ]


def _scope(run: RuleRun, groups: int, shares: int) -> JudgedBy:
    """What each task of the rule judges: all rows, some workers, or some names of some workers."""
    rule = run.rule
    alone = judges_tensors(rule) and not getattr(rule, "each_look", False)
    if not alone or is_summary(rule) or run.combined or not groups:
        return "run"
    scope = judged_by(rule)
    if scope == "tensor" and not (shares > 1 and rule.needs().payload):
        scope = "worker"
    return "run" if scope == "worker" and groups == 1 else scope


def _balanced(rows: Mapping[str, int], groups: int) -> list[tuple[str, ...]]:
    """The workers in at most `groups` groups with about the same number of rows."""
    number = min(groups, len(rows))
    found: list[list[str]] = [[] for _ in range(number)]
    sizes = [(0, at) for at in range(number)]
    for worker in sorted(rows, key=lambda each: (-rows[each], worker_order(each))):
        size, at = heapq.heappop(sizes)
        found[at].append(worker)
        heapq.heappush(sizes, (size + rows[worker], at))
    return [tuple(sorted(group, key=worker_order)) for group in found]
