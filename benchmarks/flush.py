"""From ring to disk: rate and CPU seconds per GB of the flusher process, and of plain writes of the same
bytes, and cost of the flusher while few or no tensors are saved.

Rate: the trainer side captures 4 MB tensors as fast as the ring accepts them (policy block), so the flusher
is the bottleneck. In alternation, 64 MB files of the same kind of bytes are written and synced by os.write
through the page cache, by os.write with O_DIRECT, and by `dd oflag=direct`. CPU seconds per GB are those of
the whole process, minus those of a session that saves nothing (mostly the start of Python). The CPU seconds
of this session are reported separately.

Rows: statistics of 200 tensors at each step, without values. "At once" writes index files as large as the
ring allows. "Paced" saves ten steps per second, so there is a flush and a file each second, and files are
merged.

Idle: a session that has saved something and then waits; wake-ups are voluntary context switches of all
threads of the flusher.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, add_out, save
from tdcore.session import RingConfig, Session

RING_BYTES = 512 << 20
_FILE_BYTES = 64 << 20
_ROWS_PER_STEP = 200


def cpu_seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def open_session(folder: Path) -> Session:
    return Session(
        folder,
        configuration={},
        framework="none",
        framework_version="0",
        ring=RingConfig(ring_bytes=RING_BYTES),
    )


# The flusher process, from outside. ----------------------------------------------------------------


def flusher_of_this_process(seconds: float = 10) -> Path:
    """The folder of the flusher of this process under /proc. On a busy machine the flusher appears late.

    Raises LookupError if there is no flusher after some seconds.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                if b"tdcore.flusher" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return Path(f"/proc/{pid}")
        time.sleep(0.01)
    raise LookupError("this process has no flusher")


def memory_mb(process: Path) -> float:
    """Private memory in MB, without the ring, which is shared, and without mapped files."""
    status = (process / "status").read_text()
    return float(status.partition("RssAnon:")[2].split()[0]) / 1024


