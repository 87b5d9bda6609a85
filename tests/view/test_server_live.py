"""The server of the view while runs are written, appear, are damaged and are removed."""

from __future__ import annotations

import json
import shutil
import signal
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.format.layout import TensorKind, stop_key
from tdcore.rules import run as judge_run
from tdcore.session import Session
from tdcore.session.session import StopRequest
from tdcore.sinks import open_sink
from tests.s3.fixtures import Place
from tests.trial.writer import RunWriter
from tests.view.view_server import ViewServer, view_server
from tests.waiting import wait_until

pytestmark = pytest.mark.full


def write_steps(run: RunWriter, steps: range, size: float = 1.0) -> None:
    for step in steps:
        run.add("fc.weight", np.arange(6, dtype=np.float32).reshape(2, 3) + step, step=step)
        run.add("gradient/fc.weight", size * np.ones((2, 3), np.float32), step=step, kind="gradient")
        run.add("loss", 1.0 / (step + 1), step=step, kind="loss")
    run.flush()


def make_run(place: Path, *, end: bool = True) -> RunWriter:
    run = RunWriter(place)
    write_steps(run, range(3))
    if end:
        run.end()
    return run


def listed(server: ViewServer) -> dict[str, Any]:
    return {each["id"]: each for each in server.get("runs").json["runs"]}


def rows(server: ViewServer, run: str) -> Any:
    return server.get("overview", run=run).json["run"]["rows"]


class Folder:
    """A folder of runs, and a view of it that judges nothing."""

    def __init__(self, place: Path, server: ViewServer) -> None:
        self.place = place
        self.server = server
        self._number = 0

    def new(self) -> tuple[str, Path]:
        """Id and place of a run that does not exist yet."""
        self._number += 1
        name = f"run{self._number}"
        return name, self.place / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    place = tmp_path_factory.mktemp("runs")
    with view_server(place, "--no-rules") as server:
        yield Folder(place, server)


def after(events: Iterator[dict[str, Any]], run: str, version: int = 0) -> dict[str, Any]:
    """The next event of a run with a later version."""
    return next(each for each in events if each["run"] == run and each["version"] > version)


# Live runs. ------------------------------------------------------------------------------------------------


def test_new_rows_are_an_event_and_are_in_the_next_answer(folder: Folder) -> None:
    name, place = folder.new()
    run = make_run(place, end=False)
    assert rows(folder.server, name) == 9
    with folder.server.events() as events:
        version = after(events, name)["version"]  # its state when the page connects
        for end in (4, 5, 6):
            write_steps(run, range(end - 1, end))
            version = after(events, name, version)["version"]
            assert rows(folder.server, name) == 3 * end


def test_findings_of_rules_in_another_process_appear(folder: Folder) -> None:
    name, place = folder.new()
    run = make_run(place, end=False)
    run.add("fc.weight", np.full((2, 3), np.nan, np.float32), step=3)
    run.flush()
    assert folder.server.get("overview", run=name).json["findings"] == []
    with folder.server.events() as events:
        version = after(events, name)["version"]
        judge_run(place, ["exploding_tensor"], ended=True)
        after(events, name, version)
        findings = folder.server.get("overview", run=name).json["findings"]
        assert [(each["rule"], each["tensor"]) for each in findings] == [("ExplodingTensor", "fc.weight")]


def test_the_end_of_a_run_is_an_event(folder: Folder) -> None:
    name, place = folder.new()
    run = make_run(place, end=False)
    assert folder.server.get("overview", run=name).json["run"]["status"] == "running"
    with folder.server.events() as events:
        run.end()
        assert any(each["run"] == name and each["status"] == "ended" for each in events)


def test_verdicts_of_a_live_run_follow_its_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", end=False)

    def bad() -> bool:
        return any(each["status"] == "issue" for each in server.get("rules").json["verdicts"])

    with view_server(tmp_path / "a") as server:
        assert server.get("rules").json["judged"] in ("running", "now")
        wait_until(lambda: server.get("rules").json["judged"] == "now", "the run was judged")
        assert len(server.get("rules").json["verdicts"]) > 20
        assert not bad()
        run.add("fc.weight", np.full((2, 3), np.nan, np.float32), step=6)
        run.add("loss", float("nan"), step=6, kind="loss")
        run.flush()
        run.end()
        wait_until(bad, "the verdicts show the NaN")
        assert any(each["tensor"] == "fc.weight" for each in server.get("overview").json["findings"])
        assert not (tmp_path / "a" / "findings").exists()  # a view writes no findings


