"""Runs trainings with and without planted faults, judges all of them by all rules, and counts the findings.

python -m tests.rules.time_faults.judge FOLDER [REPEATS [FAULT ...]]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tdcore.rules import RULES, Verdict, run
from tests.rules.time_faults.trainings import FAULTS, START_SECONDS

__all__ = ["judged", "trained"]

SECONDS = 11.0
LONG_SECONDS = 22.0  # for two ranks, and for a rule that needs samples of the time that it judges


def trained(place: Path, fault: str) -> Path:
    """Train in processes of their own; return the path of the run."""
    is_long = any(each in fault for each in ("workers", "rank", "slow_steps", "recompiles"))
    seconds = LONG_SECONDS if is_long else SECONDS
    if fault == "recompiles":
        seconds *= 2  # compilations are slow, and the rule needs 27 steps
    world = 2 if "slow_rank" in fault else 1
    command = [sys.executable, "-m", "tests.rules.time_faults.trainings", str(place), fault, str(seconds)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), f"{place}.store"] if world > 1 else command)
        for rank in range(world)
    ]
    codes = [rank.wait(timeout=600) for rank in ranks]
    assert codes == [0] * world, f"{fault}: exit codes {codes}"
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
        for fault in sys.argv[3:] or [each for name in FAULTS for each in (name, f"none:{name}")]:
            place = folder / f"{fault.replace(':', '-')}-{repeat}"
            verdicts = judged(trained(place, fault))
            fired = {name: each.findings[-1].why for name, each in verdicts.items() if each.findings}
            expected = {FAULTS[fault]} if fault in FAULTS else set()
            counts["found"] += expected <= fired.keys() and bool(expected)
            counts["missed"] += not expected <= fired.keys()
            counts["quiet"] += not fired and not expected
            counts["false alarms"] += bool(fired.keys() - expected) and not expected
            print(repeat, fault, {name: each.text[:60] for name, each in verdicts.items()}, flush=True)
            for name, why in fired.items():
                print("   ", name, why, flush=True)
            shutil.rmtree(place, ignore_errors=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
