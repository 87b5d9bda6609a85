"""Memory of the flusher process under load, from /proc/<pid>/smaps_rollup of the kernel.

Each load has its own session and flusher, begins when the flusher has started, and is repeated; the table has
the median and, in brackets, the largest value.

private    USS in MB: memory that belongs to this flusher alone (heap, thread stacks, changed pages of
           libraries). The ring is shared with the trainer and is not part of it
pss        private, and the flusher's share of libraries and of the pages of the ring that it has read
rss        all pages that the flusher has mapped, with libraries and the ring
steady     median of the second half of the load; the values "peak" and "at the end" (final merge and
           upload, from the call of close() on) are the largest of the samples, which are taken 20 times per
           second

Loads: "idle" saves one small tensor and waits. "<n> tensors" saves statistics of n tensors, 20 times per
second. "10,000 names" saves them once per second. "values" writes tensors of 4 MB as fast as a ring of
256 MiB accepts them. "s3" does the same with a bucket on this machine (a server of tests/s3).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, add_out, save
from benchmarks.flush import flusher_of_this_process
from benchmarks.s3.sessions import open_session, until_ready
from tdcore.session import Session

_SAMPLES_PER_SECOND = 20
_FIELDS = ("Rss", "Pss", "Private_Clean", "Private_Dirty")
Load = Callable[[Session, float], None]


class Memory:
    """Samples of the memory of one process, in MB, until stop()."""

    def __init__(self, process: Path) -> None:
        self._file = process / "smaps_rollup"
        self._over = threading.Event()
        self._samples: list[tuple[str, dict[str, float]]] = []
        self.phase = "load"
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """Stop, and return the summary."""
        self._over.set()
        self._thread.join()
        result: dict[str, float] = {}
        for field in ("private", "pss", "rss"):
            load = [sample[field] for phase, sample in self._samples if phase == "load"]
            end = [sample[field] for phase, sample in self._samples if phase == "end"]
            result[f"{field}_steady"] = statistics.median(load[len(load) // 2 :])
            result[f"{field}_peak"] = max(load)
            result[f"{field}_at_the_end"] = max(end, default=result[f"{field}_steady"])
        return result

    def _sample(self) -> None:
        while not self._over.wait(1 / _SAMPLES_PER_SECOND):
            phase = self.phase
            try:
                text = self._file.read_text()
            except OSError:
                return  # the process has ended
            found = dict.fromkeys(_FIELDS, 0.0)
            for line in text.splitlines():
                name, _, rest = line.partition(":")
                if name in found:
                    found[name] = float(rest.split()[0]) * 1024 / 1e6
            if found["Rss"]:
                private = found["Private_Clean"] + found["Private_Dirty"]
                self._samples.append((phase, {"rss": found["Rss"], "pss": found["Pss"], "private": private}))


def measure(place: str | Path, load: Load, seconds: float) -> dict[str, float]:
    """Memory of the flusher of one session under a load."""
    session = open_session(str(place))
    until_ready(session)
    memory = Memory(flusher_of_this_process())
    try:
        load(session, seconds)
        memory.phase = "end"
        session.close()
    finally:
        result = memory.stop()
    result["rows"] = session.counters().tensors
    result["drops"] = session.counters().dropped_tensors
    return result


def idle(session: Session, seconds: float) -> None:
    """Save one small tensor and wait."""
    session.ring.capture([np.zeros(10)], array("I", [session.ring.intern("x", 10)]), b"\3", 0, 4, 0)
    time.sleep(seconds)


def rows(count: int, pace_seconds: float) -> Load:
    """A load that saves statistics of `count` tensors at each step."""

    def load(session: Session, seconds: float) -> None:
        ring = session.ring
        names = array("I", [ring.intern(f"encoder.layers.{i}.weight", 3) for i in range(count)])
        numbers = np.random.default_rng(0).standard_normal((count, 64), dtype=np.float32)
        start = time.perf_counter()
        step = 0
        while time.perf_counter() - start < seconds:
            ring.capture(list(numbers * np.float32(1 + step)), names, b"\2" * count, step, 1, step)
            step += 1
            time.sleep(max(0.0, start + step * pace_seconds - time.perf_counter()))

    return load


def values(session: Session, seconds: float) -> None:
    """Save tensors of 4 MB as fast as the ring accepts them."""
    tensors = [np.random.default_rng(i).standard_normal(1 << 20, dtype=np.float32) for i in range(8)]
    names = array("I", [session.ring.intern(f"tensor_{i}", 10) for i in range(len(tensors))])
    start, step = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        session.ring.capture(tensors, names, b"\3" * len(tensors), step, 4, step)
        step += 1


LOADS: dict[str, tuple[Load, bool]] = {  # and whether the run is in a bucket
    "idle": (idle, False),
    "10 tensors": (rows(10, 0.05), False),
    "100 tensors": (rows(100, 0.05), False),
    "1,000 tensors": (rows(1000, 0.05), False),
    "10,000 names": (rows(10_000, 1.0), False),
    "values": (values, False),
    "s3, 100 tensors": (rows(100, 0.05), True),
    "s3, values": (values, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each load")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=LOADS, metavar="LOAD")
    add_out(parser)
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in options.loads}
    for number in range(options.repeats):
        for name in options.loads:
            load, in_bucket = LOADS[name]
            with ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build"))
                place: str | Path = Path(folder) / "run"
                if in_bucket:
                    place = _bucket(stack, number)
                measured[name].append(measure(place, load, options.seconds))
    result = {name: _summary(each) for name, each in measured.items()}
    report(result)
    arguments = {"seconds": options.seconds, "repeats": options.repeats}
    print("saved", save("flusher_memory", {"method": __doc__, **arguments, **result}, options.out))


def _bucket(stack: ExitStack, number: int) -> str:
    """Start a server, and return the URL of a run in its bucket."""
    from benchmarks.s3.servers import running

    server = stack.enter_context(running("stub http"))
    spool = stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build"))
    os.environ.update({**server.environment, "TDCORE_SPOOL": spool})
    return server.url(f"run{number}")


def _summary(each: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    values_of = {key: [one[key] for one in each] for key in each[0]}
    return {
        key: {"median": statistics.median(found), "largest": max(found)} for key, found in values_of.items()
    }


def report(result: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("load", "private: steady", "peak", "at the end", "pss: peak", "rss: peak", title="MB")
    for name, numbers in result.items():
        keys = ("private_steady", "private_peak", "private_at_the_end", "pss_peak", "rss_peak")
        table.add_row(
            name, *(f"{numbers[key]['median']:.0f} ({numbers[key]['largest']:.0f})" for key in keys)
        )
    Console().print(table)


if __name__ == "__main__":
    main()