# Folders. --------------------------------------------------------------------------------------------------


def test_a_run_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    with view_server(tmp_path / "later", "--no-rules") as server:
        wait_until(lambda: "no run at" in "".join(server.printed), "the command says so")
        assert server.get("runs").json["runs"] == []
        assert server.get("overview").status == 404
        with server.events() as events:
            make_run(tmp_path / "later")
            assert next(events)["run"] == "later"
        wait_until(lambda: [each["rows"] for each in server.get("runs").json["runs"]] == [9], "it is listed")


def test_a_new_run_in_the_folder_is_an_event(folder: Folder) -> None:
    name, place = folder.new()
    with folder.server.events() as events:
        make_run(place)
        after(events, name)
    assert name in [each["id"] for each in folder.server.get("runs").json["runs"]]


def test_three_hundred_runs_are_all_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "0")
    for number in range(1, 300):
        shutil.copytree(tmp_path / "0", tmp_path / str(number))
    with view_server(tmp_path, "--no-rules") as server:
        first = server.get("runs").json["runs"]
        assert [each["id"] for each in first] == list(map(str, range(300)))
        assert {each["status"] for each in first} <= {"ended", "reading"}
        wait_until(
            lambda: {each["rows"] for each in server.get("runs").json["runs"]} == {9},
            "all lines are complete",
        )
        for number in range(40):  # more than may be open
            assert rows(server, str(number)) == 9


def test_a_run_that_is_removed_while_it_is_open_is_an_error_of_its_requests(folder: Folder) -> None:
    (name, place), (other, other_place) = folder.new(), folder.new()
    make_run(place)
    make_run(other_place)
    assert rows(folder.server, name) == 9
    with folder.server.events() as events:
        shutil.rmtree(place)
        assert any(each["run"] == name and each["status"] == "unreadable" for each in events)
    answer = folder.server.get("overview", run=name)
    assert answer.status == 404
    assert "removed" in answer.json["error"]
    assert rows(folder.server, other) == 9
    wait_until(lambda: name not in listed(folder.server), "it is not listed")


def test_another_run_in_the_same_folder_is_shown(folder: Folder) -> None:
    name, place = folder.new()
    make_run(place)
    assert rows(folder.server, name) == 9
    shutil.rmtree(place)
    wait_until(lambda: folder.server.get("overview", run=name).status == 404, "the removal is noticed")
    run = make_run(place, end=False)
    run.put("run.json", {**json.loads((place / "run.json").read_text()), "run_id": "another"})
    write_steps(run, range(3, 7))
    wait_until(
        lambda: folder.server.get("overview", run=name).status == 200 and rows(folder.server, name) == 21,
        "the new run is shown",
    )


