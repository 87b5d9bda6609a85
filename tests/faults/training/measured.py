"""Writes measured.json, the results of the campaigns per rule, from which the pages of rules are generated.

    python -m tests.faults.training --part held_out --json held_out.json
    python -m tests.faults.training --part healthy --json healthy.json
    python -m tests.faults.training.measured held_out.json healthy.json
    python scripts/make_rule_docs.py

A rule should find the causes for which faults.py lists it. Faults of causes that explain one of these causes,
by the table of the diagnosis (rules/diagnosis/causes.py), are counted separately: the rule finds a
by-product.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import commit
from tdcore.rules import RULES
from tdcore.rules.base import is_summary
from tdcore.rules.diagnosis.causes import CAUSES as TABLE
from tests.faults.training.faults import CAUSES

__all__ = ["FILE", "counts", "explaining", "measured"]

FILE = Path(__file__).with_name("measured.json")
Counts = dict[str, Any]


def explaining(causes: frozenset[str]) -> frozenset[str]:
    """Return the causes that explain one of the given causes, without the given causes."""
    return frozenset(name for name, cause in TABLE.items() if causes & {*cause.explains}) - causes


def counts(code: str, outcomes: Sequence[Counts]) -> Counts:
    """Return, for each group of runs, in how many of them a rule fired, as [fired, runs].

    Args:
        code: Code of the rule.
        outcomes: Outcomes of judge.py as plain values.
    """
    own = frozenset(cause for cause, codes in CAUSES.items() if code in codes)
    before = explaining(own)
    sorts: dict[str, list[int]] = {name: [0, 0] for name in ("own", "by_product", "other", "healthy")}
    for one in outcomes:
        cause = one["cause"]
        sort = (
            "healthy"
            if not cause
            else "own"
            if cause in own
            else "by_product"
            if cause in before
            else "other"
        )
        sorts[sort][0] += code in one["rules"]
        sorts[sort][1] += 1
    return {"causes": sorted(own), **sorts}


def measured(outcomes: Sequence[Counts]) -> Counts:
    """Return the content of measured.json."""
    return {
        "commit": commit().rstrip("+"),
        "method": "python -m tests.faults.training, parts held_out and healthy, everything captured that all "
        "rules need; see tests/faults/training/measured.py",
        "runs_with_a_fault": sum(bool(one["cause"]) for one in outcomes),
        "healthy_trainings": sum(not one["cause"] for one in outcomes),
        "rules": {code: counts(code, outcomes) for code, rule in RULES.items() if not is_summary(rule)},
    }


if __name__ == "__main__":
    found = [one for name in sys.argv[1:] for one in json.loads(Path(name).read_text())]
    FILE.write_text(json.dumps(measured(found), indent=1) + "\n", encoding="utf-8")
