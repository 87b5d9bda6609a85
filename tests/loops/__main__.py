"""Command line: python -m tests.loops. The exit status is 1 when a loop has differences."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.loops.generator import from_text
from tests.loops.runner import many, shrunk, summarize


def main() -> int:
    """Run the loops that the arguments select."""
    parser = argparse.ArgumentParser(prog="python -m tests.loops", description=__doc__)
    parser.add_argument("--loops", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first loop of the sequence")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--details", type=int, default=12, help="number of differences printed per loop")
    parser.add_argument("--loop", help="the text of one loop, as this command prints it")
    parser.add_argument("--shrink", action="store_true", help="search for a simpler loop that also fails")
    parser.add_argument("--ranks", type=int, default=0, help="number of processes of DistributedDataParallel")
    arguments = parser.parse_args()
    if arguments.ranks:
        from tests.loops.ranks import many_with_ranks

        numbers = range(arguments.first, arguments.first + arguments.loops)
        summary = many_with_ranks(arguments.seed, numbers, arguments.ranks)
    elif arguments.loop:
        with tempfile.TemporaryDirectory() as folder:
            summary = summarize([from_text(arguments.loop)], Path(folder))
    else:
        summary = many(arguments.first, arguments.loops, arguments.seed, arguments.processes)
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
