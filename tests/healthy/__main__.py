"""The campaign of false alarms: every rule judges every healthy training.

    python -m tests.healthy [--only NAME] [--seeds 3] [--json FILE]

Prints the rules that fired, and finally for each rule the number of trainings that it judged and of those in
which it fired. The exit status is 1 when a rule fired without a justification in tests/healthy/justified.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch

from tdcore.rules import Status
from tdcore.rules.loading import all_rules
from tests.healthy.campaign import TRAININGS, Outcome, judge_all
from tests.healthy.justified import JUSTIFIED


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.healthy", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(TRAININGS), default=[])
    parser.add_argument("--seeds", type=int, default=1, help="number of repetitions with other seeds")
    parser.add_argument("--json", type=Path, help="file for all outcomes")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found: list[Outcome] = []
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory(prefix="tdcore-healthy-") as folder:
            for loss, verdicts in judge_all(Path(folder), tuple(given.only), seed):
                found += verdicts
                _print_training(loss, verdicts)
    _print_rules(found)
    if given.json:
        given.json.write_text(
            json.dumps([asdict(one) | {"status": one.status.value} for one in found], indent=1)
        )
    return int(any(one.findings and (one.training, one.code) not in JUSTIFIED for one in found))


_NOT_JUDGED = (Status.NOT_EVALUABLE, Status.NOT_APPLICABLE)


def _print_training(loss: float, outcomes: list[Outcome]) -> None:
    print(f"{outcomes[0].training}: loss {loss:.3f}")
    for one in outcomes:
        if one.status not in (Status.NO_ISSUE, *_NOT_JUDGED):
            reason = JUSTIFIED.get((one.training, one.code))
            print(f"  {one.code} {one.rule}: {one.text}" + (f" [justified: {reason}]" if reason else ""))


def _print_rules(found: list[Outcome]) -> None:
    judged = Counter(one.code for one in found if one.status not in _NOT_JUDGED)
    fired = Counter(one.code for one in found if one.findings)
    for rule in all_rules():
        name = type(rule).__name__
        print(f"{rule.code} {name:28s} judged {judged[rule.code]:3d}  fired {fired[rule.code]:3d}")


if __name__ == "__main__":
    sys.exit(main())
