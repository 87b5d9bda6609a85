"""Runs generated loops under a hook and compares the recorded rows with the reference.

Threads: the training thread. Every call makes its own run in the given folder.
"""

from __future__ import annotations

import gc
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it at their first step: its objects are frozen by summarize()

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.loops.compare import Result, compare_rows, compare_step_times, compare_training
from tests.loops.generator import Loop, random_loop, simpler
from tests.loops.interpreter import execute

__all__ = ["Summary", "check_loop", "make_hook", "many", "shrunk", "summarize"]

_COLLECTIONS = ("weights", "biases", "gradients", "inputs", "outputs", "losses")
_OTHER_PARAMETERS = r"^[A-Z]\w*_(gain|shift)$"  # names that no built-in collection of parameters matches
_SHOWN = 12  # lines per failing loop


def make_hook(loop: Loop, folder: Path, **options: Any) -> Hook:
    """Create a hook that records everything that the reference expects, at the loop's save intervals."""
    train = td.SaveConfigMode(save_interval=loop.interval, start_step=loop.start)
    other = td.SaveConfigMode(save_interval=loop.eval_interval)
    modes = td.modes
    if loop.steps == "forward":
        options["clock"] = "forward"
    return Hook(
        folder,
        save_config={modes.TRAIN: train, modes.GLOBAL: train, modes.EVAL: other, modes.PREDICT: other},
        include_collections=_COLLECTIONS,
        include_regex=_OTHER_PARAMETERS,
        ring=td.RingConfig(ring_bytes=1 << 20, slots=1 << 10, names_bytes=1 << 18),
        flusher="thread",
        close_timeout=timedelta(seconds=20),
        **options,
    )


def check_loop(loop: Loop, folder: Path) -> Result:
    """Run the loop with a hook and without, and compare rows, losses and weights.

    Args:
        loop: The loop to run.
        folder: Folder of the run; its content is removed before and afterwards.
    """
    shutil.rmtree(folder, ignore_errors=True)
    torch.set_num_threads(1)
    plain = execute(loop)
    try:
        hook = make_hook(loop, folder)
    except TypeError as error:
        return Result([f"missing: the hook has no such option: {error}"])
    try:
        outcome = execute(loop, hook)
        hook.close()
        result = compare_rows(folder, outcome.reference.rows)
        result.differences += [f"training: the hook has a fault: {fault}" for fault in hook._faults.items()]
        result.differences += compare_training(outcome, plain)
        result.differences += compare_step_times(folder, hook.mode_steps)
        if hook.counters().dropped_tensors:
            result.differences.append(f"training: the hook has dropped rows: {hook.counters()}")
    finally:
        hook.close()
        shutil.rmtree(folder, ignore_errors=True)
    return result


@dataclass
class Summary:
    """Totals of many loops.

    failing: the text of each loop that has differences, with some of the differences.
    """

    loops: int = 0
    rows: int = 0
    wrong: int = 0
    absent: int = 0
    failing: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, text: str, result: Result) -> None:
        """Count one loop. text: the text that reproduces it."""
        self.loops += 1
        self.rows += result.rows
        absent = result.count("absent")
        self.absent += absent
        self.wrong += len(result.differences) - absent
        if result.differences:
            self.failing.append((text, result.differences))

    def join(self, other: Summary) -> None:
        """Add the totals of another process."""
        self.loops += other.loops
        self.rows += other.rows
        self.wrong += other.wrong
        self.absent += other.absent
        self.failing += other.failing

    @property
    def line(self) -> str:
        """The totals as one line."""
        return (
            f"{self.loops} loops, {self.rows} rows compared, {self.wrong} wrong, "
            f"{self.absent} absent without reason"
        )

    def report(self, *, details: int = _SHOWN) -> str:
        """Return the totals, then each failing loop in one line with at most `details` differences."""
        lines = [self.line]
        for text, differences in self.failing:
            one = text.startswith("{")
            lines.append(f"python -m tests.loops --loop '{text}'" if one else f"python -m tests.loops {text}")
            lines += [f"    {line}" for line in differences[:details]]
            if 0 < details < len(differences):
                lines.append(f"    and {len(differences) - details} more")
        return "\n".join(lines)


def summarize(loops: Iterable[Loop], folder: Path) -> Summary:
    """Check the loops one after the other, in one folder. A loop that raises is a failing loop."""
    summary = Summary()
    log = logging.getLogger("tdcore")
    level = log.level
    log.setLevel(logging.CRITICAL)  # many loops cause warnings of the hook
    gc.collect()
    gc.freeze()  # the hook searches all objects for optimizers; objects of imported modules are excluded
    for number, loop in enumerate(loops):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = check_loop(loop, folder / f"run-{number % 2}")
        except Exception as error:
            result = Result([f"training: the loop raised {type(error).__name__}: {error}"])
        summary.add(loop.text(), result)
    log.setLevel(level)
    return summary


def many(numbers: Sequence[int], seed: int, processes: int) -> Summary:
    """Check loops of a sequence in several processes, and print the totals so far.

    Args:
        numbers: Numbers of the loops.
        seed: Seed of the sequence.
        processes: Number of processes; with 1 the loops run in this process.
    """
    if processes == 1:
        return _part(seed, numbers)
    size = max(1, min(100, len(numbers) // processes))
    parts = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    summary = Summary()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in pool.map(_part, [seed] * len(parts), parts):
            summary.join(done)
            print(f"  {summary.line}", file=sys.stderr, flush=True)
    return summary


def _part(seed: int, numbers: Sequence[int]) -> Summary:
    """Check loops of a sequence, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        return summarize((random_loop(seed, number) for number in numbers), Path(folder))


def shrunk(loop: Loop, folder: Path) -> Loop:
    """Return a simpler loop that still has differences, found by resetting one field at a time."""
    while True:
        for candidate in simpler(loop):
            if len(candidate.text()) < len(loop.text()) and summarize([candidate], folder).failing:
                loop = candidate
                break
        else:
            return loop
