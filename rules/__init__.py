"""Rules: what can be wrong with a training run, and how tdcore sees it in the record.

RULES is the table of all of them; each class's docstring is its documentation (docs/rules/ is made from it).

    from tdcore.rules import VanishingGradient, run
    report = run("runs/demo", [VanishingGradient()])
    for finding in report.findings: ...

Users' own rules: a class with `code`, `needs` and `check` (rules/base.py), or one of the older kind with
`invoke_at_step` (rules/legacy.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from tdcore.rules.base import Finding, Need, Rule, Status, Verdict
from tdcore.rules.dead_relu import DeadRelu
from tdcore.rules.engine import Engine
from tdcore.rules.exploding_tensor import ExplodingTensor
from tdcore.rules.legacy import invoke_rule
from tdcore.rules.loss_not_decreasing import LossNotDecreasing
from tdcore.rules.runner import Report, run
from tdcore.rules.vanishing_gradient import VanishingGradient
from tdcore.rules.window import Window

__all__ = [
    "RULES",
    "DeadRelu",
    "Engine",
    "ExplodingTensor",
    "Finding",
    "LossNotDecreasing",
    "Need",
    "Report",
    "Rule",
    "Status",
    "VanishingGradient",
    "Verdict",
    "Window",
    "invoke_rule",
    "run",
]

RULES: Mapping[str, type[Rule]] = {
    "TDC101": VanishingGradient,
    "TDC102": ExplodingTensor,
    "TDC103": LossNotDecreasing,
    "TDC104": DeadRelu,
}