def test_a_damaged_run_does_not_affect_others(tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    for name, content in (
        ("json", b"{"),
        ("list", b"[]"),
        ("version", b'{"format": 99}'),
        ("binary", b"\xff\x00"),
    ):
        make_run(tmp_path / name)
        (tmp_path / name / "run.json").write_bytes(content)
    make_run(tmp_path / "index")
    for path in (tmp_path / "index" / "index").rglob("*.parquet"):
        path.write_bytes(b"PAR1 this is not a Parquet file PAR1")
    with view_server(tmp_path) as server:
        wait_until(
            lambda: all(each["status"] != "reading" for each in server.get("runs").json["runs"]),
            "all are read",
        )
        status = {each["id"]: each["status"] for each in server.get("runs").json["runs"]}
        assert status.pop("good") == "ended"
        assert set(status.values()) == {"unreadable"}
        for name in status:
            answer = server.get("overview", run=name)
            assert answer.status in (400, 404), name
            assert answer.json["error"]
            assert "Traceback" not in answer.json["error"]
        assert rows(server, "good") == 9


def test_runs_are_compared_in_the_order_of_the_request(folder: Folder) -> None:
    (first, first_place), (second, second_place) = folder.new(), folder.new()
    make_run(first_place)
    write_steps(make_run(second_place, end=False), range(3, 5))
    for order in ([first, second], [second, first]):
        compared = folder.server.get("compare", runs=",".join(order)).json
        assert [each["id"] for each in compared["runs"]] == order


def test_runs_whose_names_contain_commas_are_compared(folder: Folder) -> None:
    places = [folder.place / name for name in ("lr=0.1,batch=8", "lr=0.2,batch=8")]
    for place in places:
        make_run(place)
    ids = [place.name.replace(",", "\\x2c") for place in places]
    compared = folder.server.get("compare", runs=",".join(ids)).json
    assert [each["id"] for each in compared["runs"]] == ids
    assert [each["name"] for each in compared["runs"]] == [place.name for place in places]


# Requests to a training. -----------------------------------------------------------------------------------


def test_stop_and_capture_reach_a_training(folder: Folder) -> None:
    name, place = folder.new()
    server = folder.server
    with closing(Session(place, configuration={}, framework="none", framework_version="0")) as session:
        ids = array("I", [session.ring.intern("loss", int(TensorKind.LOSS))])
        session.ring.capture([np.ones(1, np.float32)], ids, bytearray([3]), 0, 1, 0)
        wait_until(
            lambda: server.get("overview", run=name).status == 200 and rows(server, name) == 1,
            "the row is there",
        )
        more = server.post("capture", {"run": name, "tensors": ["loss"], "steps": 5, "level": "values"})
        assert more.status == 200
        assert more.json["text"] == "Request 0: the next 5 steps save the values of 1 tensor."
        wait_until(lambda: session.take_request() is not None, "the request to capture arrived")
        assert server.post("stop", {"run": name, "reason": "curious"}).status == 200
        wait_until(lambda: session.stop_request() is not None, "the request to stop arrived")
        assert session.stop_request() == StopRequest(reason="curious", by="tdcore view")
        assert "already" in server.post("stop", {"run": name, "reason": ""}).json["text"]
    wait_until(lambda: server.post("stop", {"run": name}).status == 400, "the end is noticed")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "run must be"),
        ({"run": ["a"]}, "run must be"),
        ({"run": "nothing"}, "no run"),
        ({"run": "a", "tensors": "loss", "steps": 1}, "list of names"),
        ({"run": "a", "tensors": ["nothing"], "steps": 1}, "no tensor"),
        ({"run": "a", "tensors": ["loss"], "steps": 0}, "steps must be"),
        ({"run": "a", "tensors": ["loss"], "steps": "many"}, "steps must be"),
        ({"run": "a", "tensors": ["loss"], "steps": 1, "level": "all"}, "level must be"),
        ({"run": "a", "tensors": [], "steps": 1}, "1 to 64"),
    ],
)
def test_a_wrong_request_to_capture_is_refused(running: ViewServer, body: Any, message: str) -> None:
    answer = running.post("capture", body)
    assert answer.status in (400, 404)
    assert message in answer.json["error"]


@pytest.fixture(scope="module")
def running(folder: Folder) -> ViewServer:
    make_run(folder.place / "a", end=False)
    return folder.server


def test_a_read_only_view_writes_nothing(tmp_path: Path) -> None:
    make_run(tmp_path / "a", end=False)
    with view_server(tmp_path / "a", "--read-only", "--no-rules") as server:
        assert server.get("runs").json["can_write"] is False
        for name in ("stop", "capture"):
            answer = server.post(name, {"run": "a", "tensors": ["loss"], "steps": 1})
            assert answer.status == 403
            assert "--read-only" in answer.json["error"]
    assert not (tmp_path / "a" / stop_key(0)).exists()


# Ends, and other places. -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_view_cleanly(tmp_path: Path, by: signal.Signals) -> None:
    make_run(tmp_path / "a", end=False)
    with view_server(tmp_path / "a") as server, server.events() as events:
        server.get("rules")
        next(events)
        assert server.stop(by) == 0
        assert "Traceback" not in "".join(server.printed)


def test_a_view_of_a_bucket_shows_its_runs(stub: Any, s3_prefix: str, tmp_path: Path) -> None:
    place = Place(server=stub, prefix=s3_prefix)
    make_run(tmp_path / "run", end=False)
    sink = open_sink(place.url("runs/a"))
    for path in sorted((tmp_path / "run").rglob("*")):
        if path.is_file():
            sink.put(path.relative_to(tmp_path / "run").as_posix(), [path.read_bytes()])
    with view_server(place.url("runs"), "--no-rules", TDCORE_CACHE=str(tmp_path / "cache")) as server:
        wait_until(lambda: [each["rows"] for each in server.get("runs").json["runs"]] == [9], "it is listed")
        assert rows(server, "a") == 9
        answer = server.post("stop", {"run": "a", "reason": "enough"})
        assert answer.status == 200
        assert json.loads(sink.get(stop_key(0)))["reason"] == "enough"
        with server.events() as events:
            next(events)
            sink.put("end/worker_0/0000.json", [json.dumps({"format": 1, "clean": True}).encode()])
            assert next(events)["run"] == "a"
