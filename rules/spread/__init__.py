"""Spread judgement: one run is judged by many tasks, with the report of one judgement.

    run("s3://bucket/huge", "all", workers=8)                    processes of this machine
    run("s3://bucket/huge", "all", workers=64, engine="ray")     tasks on a cluster

Each rule declares what it judges independently (Rule.judged_by): tensors, workers, or only the whole run.
plan.py divides the rules and the workers of the run among tasks, task.py judges one part, and join.py joins
the parts in the order of a single judgement.
"""

from __future__ import annotations

from tdcore.rules.spread.judge import is_worth_dividing, judge_in_parts

__all__ = ["is_worth_dividing", "judge_in_parts"]
