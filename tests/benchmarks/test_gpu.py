"""The GPU benchmark: its plan, and a small run on the simulated device."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.plan import LEAD_IN, Cell, cells
from benchmarks.gpu.worker import schedule

ROOT = Path(__file__).resolve().parents[2]


def cell(**changes: int) -> Cell:
    return Cell(**{"tool": "tdcore", "collection": "all", "interval": 10, "pairs": 3, "block": 20, **changes})  # type: ignore[arg-type]


def test_blocks_with_saving_and_without_take_turns_and_every_other_pair_is_turned_around() -> None:
    blocks, _ = schedule([cell()])
    assert [saving for _, saving, _ in blocks] == [True, False, False, True, True, False]


def test_saved_steps_lie_in_the_blocks_with_saving_alone() -> None:
    group = [cell(), cell(interval=1, block=3, pairs=2)]
    blocks, saved = schedule(group)
    expected = [0]
    for each, saving, start in blocks:
        expected += range(start, start + each.block, each.interval) if saving else ()
    assert saved == expected
    assert len(saved) == 1 + 3 * 2 + 2 * 3


def test_blocks_do_not_overlap_and_leave_room_for_their_lead_in() -> None:
    blocks, _ = schedule([cell(), cell(interval=1, block=3)])
    for (before, _, start), (_, _, following) in itertools.pairwise(blocks):
        assert following == start + before.block + LEAD_IN


def test_a_block_holds_whole_intervals() -> None:
    with pytest.raises(ValueError, match="multiple of interval, got 25 and 10"):
        cell(block=25)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_every_tool_is_measured_on_the_same_collection(mode: str) -> None:
    planned = cells(mode, 3, quick=False)
    assert len({each.collection for each in planned if each.values}) == 1
    assert {each.interval for each in planned if each.tool == "tdcore" and each.values} == {1, 10, 50}
    assert {each.tool for each in planned} == {"none", "tdcore", "cpu", "non_blocking"}


def test_a_run_on_the_simulated_device_saves_its_rows_and_drops_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "gpu", "--device", "simulated", "--models", "tiny"]
    command += ["--modes", "eager", "--pairs", "1", "--quick", "--ring-bytes", str(1 << 26)]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text())
    assert result["device"] == "simulated: no measurement"
    assert not result["failed"]
    assert {row["tool"] for row in result["rows"]} == {"none", "tdcore", "cpu", "non_blocking"}
    for row in result["rows"]:
        if row["tool"] == "tdcore":
            assert row["tool_says"]["drops"] == {}
            assert row["tool_says"]["devices"][0]["early_commits"] == 0


def test_without_a_cuda_device_it_says_what_can_be_done() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gpu"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 1
    assert "--device simulated" in done.stderr
