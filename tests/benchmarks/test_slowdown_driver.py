"""The slowdown benchmark as a whole: its cells, real workers, output and files."""

from __future__ import annotations

import io
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks.slowdown import driver, machine
from benchmarks.slowdown.cells import INTERVALS, Cell
from benchmarks.slowdown.costs import summarize
from benchmarks.slowdown.plot import draw
from benchmarks.slowdown.report import flat_rows, show, write_parquet
from benchmarks.slowdown.tools import TOOLS
from tests.benchmarks.test_slowdown_costs import result


def chosen(**changes: Any) -> Namespace:
    settings = {
        "models": ["resnet18", "gpt"],
        "tools": list(TOOLS),
        "collections": ["all", "losses", "statistics"],
        "device": "cpu",
        "intervals": [2, 1, 10, 50],
        "quick": False,
        "rounds": 1,
        "busy_share": 1.0,
    }
    return Namespace(**{**settings, **changes})


def summaries(**changes: Any) -> Any:
    return {
        ("mlp", tool, "all", interval, 1): summarize([result(interval=interval, **changes)], 0.1)
        for tool in ("tdcore", "smdebug")
        for interval in (1, 2)
    }


def printed(found: Any, errors: Any = None) -> str:
    console = Console(width=400, record=True, file=io.StringIO())
    show(console, found, errors or {}, None)
    return console.export_text()


def test_tools_take_turns_within_a_collection_and_interval() -> None:
    cells = [one for one in driver.plan(chosen()) if one.threads == 1]
    turns = [
        one.tool for one in cells if (one.model, one.collection, one.interval) == ("resnet18", "losses", 2)
    ]
    assert turns == ["none", "tdcore", "smdebug", "tensorboard", "wandb", "numpy"]


def test_every_collection_that_a_tool_can_record_is_measured_and_no_other() -> None:
    cells = driver.plan(chosen())
    for name, entry in TOOLS.items():
        measured = {one.collection for one in cells if one.tool == name}
        assert measured == set(entry.collections) & {"all", "losses", "statistics"}


def test_a_large_interval_is_measured_to_check_the_estimates() -> None:
    assert any(one.interval == 50 and one.tool == "tdcore" for one in driver.plan(chosen()))


def test_a_peer_without_its_environment_is_reported_with_the_way_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "ROOT", tmp_path)
    (tmp_path / ".venvs").mkdir()
    (tmp_path / ".venvs" / "wandb.failed.txt").write_text("...\nno matching distribution\n")
    missing = driver.missing_tools(["tdcore", "smdebug", "wandb"])
    assert set(missing) == {"smdebug", "wandb"}
    assert "scripts/make_peers.py smdebug" in missing["smdebug"]
    assert "no matching distribution" in missing["wandb"]


@pytest.mark.parametrize(
    ("tool", "collection"),
    [("none", "losses"), ("tdcore", "statistics"), ("tdcore-s3", "statistics"), ("numpy", "weights")],
)
def test_a_worker_trains_by_its_schedule_and_tells_what_it_saw(tool: str, collection: str) -> None:
    cell = Cell(
        model="mlp", tool=tool, collection=collection, interval=2, block=2, pairs=2, warm_up=1, threads=2
    )
    said = driver.run_cell(cell)
    assert "error" not in said, said
    assert [len(block["saved"]) for block in said["blocks"]] == [1, 0, 0, 1]
    assert all(seconds > 0 for block in said["blocks"] for seconds in block["times_s"])
    assert said["tool"].get("drops", 0) == 0
    assert (said["files"] > 0) == (tool != "none")
    if tool.startswith("tdcore"):
        assert said["tool"]["tensors_per_save"] >= said["tensors"]


def test_a_worker_that_fails_is_an_error_with_its_last_line_and_not_a_number() -> None:
    said = driver.run_cell(
        Cell(model="no such model", tool="none", collection="losses", interval=2, block=2, pairs=1)
    )
    assert "no such model" in said["error"]


def test_estimated_intervals_are_marked_as_such_in_the_rows() -> None:
    rows = [row for row in flat_rows(summaries()) if row["tool"] == "tdcore"]
    assert {row["interval"] for row in rows if row["measured"]} == {1, 2}
    assert {row["interval"] for row in rows if not row["measured"]} == set(INTERVALS) - {1, 2}


def test_the_table_says_busy_and_no_number_when_others_had_the_machine() -> None:
    text = printed(summaries(others=0.9))
    assert "busy" in text
    assert "1.1" not in text


def test_the_table_marks_estimates_and_gives_intervals() -> None:
    text = printed(summaries())
    assert "~1.02" in text
    assert "1.100 [1.10, 1.10]" in text


def test_failures_and_drops_are_shown() -> None:
    text = printed(summaries(tool={"drops": 7}), {("mlp", "wandb", "losses", 2, 1): "no memory"})
    assert "failed: mlp wandb losses 2 1: no memory" in text
    assert "7 tensors were not recorded" in text


def test_rows_are_written_as_parquet(tmp_path: Path) -> None:
    rows = flat_rows(summaries())
    write_parquet(rows, tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == len(rows)


def test_the_curve_is_drawn_as_png_and_svg(tmp_path: Path) -> None:
    draw(flat_rows(summaries()), tmp_path / "curve")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "curve.svg").read_bytes()


def test_a_panel_without_any_line_is_drawn_all_the_same(tmp_path: Path) -> None:
    rows = [row for row in flat_rows(summaries()) if row["tool"] == "smdebug"]
    draw(rows, tmp_path / "curve")  # the lower panel has no values of tdcore
    assert (tmp_path / "curve.png").exists()


def test_settle_waits_for_a_descendant_that_still_works() -> None:
    busy = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as child:
        machine.settle()
        assert child.poll() == 0


def test_the_cpu_time_of_a_child_is_the_trees_and_not_the_others() -> None:
    before = machine.usage()
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    assert machine.usage().tree > before.tree
    assert 0 <= machine.share_of_others(before, machine.usage()) <= 1.5
