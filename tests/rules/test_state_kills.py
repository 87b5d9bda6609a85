"""A runner that is killed at any moment continues with its state: nothing is lost or repeated."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.rules import resumed_runner
from tests.trial.writer import RunWriter

ROOT = Path(__file__).resolve().parents[2]


def written_in_pieces(place: Path, steps: int) -> Iterator[None]:
    """Write a loss that falls and then stays constant, and a weight, NaN at every tenth step, separately."""
    writer = RunWriter(place)
    for step in range(steps):
        writer.add("loss", np.float64(max(1.0, 20.0 - step)), step=step, kind="loss")
        writer.flush()
        yield
        writer.add("w", np.full(4, np.nan if step % 10 == 9 else step, np.float32), step=step, parts=2)
        writer.flush()
        if step % 9 == 8:
            writer.merge(segments=True)
        yield
    writer.end()
    yield


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_a_runner_killed_at_any_moment_says_what_an_uninterrupted_one_says(tmp_path: Path) -> None:
    place, state, log = tmp_path / "run", tmp_path / "state", tmp_path / "log"
    command = [sys.executable, "-m", "tests.rules.resumed_runner", str(place), str(state), str(log)]
    pieces = written_in_pieces(place, 60)
    next(pieces)
    numbers = random.Random(5)
    # index of the kill within a start
    left = [(moment, numbers.randint(1, 4)) for moment in resumed_runner.STOPS]
    kills, output, settled = 0, "", {0}
    while not output:
        seen: Counter[str] = Counter()
        with subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as runner:
            assert runner.stdin is not None
            assert runner.stdout is not None
            try:
                for line in runner.stdout:
                    moment = line.strip()
                    if moment not in resumed_runner.STOPS:
                        output = line
                        break
                    seen[moment] += 1
                    if left and left[0] == (moment, seen[moment]):
                        del left[0]
                        kills += 1
                        break
                    if moment == "look":
                        next(pieces)
                        settled.add(len(lines_of(log)))
                    runner.stdin.write("\n")
                    runner.stdin.flush()
                else:
                    pytest.fail(f"the runner ended by itself, with {runner.wait()}")
            finally:
                runner.kill()
    once = resumed_runner.main(str(place), None, tmp_path / "once")
    assert json.loads(output) == json.loads(json.dumps(once))
    assert kills == 6
    lines = lines_of(log)
    told, told_once = Counter(lines), Counter(lines_of(tmp_path / "once"))
    assert told.keys() == told_once.keys()
    assert set(told_once.values()) == {1}
    # only a message that was sent just before a kill, and not yet recorded as sent, is sent again
    assert max(told.values()) == 2
    assert all(set(lines[:number]).isdisjoint(lines[number:]) for number in settled)
