"""The counts in measured.json, from which the pages of the rules are generated."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

from tdcore.rules import RULES
from tests.faults.training.measured import FILE, counts, explaining

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "make_rule_docs.py"


def outcome(cause: str, *rules: str) -> dict[str, Any]:
    return {"cause": cause, "rules": list(rules)}


def test_runs_are_counted_by_what_their_fault_has_to_do_with_the_rule() -> None:
    found = counts(
        "TDC104",  # dead units
        [
            outcome("dead units", "TDC104"),
            outcome("dead units"),
            outcome("learning rate too high", "TDC104"),  # kills units
            outcome("padding"),
            outcome("", "TDC104"),
            outcome(""),
        ],
    )
    assert found == {
        "causes": ["dead units"],
        "own": [1, 2],
        "by_product": [1, 1],
        "other": [0, 1],
        "healthy": [1, 2],
    }


def test_causes_that_explain_each_other_are_not_counted_as_by_products_of_themselves() -> None:
    assert "dead units" not in explaining(frozenset({"dead units"}))
    assert "inputs hold NaN" in explaining(frozenset({"dead units"}))


def test_the_kept_counts_are_of_rules_and_of_at_least_fifty_healthy_trainings() -> None:
    results = json.loads(FILE.read_text(encoding="utf-8"))
    assert {*results["rules"]} <= {*RULES}
    assert results["healthy_trainings"] >= 50
    for one in results["rules"].values():
        faulty = [one[sort] for sort in ("own", "by_product", "other")]
        assert sum(runs for _, runs in faulty) == results["runs_with_a_fault"]
        assert one["healthy"][1] == results["healthy_trainings"]


def test_a_page_says_how_often_its_rule_fired() -> None:
    measured_section = runpy.run_path(str(SCRIPT))["measured_section"]
    one = counts("TDC104", [outcome("dead units", "TDC104"), outcome("padding"), outcome("")])
    text = " ".join(measured_section("TDC104", {"commit": "1234567", "rules": {"TDC104": one}}).split())
    assert "| with a fault that the rule should find (dead units) | 1 of 1 |" in text
    assert "| with another fault | 0 of 1 | | without a fault (healthy trainings) | 0 of 1 |" in text
    none = counts("TDC114", [outcome("padding"), outcome("")])
    text = " ".join(measured_section("TDC114", {"commit": "1234567", "rules": {"TDC114": none}}).split())
    assert "The set has no fault that this rule should find." in text
    newer = measured_section("TDC999", {"commit": "1234567", "rules": {}})
    assert "The rule is newer than the last measurement (commit 1234567)." in newer