def process_cpu_seconds(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def precise_cpu_seconds(process: Path) -> float:
    """CPU seconds of all threads, from the scheduler, because the clock ticks of `stat` are too coarse."""
    try:
        return sum(int(p.read_text().split()[0]) for p in process.glob("task/*/schedstat")) / 1e9
    except (OSError, ValueError):
        return process_cpu_seconds(process)


def wakeups(process: Path) -> int:
    """Voluntary context switches of all threads so far."""
    texts = [path.read_text() for path in process.glob("task/*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


@contextmanager
def most_memory(process: Path, result: dict[str, float]) -> Iterator[None]:
    """Read the memory of the process 50 times per second, and store the maximum as "peak_mb"."""
    over = threading.Event()
    result["peak_mb"] = 0.0

    def look() -> None:
        with suppress(OSError, IndexError, ValueError):  # the process has ended
            while not over.wait(0.02):
                result["peak_mb"] = max(result["peak_mb"], memory_mb(process))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Measurements. --------------------------------------------------------------------------------


def start_alone(folder: Path) -> dict[str, float]:
    """A session that saves one small tensor: the cost of starting and ending a flusher."""
    before, start = cpu_seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
    session = open_session(folder)
    session.ring.capture([np.zeros(1)], array("I", [session.ring.intern("x", 10)]), bytes([3]), 0, 4, 0)
    session.close()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_s": cpu_seconds(resource.RUSAGE_CHILDREN) - before,
    }


def through_the_flusher(folder: Path, gigabytes: float) -> dict[str, float]:
    tensors = [np.random.default_rng(i).standard_normal(1 << 20, dtype=np.float32) for i in range(8)]
    batch_bytes = sum(tensor.nbytes for tensor in tensors)
    rounds = max(1, int(gigabytes * 1e9 / batch_bytes))
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    result: dict[str, float] = {}
    session = open_session(folder)
    names = array("I", [session.ring.intern(f"tensor_{i}", 10) for i in range(len(tensors))])
    with most_memory(flusher_of_this_process(), result):
        start = time.perf_counter()
        for step in range(rounds):
            session.ring.capture(tensors, names, bytes([3]) * len(tensors), step, 4, step)
        session.close()
        seconds = time.perf_counter() - start
    result |= _rate(rounds * batch_bytes, seconds, cpu_seconds(resource.RUSAGE_CHILDREN) - before)
    result["files"] = sum(path.is_file() for path in folder.rglob("*"))
    result["drops"] = session.counters().dropped_tensors
    return result


def plain_writes(folder: Path, gigabytes: float, direct: bool) -> dict[str, float]:
    """Write and sync 64 MB files one after the other, by os.write."""
    block = mmap.mmap(-1, _FILE_BYTES)  # page-aligned
    block.write(np.random.default_rng(0).bytes(_FILE_BYTES))
    rounds = max(1, int(gigabytes * 1e9 / len(block)))
    flags = os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0)
    folder.mkdir(parents=True)
    before, start = cpu_seconds(resource.RUSAGE_SELF), time.perf_counter()
    for i in range(rounds):
        fd = os.open(folder / f"plain{i}", flags, 0o644)
        os.write(fd, block)
        os.fdatasync(fd)
        os.close(fd)
    seconds = time.perf_counter() - start
    return _rate(rounds * len(block), seconds, cpu_seconds(resource.RUSAGE_SELF) - before)


def dd_writes(folder: Path, gigabytes: float) -> dict[str, float]:
    """Write the same files by dd, with one process per file."""
    source = os.memfd_create("block")
    os.write(source, np.random.default_rng(0).bytes(_FILE_BYTES))
    rounds = max(1, int(gigabytes * 1e9 / _FILE_BYTES))
    folder.mkdir(parents=True)
    before, start = cpu_seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
    for i in range(rounds):
        command = ["dd", f"if=/proc/{os.getpid()}/fd/{source}", f"of={folder}/dd{i}", f"bs={_FILE_BYTES}"]
        subprocess.run([*command, "oflag=direct", "conv=fdatasync", "status=none"], check=True)
    seconds = time.perf_counter() - start
    os.close(source)
    return _rate(rounds * _FILE_BYTES, seconds, cpu_seconds(resource.RUSAGE_CHILDREN) - before)


def _rate(moved: int, seconds: float, cpu: float) -> dict[str, float]:
    return {
        "bytes": moved,
        "gb_per_s": moved / seconds / 1e9,
        "cpu_s": cpu,
        "cpu_s_per_gb": cpu / (moved / 1e9),
    }


def rows_through_the_flusher(folder: Path, steps: int, pace_seconds: float) -> dict[str, float]:
    """Save statistics of 200 small tensors at each step. pace_seconds: time from one step to the next."""
    numbers = np.random.default_rng(0).standard_normal(1 << 18, dtype=np.float32)
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    session = open_session(folder)
    ring = session.ring
    names = array("I", [ring.intern(f"tensor_{i}", 3) for i in range(_ROWS_PER_STEP)])
    start = time.perf_counter()
    for step in range(steps):
        block = numbers[step * 977 % 200_000 :][: _ROWS_PER_STEP * 256] * np.float32(1.5 + np.sin(step))
        ring.capture(
            list(block.reshape(_ROWS_PER_STEP, 256)), names, bytes([2]) * _ROWS_PER_STEP, step, 1, step
        )
        if pace_seconds:
            time.sleep(max(0.0, start + (step + 1) * pace_seconds - time.perf_counter()))
    session.close()
    files = [path for path in (folder / "index").rglob("*") if path.is_file()]
    rows = steps * _ROWS_PER_STEP
    return {
        "rows": rows,
        "seconds": time.perf_counter() - start,
        "cpu_s": cpu_seconds(resource.RUSAGE_CHILDREN) - before,
        "index_files": len(files),
        "bytes_per_row": sum(path.stat().st_size for path in files) / rows,
        "drops": session.counters().dropped_tensors,
    }


def idle(folder: Path, seconds: float) -> dict[str, float]:
    """Wake-ups and CPU time of the flusher while the training saves no tensors."""
    session = open_session(folder)
    ring = session.ring
    names = array("I", [ring.intern("x", 10)])
    for step in range(3):  # several files, so that the flusher also searches for files to merge
        ring.capture([np.zeros(1000)], names, bytes([3]), step, 4, step)
        time.sleep(1.2)
    process = flusher_of_this_process()
    time.sleep(4.0)  # work after the last flush (a first merge, its imports, deletions) has ended
    switches, cpu, start = wakeups(process), precise_cpu_seconds(process), time.perf_counter()
    time.sleep(seconds)
    past = time.perf_counter() - start
    result = {
        "wakeups_per_s": (wakeups(process) - switches) / past,
        "cpu_percent": (precise_cpu_seconds(process) - cpu) / past * 100,
        "memory_mb": memory_mb(process),
        "threads": len(list(process.glob("task/*"))),
        "nice": int((process / "stat").read_text().rpartition(")")[2].split()[16]),
    }
    session.close()
    return result


# All measurements. ---------------------------------------------------------------------------------------


def in_turn(
    measures: dict[str, Callable[[Path], dict[str, float]]], repeats: int
) -> dict[str, dict[str, Any]]:
    """Run the measurements in turn, each in its own folder. Returns median and quartiles of every number."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
                rounds[name].append(measure(Path(folder) / "run"))
    return {
        name: {key: _spread([one[key] for one in each]) for key in each[0]} for name, each in rounds.items()
    }


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {"median": middle, "q1": low, "q3": high}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--rows", type=int, default=200_000, help="number of steps of the run that is written at once"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds for the paced run and for the idle session"
    )
    add_out(parser)
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    size, seconds = options.gigabytes, options.seconds
    rates = in_turn(
        {
            "start and end alone": start_alone,
            "flusher": lambda folder: through_the_flusher(folder, size),
            "plain buffered writes": lambda folder: plain_writes(folder, size, direct=False),
            "plain direct writes": lambda folder: plain_writes(folder, size, direct=True),
            "dd oflag=direct": lambda folder: dd_writes(folder, size),
        },
        options.repeats,
    )
    steps = max(1, options.rows // _ROWS_PER_STEP)
    rows = in_turn(
        {
            "rows at once": lambda folder: rows_through_the_flusher(folder, steps, 0.0),
            "rows, paced": lambda folder: rows_through_the_flusher(folder, int(seconds * 10), 0.1),
            "idle": lambda folder: idle(folder, seconds),
        },
        1 if seconds >= 5 else options.repeats,
    )
    start = rates["start and end alone"]["cpu_s"]["median"]
    flusher = rates["flusher"]
    flusher["cpu_s_per_gb_without_start"] = {
        key: (value - start) / (flusher["bytes"]["median"] / 1e9) for key, value in flusher["cpu_s"].items()
    }
    for name in ("rows at once", "rows, paced"):
        each = rows[name]
        each["cpu_s_per_1000_rows"] = {
            key: max(0.0, value - start) / each["rows"]["median"] * 1000
            for key, value in each["cpu_s"].items()
        }
    result = rates | rows
    report(result)
    print("saved", save("flush", {"method": __doc__, **result}, options.out))


def report(result: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "number", "median", "quartiles", title="flusher")
    for name, numbers in result.items():
        for key, spread in numbers.items():
            quartiles = f"{spread['q1']:.4g} .. {spread['q3']:.4g}" if spread["q1"] != spread["q3"] else ""
            table.add_row(name, key, f"{spread['median']:.5g}", quartiles)
        table.add_section()
    Console().print(table)


if __name__ == "__main__":
    main()
