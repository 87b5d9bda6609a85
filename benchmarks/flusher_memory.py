"""Memory of the flusher process under load, from /proc/<pid>/smaps_rollup of the kernel.

Each load has its own session and flusher, begins when the flusher has started, and is repeated; the table has
the median and, in brackets, the largest value.

anonymous  memory in MB that is not a page of a file: heap, thread stacks, changed pages of libraries. It does
           not depend on other processes. The ring is shared with the trainer and is not part of it
private    anonymous, and pages of libraries that no other process has mapped
pss        private, and the flusher's share of libraries and of the pages of the ring that it has read
rss        all pages that the flusher has mapped, with libraries and the ring
steady     median of the second half of the load; the values "peak" and "at the end" (final merge and
           upload, from the call of close() on) are the largest of the samples, which are taken 20 times per
           second

growth     slope of the anonymous memory in MB per minute, by least squares over the second half of the load
tenths     median of the anonymous memory in each tenth of the load

Loads: "idle" saves one small tensor and waits. "<n> tensors" saves statistics of n tensors, 20 times per
second. "10,000 names" saves them once per second. "values" writes tensors of 4 MB as fast as a ring of
256 MiB accepts them. "s3" does the same with a bucket on this machine (rclone). "slow s3" is a bucket that
accepts 1 MB/s, behind a proxy that limits the rate until the load ends; its "values" are 4 MB per second.

Segments of more than 8 MB, which the flusher does not read again, are removed during the load, so that a long
load does not fill the disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.environment import ROOT, add_out, save
from benchmarks.flush import flusher_of_this_process
from benchmarks.s3.sessions import open_session, until_ready
from tdcore.session import Session

_SAMPLES_PER_SECOND = 20
_SLOW_BYTES_PER_S = 1e6
_LARGE_BYTES = 8 << 20
_FIELDS = ("Rss", "Pss", "Private_Clean", "Private_Dirty", "Anonymous")
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
        anonymous = [sample["anonymous"] for phase, sample in self._samples if phase == "load"]
        second_half = anonymous[len(anonymous) // 2 :]
        minutes = np.arange(len(second_half)) / _SAMPLES_PER_SECOND / 60
        result: dict[str, float] = {"growth": float(np.polyfit(minutes, second_half, 1)[0])}
        for number, tenth in enumerate(np.array_split(anonymous, 10), 1):
            result[f"tenth_{number}"] = float(np.median(tenth))
        for field in ("anonymous", "private", "pss", "rss"):
            load = [sample[field] for phase, sample in self._samples if phase == "load"]
            end = [sample[field] for phase, sample in self._samples if phase == "end"]
            result[f"{field}_steady"] = statistics.median(load[len(load) // 2 :])
            result[f"{field}_peak"] = max(load)
            result[f"{field}_at_the_end"] = max(end, default=result[f"{field}_steady"])
        return result

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += 1 / _SAMPLES_PER_SECOND
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
                sample = {name.lower(): found[name] for name in ("Rss", "Pss", "Anonymous")}
                private = found["Private_Clean"] + found["Private_Dirty"]
                self._samples.append((phase, {**sample, "private": private}))


def measure(place: Place, load: Load, seconds: float) -> dict[str, float]:
    """Memory of the flusher of one session under a load."""
    session = open_session(place.url)
    until_ready(session)
    memory = Memory(flusher_of_this_process())
    try:
        with _every_second(place.sweep):
            load(session, seconds)
        memory.phase = "end"
        place.end()
        session.close()
    finally:
        result = memory.stop()
    result["rows"] = session.counters().tensors
    result["drops"] = session.counters().dropped_tensors
    return result


@contextmanager
def _every_second(work: Callable[[], object]) -> Iterator[None]:
    """Call `work` once per second within the block, in another thread."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(1):
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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


