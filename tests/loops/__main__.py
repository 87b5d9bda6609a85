"""Command line: python -m tests.loops. The exit status is 1 when a loop has differences."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.covering import covering, pairs
from tests.loops.generator import from_text, random_loop, values_of
from tests.loops.ranks import loop_for_ranks, many_with_ranks
from tests.loops.runner import many, shrunk, summarize


def main() -> int:
    """Run the loops that the arguments select."""
    parser = argparse.ArgumentParser(prog="python -m tests.loops", description=__doc__)
    parser.add_argument("--loops", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first loop of the sequence")
    parser.add_argument(
        "--covering",
        action="store_true",
        help="only as many of the loops as give each pair of values of two fields to --times of them, "
        "counting the loops before --first",
    )
    parser.add_argument("--times", type=int, default=1, help="number of loops with each pair, for --covering")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--details", type=int, default=12, help="number of differences printed per loop")
    parser.add_argument("--loop", help="the text of one loop, as this command prints it")
    parser.add_argument("--shrink", action="store_true", help="search for a simpler loop that also fails")
    parser.add_argument("--ranks", type=int, default=0, help="number of processes of DistributedDataParallel")
    arguments = parser.parse_args()
    end = arguments.first + arguments.loops
    numbers: Sequence[int] = range(arguments.first, end)
    if arguments.covering:
        draw = loop_for_ranks if arguments.ranks else random_loop
        cases = [pairs(values_of(draw(arguments.seed, number))) for number in range(end)]
        numbers = covering(cases, first=arguments.first, times=arguments.times)
    if arguments.ranks:
        summary = many_with_ranks(arguments.seed, numbers, arguments.ranks)
    elif arguments.loop:
        with tempfile.TemporaryDirectory() as folder:
            summary = summarize([from_text(arguments.loop)], Path(folder))
    else:
        summary = many(numbers, arguments.seed, arguments.processes)
    if arguments.shrink and not arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            small = [shrunk(from_text(text), Path(folder)) for text, _ in summary.failing]
            again = summarize(dict.fromkeys(small), Path(folder))
        again.loops, again.rows = summary.loops, summary.rows
        summary = again
    print(summary.report(details=arguments.details))
    return 1 if summary.failing else 0


if __name__ == "__main__":
    sys.exit(main())
