"""The endpoint /metrics of the view, read with the parsers of prometheus_client."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trial.writer import RunWriter
from tests.view.view_server import ViewServer, view_server
from tests.waiting import wait_until

parser: Any = pytest.importorskip("prometheus_client.parser")
openmetrics: Any = pytest.importorskip("prometheus_client.openmetrics.parser")

HOSTILE = 'a"b\\c\nd}é'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunWriter:
    run = RunWriter(tmp_path_factory.mktemp("view") / "demo", epoch_ns=None)
    second = 10**9
    for step in range(4):
        time_ns = run.epoch_ns + step * second // 4
        run.add("loss", 1.0 / (step + 1), step=2 * step, mode_step=step, kind="loss", time_ns=time_ns)
        run.add(HOSTILE, float("-inf"), step=2 * step + 1, mode="EVAL", mode_step=step, kind="loss")
    run.mark_step_end(7)
    run.flush()
    for number in range(2):
        at = {"step": number, "mode": "TRAIN", "mode_step": number, "worker": "worker_0", "attempt": 0}
        finding: dict[str, Any] = {
            "rule": "X",
            "code": "TDC001",
            **at,
            "tensor": f"t{number}",
            "why": "w",
            "do": "d",
        }
        run.root.joinpath("findings").mkdir(exist_ok=True)
        with (run.root / "findings" / "X.jsonl").open("a") as file:
            file.write(json.dumps(finding) + "\n")
    return run


@pytest.fixture(scope="module")
def server(run: RunWriter) -> Iterator[ViewServer]:
    with view_server(run.root, "--no-rules") as running:
        yield running


def scrape(server: ViewServer, path: str = "metrics", **headers: str) -> dict[tuple[str, ...], float]:
    """The samples, by name and labels other than the run."""
    answer = server.request("GET", path, headers=headers)
    assert answer.status == 200, answer.body
    read = openmetrics if "openmetrics" in answer.headers["content-type"] else parser
    found = {}
    for family in read.text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "run"]
            key = (sample.name, *labels)
            found[key] = sample.value
    return found


def test_losses_steps_findings_and_attempts_are_gauges(server: ViewServer) -> None:
    found = scrape(server)
    assert found["tdcore_loss", "TRAIN", "loss", "worker_0"] == 0.25
    assert found["tdcore_loss", "EVAL", HOSTILE, "worker_0"] == -math.inf
    assert found["tdcore_last_step", "TRAIN"] == 3
    assert found["tdcore_steps_per_second", "TRAIN"] == pytest.approx(4.0)
    assert found["tdcore_findings", "TDC001", "X"] == 2
    assert found["tdcore_attempts",] == 1
    assert found["tdcore_run_running",] == 1


def test_prometheus_may_ask_for_the_open_metrics_format(server: ViewServer) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    assert scrape(server, Accept=accept) == scrape(server)


def test_the_token_may_be_a_bearer_token(server: ViewServer) -> None:
    token = server.path.strip("/")
    assert scrape(server, "/metrics", Authorization=f"Bearer {token}") == scrape(server)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token}"}):
        assert server.request("GET", "/metrics", headers=headers).status == 403
    assert server.request("GET", "/api/runs", headers={"Authorization": f"Bearer {token}"}).status == 403


def test_new_steps_are_in_the_next_scrape(server: ViewServer, run: RunWriter) -> None:
    run.add("loss", 0.125, step=8, mode_step=4, kind="loss")
    run.mark_step_end(8)
    run.flush()
    wait_until(lambda: scrape(server)["tdcore_loss", "TRAIN", "loss", "worker_0"] == 0.125, "it is scraped")
    assert scrape(server)["tdcore_last_step", "TRAIN"] == 4


def test_more_runs_than_one_answer_has_are_refused(server: ViewServer) -> None:
    answer = server.request("GET", "metrics?" + "&".join(f"run={number}" for number in range(17)))
    assert (answer.status, b"at most 16 runs" in answer.body) == (400, True)


@pytest.mark.full
def test_a_folder_has_metrics_of_the_runs_that_are_written(run: RunWriter, tmp_path: Path) -> None:
    for name in ("ended", "running"):
        one = RunWriter(tmp_path / name)
        one.add("loss", 1.0, step=0, kind="loss")
        one.flush()
        if name == "ended":
            one.end()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    with view_server(tmp_path, "--no-rules") as server:
        wait_until(lambda: ("tdcore_attempts",) in scrape(server), "the list of runs is read")
        body = server.request("GET", "metrics").body.decode()
        assert 'tdcore_attempts{run="running"} 1.0' in body
        assert 'run="ended"' not in body
        assert 'tdcore_attempts{run="ended"} 1.0' in server.request("GET", "metrics?run=ended").body.decode()
        assert server.request("GET", "metrics?run=none").status == 404
