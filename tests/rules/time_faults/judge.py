"""Runs trainings with and without planted faults, judges all of them by all rules, and counts the findings.

python -m tests.rules.time_faults.judge FOLDER [REPEATS [TRAINING ...]]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tdcore.rules import RULES, Verdict, run
from tests.rules.time_faults.trainings import FAULTS, HEALTHY, START_SECONDS

__all__ = ["judged", "trained"]

# Duration of each training after its first step. The rules judge its newest half.
SECONDS = 11.0
LONGER = {
    # The rule Dataloader needs samples of the machine, which it reads in pieces of five seconds.
    "no_workers": 22.0,
    "many_workers": 22.0,
    "healthy_workers": 22.0,
    "slow_rank": 22.0,
    "healthy_ranks": 22.0,
    "slow_steps": 22.0,  # the rule needs 11 slow steps in the newest half
    "healthy": 22.0,  # the rule of slow_steps judges this training too
    "slow_start": 1.0,  # the rule judges the time before the first step
}
# A training on a slow machine continues until it has so many steps.
STEPS = {"recompiles": 40, "slow_start": 1}  # the rule of recompiles needs 27 steps
DEFAULT_STEPS = 200


def trained(place: Path, training: str) -> Path:
    """Train in processes of their own; return the path of the run."""
    world = 2 if "rank" in training else 1
    seconds, steps = str(LONGER.get(training, SECONDS)), str(STEPS.get(training, DEFAULT_STEPS))
    command = [sys.executable, "-m", "tests.rules.time_faults.trainings"]
    command += [str(place), training, seconds, steps]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), f"{place}.store"] if world > 1 else command)
        for rank in range(world)
    ]
    codes = [rank.wait(timeout=600) for rank in ranks]
    assert codes == [0] * world, f"{training}: exit codes {codes}"
    return place


def judged(place: Path) -> dict[str, Verdict]:
    """The verdict of each rule about times of steps, by name, with limits for short trainings."""
    rules: list[Any] = []
    for name in sorted(set(FAULTS.values())):
        (rule,) = (each for each in RULES.values() if each.__name__ == name)
        short: dict[str, Any] = {"min_seconds": 3.0}
        if name == "Dataloader":
            short = {"min_seconds": 6.0}
        if name == "MaxInitializationTime":
            short = {"threshold": START_SECONDS / 60}
        rules.append(rule(**short))
    return {verdict.rule: verdict for verdict in run(place, rules).verdicts}


def main() -> None:
    """Print each training, the rules that fired, and at the end the counts."""
    folder, repeats = Path(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])
    counts: Counter[str] = Counter()
    for repeat in range(repeats):
        for training in sys.argv[3:] or [*FAULTS, *dict.fromkeys(HEALTHY.values())]:
            place = folder / f"{training}-{repeat}"
            verdicts = judged(trained(place, training))
            fired = {name: each.findings[-1].why for name, each in verdicts.items() if each.findings}
            expected = {FAULTS[training]} if training in FAULTS else set()
            counts["found"] += expected <= fired.keys() and bool(expected)
            counts["missed"] += not expected <= fired.keys()
            counts["quiet"] += not fired and not expected
            counts["false alarms"] += bool(fired.keys() - expected) and not expected
            print(repeat, training, {name: each.text[:60] for name, each in verdicts.items()}, flush=True)
            for name, why in fired.items():
                print("   ", name, why, flush=True)
            shutil.rmtree(place, ignore_errors=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
