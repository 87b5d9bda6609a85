"""Rules: checks that find typical faults of a training in the recorded run.

RULES is the table of all rules (rules/library/). The docstring of a rule's class is its documentation:
docs/rules/ is generated from the docstrings.

    from tdcore.rules import VanishingGradient, run
    report = run("runs/demo", [VanishingGradient()])
    for finding in report.findings: ...

    plan([VanishingGradient(), DeadRelu()])    the collections that a hook must capture; Hook(rules=[...])
                                               captures them

A user's own rule is a class with `code`, `needs` and `check` (RuleProtocol, rules/base.py), or a subclass of
Rule with `invoke_at_step`, as in smdebug (rules/legacy.py).
"""

from __future__ import annotations

from tdcore.rules import library
from tdcore.rules.base import Finding, RuleProtocol, Status, Verdict
from tdcore.rules.engine import Engine
from tdcore.rules.finding_groups import FindingGroup
from tdcore.rules.legacy import Rule, invoke_rule
from tdcore.rules.library import *  # noqa: F403 -- the rules, each by its name
from tdcore.rules.planning import plan
from tdcore.rules.required_tensors import RequiredTensors
from tdcore.rules.requirements import Need
from tdcore.rules.runner import Report, run
from tdcore.rules.sweep import SweepReport, sweep
from tdcore.rules.window import Window

__all__ = [
    "Engine",
    "Finding",
    "FindingGroup",
    "Need",
    "Report",
    "RequiredTensors",
    "Rule",
    "RuleProtocol",
    "Status",
    "SweepReport",
    "Verdict",
    "Window",
    "invoke_rule",
    "plan",
    "run",
    "sweep",
    *library.__all__,
]
