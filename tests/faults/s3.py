"""The fault campaign of S3: seeded jobs and a strict S3 server behind a proxy that makes faults.

    python -m tests.faults.s3 --scenarios 1000 --jobs 2      a campaign; exit code 1 when a scenario fails
    python -m tests.faults.s3 --seed 0 --only 17             repeats one scenario of it

After each job, every captured tensor that is not counted as dropped is in the bucket exactly once, with its
bytes, if necessary after `tdcore upload`. Totals, gaps and drops are exact, except that a killed flusher may
have counted a stored tensor as dropped. No secret was printed or written.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import json
import multiprocessing
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.covering import covering, pairs
from tests.faults.outcome import Result
from tests.faults.play import Stage
from tests.faults.scenario import draw, values_of

__all__ = ["main", "summary"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_stage: Stage | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Play a campaign and print its summary."""
    options = _options(arguments)
    numbers: Sequence[int] = range(options.scenarios)
    if options.only is not None:
        numbers = [options.only]
    elif options.among:
        cases = [pairs(values_of(draw(options.seed, number))) for number in range(options.among)]
        numbers = covering(cases, most=options.scenarios)
    results: list[Result] = []
    for result in _played(options.seed, numbers, options.jobs):
        results.append(result)
        if result.error or options.only is not None:
            print(f"{result.replay}\n{result.error or asdict(result)}", flush=True)
        elif len(results) % 20 == 0:
            print(f"{len(results)} of {len(numbers)}", flush=True)
    print("\n".join(summary(results)))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 1 if any(result.error for result in results) else 0


def summary(results: Sequence[Result]) -> list[str]:
    """Return the lines of the summary."""
    struck: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    for result in results:
        struck.update(result.struck)
        idle.update(result.idle)
    lines = [f"{'fault':<16}{'scenarios':>10}{'strikes':>10}{'found nothing':>15}"]
    for kind in sorted({*struck, *idle}):
        scenarios = sum(kind in result.struck for result in results)
        lines.append(f"{kind:<16}{scenarios:>10}{struck[kind]:>10}{idle[kind]:>15}")
    total = {
        "scenarios": len(results),
        "of real processes": sum(result.processes for result in results),
        "flushers killed or restarted": sum(result.restarts for result in results),
        "tensors checked": sum(result.tensors for result in results),
        "tensors dropped and counted": sum(result.dropped for result in results),
        "retries": sum(result.retries for result in results),
        "objects spooled": sum(result.spooled_objects for result in results),
        "bytes spooled": sum(result.spooled_bytes for result in results),
        "objects brought by tdcore upload": sum(result.uploaded for result in results),
        "objects that nothing needs": sum(result.strays for result in results),
        "seconds": round(sum(result.seconds for result in results)),
        "failures": sum(bool(result.error) for result in results),
    }
    lines += ["", *(f"{name:<36}{number:>14,}" for name, number in total.items())]
    return lines + [f"again: {result.replay}" for result in results if result.error]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The fault campaign of S3.")
    parser.add_argument("--scenarios", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--among", type=int, help="select the scenarios from so many: those with the most pairs of values"
    )
    parser.add_argument("--only", type=int, help="play this scenario alone")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel processes")
    return parser.parse_args(arguments)


def _played(seed: int, numbers: Sequence[int], jobs: int) -> Iterator[Result]:
    """Yield results in the order in which scenarios end."""
    context = multiprocessing.get_context("spawn")  # a forked child of a process that has used obstore hangs
    pool = ProcessPoolExecutor(min(jobs, len(numbers)), mp_context=context, initializer=_die_with_parent)
    with pool:
        for future in as_completed([pool.submit(_play, seed, number) for number in numbers]):
            yield future.result()


def _die_with_parent() -> None:
    """End this process when its parent dies, so that a killed campaign leaves no process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _play(seed: int, number: int) -> Result:
    """Play a scenario in a process of the pool; the servers live as long as this process."""
    global _stage
    if _stage is None:
        _stage = Stage().__enter__()
        atexit.register(_stage.__exit__)
    return _stage.play(draw(seed, number))


if __name__ == "__main__":
    sys.exit(main())
