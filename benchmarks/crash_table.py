"""Data after a crash: kill trainer and flusher at random moments, many times, and check every row.

    python -m benchmarks.crash_table [--trials 20] [--seed 0]

The trainer (tests/trainers/quadratic.py) captures 6 tensors at every step and notes each capture call that
has returned. After the kill, pyarrow alone reads the run. Every noted step must exist completely and once.
Every payload must have the correct checksum and the same bits as a repeated training. The script writes
docs/crashes.md and a file in benchmarks/results/.
"""

# ruff: noqa: E501, ISC004 -- lines of a Markdown table

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, describe, save
from tests.trainers.checks import Trainer, check_run, end_of, read_index
from tests.trainers.quadratic import NAMES
from tests.waiting import wait_until

LONGEST_SECONDS = 4.0  # a trainer is killed at a random moment of its first seconds
KILLS_OF_THE_FLUSHER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTrial:
    """One SIGKILL of a trainer. noted_steps: captures that had returned. rows: rows checked afterwards."""

    trial: int
    killed_after_seconds: float
    noted_steps: int
    pending_at_kill: int
    rows: int
    payload_bytes: int
    finished_after_seconds: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlusherTrial:
    """One run whose flusher was killed several times while the training continued."""

    kills: int
    steps: int
    rows: int
    payload_bytes: int
    verdict: str


def kill_trainer(trial: int, moment: float) -> TrainerTrial:
    with tempfile.TemporaryDirectory(prefix="tdcore-crash-", dir=ROOT / "build") as folder:
        trainer = Trainer(Path(folder), steps=1_000_000, pause=0.005, ring_bytes=1 << 26)
        try:
            trainer.wait_for_steps(1)  # the imports must not be part of the measurement
            time.sleep(moment)
            trainer.process.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            trainer.wait()
            written = len(read_steps(trainer))
            trainer.wait_for_flushers()
            finished = time.monotonic() - killed
            noted = trainer.captured()
            rows, verdict = verify(trainer, noted)
            payload = payload_bytes(trainer)
        finally:
            trainer.stop()
    return TrainerTrial(
        trial=trial,
        killed_after_seconds=round(moment, 3),
        noted_steps=len(noted),
        pending_at_kill=max(0, len(noted) - written),
        rows=rows,
        payload_bytes=payload,
        finished_after_seconds=round(finished, 2),
        verdict=verdict,
    )


def kill_flusher(kills: int, draw: random.Random) -> FlusherTrial:
    with tempfile.TemporaryDirectory(prefix="tdcore-crash-", dir=ROOT / "build") as folder:
        trainer = Trainer(Path(folder), steps=1_000_000, pause=0.02, ring_bytes=1 << 26)
        killed: set[int] = set()
        try:
            for _ in range(kills):
                wait_until(
                    lambda: any(each.pid not in killed for each in trainer.flushers()), "a flusher was there"
                )
                # Long enough to write rows: a flusher that has written no rows is not restarted, by design.
                trainer.wait_for_steps(len(trainer.captured()) + 1)
                time.sleep(1.0 + draw.uniform(0.0, 1.5))
                for flusher in trainer.flushers():
                    if flusher.pid not in killed:
                        flusher.send_signal(signal.SIGKILL)
                        killed.add(flusher.pid)
            trainer.process.send_signal(signal.SIGINT)
            trainer.wait()
            trainer.wait_for_flushers()
            noted = trainer.captured()
            rows, verdict = verify(trainer, noted)
            if verdict == "ok" and not end_of(trainer.out)["clean"]:
                verdict = "the end is not clean"
            payload = payload_bytes(trainer)
        finally:
            trainer.stop()
    return FlusherTrial(
        kills=len(killed), steps=len(noted), rows=rows, payload_bytes=payload, verdict=verdict
    )


def verify(trainer: Trainer, noted: list[tuple[int, int]]) -> tuple[int, str]:
    try:
        return check_run(trainer.out, noted), "ok"
    except (AssertionError, OSError, ValueError, KeyError) as error:
        return 0, f"{type(error).__name__}: {error}"


