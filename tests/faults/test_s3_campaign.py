"""A short S3 fault campaign for CI. By hand: python -m tests.faults.s3 --scenarios 1000."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.scenario import draw
from tests.faults.weather import CODES, COUNTED
from tests.s3.fault import KINDS
from tests.s3.servers import ROOT

# The 40 of 1,000 scenarios with the most pairs of values have 88 % of all pairs; the first 102 have 82 %.
SCENARIOS, AMONG = 40, 1000
SECONDS = 1500  # on a busy machine; a scenario takes 2 to 3 s of CPU time, and often waits


def test_a_scenario_is_the_same_each_time_it_is_drawn() -> None:
    assert [draw(7, number) for number in range(50)] == [draw(7, number) for number in range(50)]
    assert len({draw(7, number).specs for number in range(50)}) > 25


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_whatever_happens_every_committed_tensor_is_in_the_bucket_once(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.faults.s3", "--scenarios", str(SCENARIOS)]
    command += ["--among", str(AMONG), "--jobs", "3", "--json", str(report)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
    results = json.loads(report.read_text())
    assert len(results) == SCENARIOS
    assert sum(result["processes"] for result in results) * 6 >= SCENARIOS
    struck = {kind for result in results for kind in result["struck"]}
    assert struck == {*CODES, *COUNTED, *KINDS, "latency", "down"}, "a kind of fault has never struck"
    for what in ("restarts", "retries", "spooled_objects", "uploaded", "dropped"):
        assert sum(result[what] for result in results) > 0, f"no scenario had {what}"