def values(count: int, pace_seconds: float) -> Load:
    """A load that saves `count` tensors of 4 MB at each step; at most as fast as the ring accepts them."""

    def load(session: Session, seconds: float) -> None:
        tensors = [np.random.default_rng(i).standard_normal(1 << 20, dtype=np.float32) for i in range(count)]
        names = array("I", [session.ring.intern(f"tensor_{i}", 10) for i in range(count)])
        start, step = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            session.ring.capture(tensors, names, b"\3" * count, step, 4, step)
            step += 1
            time.sleep(max(0.0, start + step * pace_seconds - time.perf_counter()))

    return load


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of a run. sweep: removes its large segments. end: called when the load ends."""

    url: str
    sweep: Callable[[], object]
    end: Callable[[], object] = lambda: None


LOADS: dict[str, tuple[Load, Literal["disk", "s3", "slow s3"]]] = {
    "idle": (idle, "disk"),
    "10 tensors": (rows(10, 0.05), "disk"),
    "100 tensors": (rows(100, 0.05), "disk"),
    "1,000 tensors": (rows(1000, 0.05), "disk"),
    "10,000 names": (rows(10_000, 1.0), "disk"),
    "values": (values(8, 0.0), "disk"),
    "s3, 100 tensors": (rows(100, 0.05), "s3"),
    "s3, 1,000 tensors": (rows(1000, 0.05), "s3"),
    "s3, 10,000 names": (rows(10_000, 1.0), "s3"),
    "s3, values": (values(8, 0.0), "s3"),
    "slow s3, 1,000 tensors": (rows(1000, 0.05), "slow s3"),
    "slow s3, values": (values(1, 1.0), "slow s3"),
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
    for _ in range(options.repeats):
        for name in options.loads:
            load, kind = LOADS[name]
            with ExitStack() as stack:
                place = _folder(stack) if kind == "disk" else _bucket(stack, kind == "slow s3")
                measured[name].append(measure(place, load, options.seconds))
            result = {name: _summary(each) for name, each in measured.items() if each}
            arguments = {"seconds": options.seconds, "repeats": options.repeats}
            path = save("flusher_memory", {"method": __doc__, **arguments, **result}, options.out)
    report(result)
    print("saved", path)


def _folder(stack: ExitStack) -> Place:
    """A run on the disk."""
    folder = _temporary_folder(stack)
    return Place(url=str(folder / "run"), sweep=partial(_remove_large_segments, folder))


def _temporary_folder(stack: ExitStack) -> Path:
    """A folder in build/. A flusher that ends late may still write to it when it is removed."""
    folder = tempfile.TemporaryDirectory(dir=ROOT / "build", ignore_cleanup_errors=True)
    return Path(stack.enter_context(folder))


def _remove_large_segments(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        with suppress(FileNotFoundError):
            if path.stat().st_size >= _LARGE_BYTES:
                path.unlink()


def _bucket(stack: ExitStack, slow: bool) -> Place:
    """Start a server. slow: with a proxy that accepts 1 MB/s until the load ends."""
    from benchmarks.s3.servers import running
    from tests.s3.proxy import FaultProxy

    server = stack.enter_context(running("rclone http"))
    os.environ.update({**server.environment, "TDCORE_SPOOL": str(_temporary_folder(stack))})
    sweep = partial(_remove_large_segments, server.folder)
    if not slow:
        return Place(url=server.url("run"), sweep=sweep)
    proxy = stack.enter_context(FaultProxy(server.port))
    proxy.limit(_SLOW_BYTES_PER_S)
    return Place(
        url=server.url("run", endpoint_url=proxy.endpoint), sweep=sweep, end=lambda: proxy.limit(None)
    )


def _summary(each: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    values_of = {key: [one[key] for one in each] for key in each[0]}
    return {
        key: {"median": statistics.median(found), "largest": max(found)} for key, found in values_of.items()
    }


def report(result: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    headings = ("anonymous: steady", "peak", "at the end", "pss: peak", "rss: peak", "growth per minute")
    table = Table("load", *headings, title="MB")
    for name, numbers in result.items():
        keys = ("anonymous_steady", "anonymous_peak", "anonymous_at_the_end", "pss_peak", "rss_peak")
        sizes = [f"{numbers[key]['median']:.0f} ({numbers[key]['largest']:.0f})" for key in keys]
        table.add_row(name, *sizes, f"{numbers['growth']['median']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
