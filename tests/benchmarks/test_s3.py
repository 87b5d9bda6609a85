"""The S3 benchmark: its computations and output, and small measurements on real servers."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from benchmarks.s3 import driver, put, questions
from benchmarks.s3.peers import PEERS, Peer
from benchmarks.s3.questions import FULL, QUICK, Group, groups
from benchmarks.s3.report import LAYOUTS, Column, numbers, show, spread, table
from benchmarks.s3.servers import SERVERS
from benchmarks.slowdown import machine


def measured(group: Group) -> dict[str, Any]:
    """Run one round; fail if a member of the round failed."""
    result: dict[str, Any] = {"missing": {}, "errors": [], "groups": []}
    quiet = Console(file=io.StringIO())
    found = driver.measure_group(group, QUICK, 1, result, quiet)
    assert result["errors"] == []
    return found


def printed(result: dict[str, Any]) -> str:
    console = Console(width=400, record=True, file=io.StringIO())
    show(console, result)
    return console.export_text()


def answer(number: int, **values: float) -> dict[str, float]:
    return {"round": number, **values}


def test_every_group_has_a_server_and_a_layout() -> None:
    found = list(groups(list(questions.QUESTIONS), FULL))
    assert {group.question for group in found} == set(LAYOUTS)
    assert {group.server for group in found} <= set(SERVERS)


def test_every_member_that_another_is_a_multiple_of_is_measured() -> None:
    for group in groups(list(questions.QUESTIONS), FULL):
        others = {column.of for column in LAYOUTS[group.question].columns if column.of}
        assert others <= set(group.members)


def test_a_client_that_is_not_installed_is_not_measured_but_told_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PEERS, "s3fs", dataclasses.replace(PEERS["s3fs"], needs="no_such_module"))
    (group,) = groups(["put"], QUICK)
    assert "s3fs" not in group.members
    assert questions.missing_peers() == {"s3fs": "no_such_module is not installed: pip install s3fs"}
    assert "pip install s3fs" in printed({"groups": [], "errors": [], "missing": questions.missing_peers()})


def test_a_spread_holds_the_median_and_the_quartiles() -> None:
    one = spread([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (one.q1, one.median, one.q3) == (2.0, 3.0, 4.0)
    assert one.text(".1f") == "3.0 [2.0, 4.0]"
    assert spread([2.0]).text(".1f") == "2.0"


def test_ratios_are_taken_within_a_round_so_that_a_slow_round_does_no_harm() -> None:
    rounds = {
        "a": [answer(0, seconds=2.0), answer(1, seconds=20.0), answer(2, seconds=2.0)],
        "b": [answer(0, seconds=1.0), answer(1, seconds=10.0)],  # the third round of this engine failed
    }
    ratio = numbers(rounds, "a", Column(title="", key="seconds", of="b"))
    assert ratio is not None
    assert (ratio.q1, ratio.median, ratio.q3) == (2.0, 2.0, 2.0)


def test_a_number_that_nobody_has_is_left_out_of_the_table() -> None:
    group = {"question": "open", "name": "x", "members": {"pyarrow": [answer(0, open_s=1.0)]}}
    assert [column.header for column in table(group).columns] == ["", "open s", "of pyarrow"]


def test_what_an_empty_session_takes_is_taken_off_the_rates() -> None:
    full = {"bytes": 2e9, "seconds": 5.0, "cpu_s": 3.0, "upload_cpu_s": 2.0, "server_cpu_s": 4.0}
    empty = {"bytes": 0.0, "seconds": 1.0, "cpu_s": 1.0, "upload_cpu_s": 0.5, "server_cpu_s": 0.0}
    said = {
        "tdcore, obstore": [full | {"round": 0}],
        "tdcore, obstore, alone": [empty | {"round": 0}],
        "s3fs": [full | {"round": 0}],
    }
    driver.take_off_alone(said)
    (ours,), (alone,), (theirs,) = said.values()
    assert (ours["cpu_s_per_gb"], ours["upload_cpu_s_per_gb"], ours["mb_per_s"]) == (1.0, 0.75, 500.0)
    assert (theirs["cpu_s_per_gb"], theirs["mb_per_s"], ours["mb_per_s_with_end"]) == (1.5, 400.0, 400.0)
    assert "mb_per_s" not in alone


def test_drops_and_failures_are_shown() -> None:
    group = {"question": "stall", "name": "x", "members": {"folder": [answer(0, drops=3)]}}
    text = printed({"groups": [group], "errors": ["put: it broke"], "missing": {}})
    assert "3 tensors were not recorded" in text
    assert "failed: put: it broke" in text


def test_a_worker_that_fails_is_an_error_with_its_last_line() -> None:
    said = driver.work_off("put", {"no such": "job"}, {})
    assert "TypeError" in said["error"]


@pytest.mark.parametrize("member", ["tdcore, obstore", "tdcore, aiobotocore", "boto3, threads", "s3fs"])
def test_bytes_are_put_and_counted(member: str) -> None:
    if member == "s3fs":
        pytest.importorskip("s3fs")  # from the extra `bench`, not from `test`
    found = measured(Group(question="put", name="x", server="rclone http", members=(member,)))
    ((one,),) = found["members"].values()
    assert one["bytes"] == QUICK.put_bytes
    assert one["cpu_s"] > 0
    assert one["start_cpu_s"] > 0
    assert one.get("drops", 0) == 0
    assert "MB/s" in printed({"groups": [found], "errors": [], "missing": {}})


def test_a_bucket_behind_tls_is_put_to() -> None:
    members = ("tdcore, obstore", "obstore, bare", "s3transfer")
    found = measured(Group(question="put", name="x", server="rclone https", members=members))
    assert all(answers[0]["bytes"] == QUICK.put_bytes for answers in found["members"].values())


def test_the_loop_is_timed_while_data_is_uploaded() -> None:
    members = ("no uploads", "tdcore in a thread, aiobotocore", "boto3 in a thread")
    found = measured(Group(question="loop", name="x", server="rclone http", members=members, idle=True))
    by_member = {member: answers[0] for member, answers in found["members"].items()}
    assert all(one["iterations"] > 0 and one["drops"] == 0 for one in by_member.values())
    assert by_member["no uploads"]["given_mb_per_s"] == 0
    assert by_member["boto3 in a thread"]["given_mb_per_s"] > 0


def test_captures_are_timed_for_a_folder_and_for_a_bucket() -> None:
    members = ("folder", "bucket, obstore")
    found = measured(Group(question="stall", name="x", server="rclone http", members=members, idle=True))
    for answers in found["members"].values():
        assert answers[0]["p50_ms"] > 0
        assert answers[0]["drops"] == 0


def test_a_run_is_opened_and_a_warm_cache_spares_requests() -> None:
    members = ("tdcore, cold cache", "tdcore, warm cache", "pyarrow", "tdcore, folder")
    found = measured(Group(question="open", name="x", server="stub http", members=members, workers=3))
    by_member = {member: answers[0] for member, answers in found["members"].items()}
    assert len({one["rows"] for one in by_member.values()}) == 1
    assert by_member["tdcore, cold cache"]["requests"] > by_member["tdcore, warm cache"]["requests"] > 0
    assert by_member["tdcore, folder"]["requests"] == 0


def test_a_process_that_is_left_out_is_neither_the_trees_nor_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_left_out", set())
    busy = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE) as child:
        machine.leave_out(child.pid)
        before = machine.usage()
        while machine.tree_cpu_seconds(child.pid) < 0.4:
            assert child.poll() is None
        after = machine.usage()
        child.communicate(b"\n")
    assert after.nobody - before.nobody >= 0.3
    assert machine.tree_cpu_seconds(child.pid) == 0.0


def test_each_of_ours_has_the_empty_session_that_is_taken_off() -> None:
    assert set(put.ALONE) | set(put.ALONE.values()) == set(put.OURS)
    assert all(isinstance(peer, Peer) for peer in PEERS.values())
