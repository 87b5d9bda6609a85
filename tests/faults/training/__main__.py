"""Command line: python -m tests.faults.training. Plants faults and counts how many the rules find.

`--part healthy` plays trainings of other kinds, without a fault; no cause may be found in them.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from tests.faults.training.cases import case_of, cases
from tests.faults.training.judge import Outcome, play_by_name
from tests.faults.training.report import lines


def main() -> None:
    """Play the cases that the arguments select."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.training", description=__doc__)
    parser.add_argument("--part", choices=["develop", "held_out", "healthy"], default="develop")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--case", action="append", default=[], help="name of a case, as --list prints it")
    parser.add_argument("--cause", action="append", default=[], help="only faults of this cause")
    parser.add_argument("--healthy", action="store_true", help="only trainings without a fault")
    parser.add_argument("--captures", choices=["all", "default"], default="all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for all outcomes")
    arguments = parser.parse_args()
    chosen = [case_of(name) for name in arguments.case] or cases(arguments.part, range(arguments.seeds))
    if arguments.healthy:
        chosen = [case for case in chosen if case.fault is None]
    if arguments.cause:
        chosen = [case for case in chosen if case.fault and case.fault.cause in arguments.cause]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        for outcome in pool.map(play_by_name, [case.name for case in chosen], repeat(arguments.captures)):
            print(_line(outcome), flush=True)
            outcomes.append(outcome)
    print("\n".join(lines(outcomes)))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")


def _line(one: Outcome) -> str:
    said = "named" if one.named else "elsewhere" if one.elsewhere else "missed" if one.cause else "healthy"
    losses = f"loss {one.first_loss:.3g} to {one.last_loss:.3g}"
    causes = ", ".join(one.causes) or "none"
    given = f"{'right' if one.first else 'causes'}: {causes}"
    fired = ", ".join(one.rules) or "nothing"
    return f"{said:9s} {one.case}: {losses}; {given}; fired: {fired} ({one.findings})"


if __name__ == "__main__":
    main()
