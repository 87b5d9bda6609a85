"""A run read by another process while it is written and merged: nothing twice, nothing missing, no lock."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np

from tdcore.sinks import LocalSink
from tdcore.trial import Index, create_trial

STEPS = 30
REPOSITORY = Path(__file__).resolve().parents[2]


def write_in_another_process(root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.trial.live_writer", str(root), str(STEPS)], cwd=REPOSITORY
    )


def test_every_row_is_polled_once_while_files_are_merged(tmp_path: Path) -> None:
    writer = write_in_another_process(tmp_path)
    index = Index(LocalSink(str(tmp_path)), tmp_path)
    seen: list[tuple[int, str, int]] = []
    last_look = False
    while True:
        table = index.poll(["step", "name", "part"])
        seen += [(row["step"], row["name"], row["part"]) for row in table.to_pylist()]
        if last_look:
            break
        last_look = writer.poll() is not None
    assert writer.returncode == 0
    expected = [(step, name, part) for step in range(STEPS) for name, part in (("x", 0), ("y", 0), ("y", 1))]
    assert seen == expected
    assert index.holes == []


def test_values_are_right_while_segments_are_merged_away(tmp_path: Path) -> None:
    writer = write_in_another_process(tmp_path)
    trial = create_trial(tmp_path, wait=timedelta(seconds=60))
    for step in range(STEPS):
        trial.wait_for_steps([step], timeout=timedelta(seconds=60), interval=timedelta(0))
        for back in (step, step // 2):
            assert trial.tensor("x").value(back).tolist() == [back] * 4
            assert trial.tensor("y").value(back).tolist() == (np.arange(6.0) + back).tolist()
    assert writer.wait() == 0
    assert trial.steps() == list(range(STEPS))
    assert trial.stats(["y"]).column("count").to_pylist() == [6] * STEPS
