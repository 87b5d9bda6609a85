"""A runner with a state, as a process of its own, for test_state.py.

python -m tests.rules.resumed_runner RUN STATE LOG: follows the run to its end; prints what it says as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tdcore.rules import ExplodingTensor, Finding, LossNotDecreasing, Rule, run
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.legacy import Rule as OlderRule
from tests.rules.a_rule_of_mine import EveryNth


class StepAbove(OlderRule):
    """Met at a late step."""

    def invoke_at_step(self, step: int) -> bool:
        return step >= 90


class LogKeys:
    """An action that writes down which findings it was given."""

    name = "log keys"

    def __init__(self, path: Path) -> None:
        self.path = path

    def act(self, findings: Sequence[Finding], source: Any, sink: Any) -> None:
        with self.path.open("a") as file:
            for finding in findings:
                file.write(json.dumps(finding.key) + "\n")


def rules() -> list[Rule]:
    return [
        EveryNth(nth=7), ExplodingTensor(), LossNotDecreasing(num_steps=5, patience=1), LegacyRule(StepAbove)
    ]  # fmt: skip


def main(place: str, state: str | None, log: Path) -> dict[str, object]:
    report = run(
        place, rules(), until_end=True, state=state, actions=[LogKeys(log)], write_findings=False,
        poll_interval=timedelta(seconds=0.02),
    )  # fmt: skip
    return report.to_json()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