def read_steps(trainer: Trainer) -> set[int]:
    """Steps that are visible at present. Files may disappear during the read, when they are merged."""
    for _ in range(50):
        with contextlib.suppress(AssertionError, OSError):
            return set(read_index(trainer.out)["step"].to_pylist())
    raise RuntimeError(f"the index of {trainer.out} could not be read 50 times in a row")


def payload_bytes(trainer: Trainer) -> int:
    return sum(size or 0 for size in read_index(trainer.out)["nbytes"].to_pylist())


def markdown(trials: list[TrainerTrial], flusher: FlusherTrial, environment: dict[str, Any]) -> str:
    kept = sum(trial.verdict == "ok" for trial in trials)
    lines = [
        "# Crashes",
        "",
        "Written by `python -m benchmarks.crash_table`; do not edit by hand.",
        "",
        "The trainer captures 6 tensors (about 350 KB) at every step and notes each capture call that has returned. Afterwards",
        "pyarrow alone reads the run: every noted step must exist completely and once, with correct checksums and the same bits",
        "as a repeated training.",
        "",
        f"Commit {environment['commit']}, {environment['time']}, {environment['cpu']}, {environment['cores']} cores, "
        f"kernel {environment['kernel']}, Python {environment['python']}.",
        "",
        f"## SIGKILL of the trainer at {len(trials)} random moments: {kept} of {len(trials)} runs complete",
        "",
        '"Pending" are the captured steps that were not yet on disk when the trainer died. The flusher wrote these steps',
        "afterwards.",
        "",
        "| trial | killed after s | steps captured | of these pending | rows checked | payload MB checked | flusher gone after s | verdict |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {trial.trial} | {trial.killed_after_seconds:.2f} | {trial.noted_steps} | {trial.pending_at_kill} | {trial.rows} "
        f"| {trial.payload_bytes / 1e6:.1f} | {trial.finished_after_seconds:.2f} | {trial.verdict} |"
        for trial in trials
    ]
    lines += [
        "",
        f"## SIGKILL of the flusher, {flusher.kills} times during one run",
        "",
        "| kills | steps captured | rows checked | rows expected | payload MB checked | verdict |",
        "|---:|---:|---:|---:|---:|---|",
        f"| {flusher.kills} | {flusher.steps} | {flusher.rows} | {flusher.steps * len(NAMES)} "
        f"| {flusher.payload_bytes / 1e6:.1f} | {flusher.verdict} |",
        "",
        "## Not covered",
        "- A container ends with its first process. If this process is the trainer, the flusher ends too, and pending steps are lost.",
        "  The same holds for an out-of-memory kill of a whole control group and for schedulers that kill whole jobs. `close()`",
        "  and a normal exit wait for the flusher.",
        "- If a capture call had not returned when the trainer died, its record is complete or absent.",
        "- A power failure: files are durable before they become visible, but pending steps in memory are lost.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--kills", type=int, default=KILLS_OF_THE_FLUSHER)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    draw = random.Random(options.seed)
    trials = []
    for trial in range(1, options.trials + 1):
        trials.append(kill_trainer(trial, draw.uniform(0.0, LONGEST_SECONDS)))
        print(trials[-1], flush=True)
    flusher = kill_flusher(options.kills, draw)
    print(flusher, flush=True)
    path = save(
        "crash_table",
        {"seed": options.seed, "trainer": [asdict(each) for each in trials], "flusher": asdict(flusher)},
    )
    (ROOT / "docs" / "crashes.md").write_text(markdown(trials, flusher, describe()))
    print(f"wrote docs/crashes.md and {path.relative_to(ROOT)}")
    if {"ok"} != {flusher.verdict, *(trial.verdict for trial in trials)}:
        raise SystemExit("something was lost, doubled or damaged")


if __name__ == "__main__":
    main()
