"""StopSageMakerJob with boto3 and a small local service, because jobs of moto end at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tdcore.actions import StopSageMakerJob
from tdcore.errors import ActionError, ConfigError
from tdcore.rules import Finding
from tests.actions.findings import Running, finding
from tests.s3.servers import KEYS


class SageMaker:
    """ListTrainingJobs, with two jobs per page, and StopTrainingJob."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.calls: list[str] = []

    def answer(self, operation: str, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append(operation)
        if operation == "StopTrainingJob":
            name = given["TrainingJobName"]
            if self.jobs.get(name) != "InProgress":
                return 400, {"__type": "ValidationException", "message": f"{name} is not in progress"}
            self.jobs[name] = "Stopping"
            return 200, {}
        assert operation == "ListTrainingJobs"
        wanted = given["NameContains"].lower()
        found = [name for name in sorted(self.jobs) if wanted in name.lower()]
        first = int(given.get("NextToken", 0))
        page: dict[str, Any] = {
            "TrainingJobSummaries": [
                {
                    "TrainingJobName": name,
                    "TrainingJobArn": "arn:" + name,
                    "CreationTime": 1,
                    "TrainingJobStatus": self.jobs[name],
                }
                for name in found[first : first + 2]
                if self.jobs[name] == given["StatusEquals"]
            ]
        }
        return 200, page | ({"NextToken": str(first + 2)} if len(found) > first + 2 else {})


@pytest.fixture
def sagemaker(monkeypatch: pytest.MonkeyPatch) -> Iterator[SageMaker]:
    service = SageMaker()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = service.answer(self.headers["X-Amz-Target"].rpartition(".")[2], given)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS.secret_key)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    yield service
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_named_job_is_stopped_once(sagemaker: SageMaker) -> None:
    sagemaker.jobs = {"My-Job-1": "InProgress", "My-Job-2": "InProgress"}
    action = StopSageMakerJob("My-Job-1")
    for step in range(3):
        action.act([finding(step=step)], Running(), None)
    assert sagemaker.jobs == {"My-Job-1": "Stopping", "My-Job-2": "InProgress"}
    assert sagemaker.calls == ["StopTrainingJob"]


def test_a_prefix_keeps_its_case_and_is_looked_up_when_it_acts(sagemaker: SageMaker) -> None:
    action = StopSageMakerJob(job_name_prefix="My-Job")
    sagemaker.jobs = {
        "my-job-1": "InProgress", "not-My-Job": "InProgress", "My-Job-1": "Completed",
        "My-Job-2": "InProgress", "My-Job-0": "Failed",
    }  # fmt: skip
    action.act([finding()], Running(), None)
    assert [name for name, status in sagemaker.jobs.items() if status == "Stopping"] == ["My-Job-2"]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({}, "0 jobs in progress in eu-west-1 begin with 'My-Job', expected exactly one"),
        ({"My-Job-1": "Completed"}, "0 jobs in progress"),
        ({f"My-Job-{n}": "InProgress" for n in range(3)}, "3 jobs .*: My-Job-0, My-Job-1, My-Job-2"),
    ],
)
def test_any_number_of_jobs_but_one_is_a_failure_and_stops_none(
    sagemaker: SageMaker, jobs: dict[str, str], message: str
) -> None:
    sagemaker.jobs = dict(jobs)
    with pytest.raises(ActionError, match=message):
        StopSageMakerJob(job_name_prefix="My-Job").act([finding()], Running(), None)
    assert sagemaker.jobs == jobs


@pytest.mark.parametrize("news", [[], [finding(step=8)]])
def test_a_failure_is_tried_again_at_the_next_call(sagemaker: SageMaker, news: list[Finding]) -> None:
    action = StopSageMakerJob("My-Job")
    with pytest.raises(ActionError, match="My-Job is not in progress"):
        action.act([finding()], Running(), None)
    assert action.untold() == [finding()]
    sagemaker.jobs = {"My-Job": "InProgress"}
    action.act(news, Running(), None)
    assert sagemaker.jobs == {"My-Job": "Stopping"}
    assert action.untold() == []


def test_an_attempt_that_has_ended_meanwhile_is_no_reason_any_more(sagemaker: SageMaker) -> None:
    action = StopSageMakerJob("My-Job")
    with pytest.raises(ActionError):
        action.act([finding(attempt=0)], Running(), None)
    sagemaker.jobs = {"My-Job": "InProgress"}
    action.act([], Running(ended=1), None)
    assert sagemaker.jobs == {"My-Job": "InProgress"}
    assert action.untold() == []


def test_findings_of_attempts_that_have_ended_stop_nothing(sagemaker: SageMaker) -> None:
    sagemaker.jobs = {"My-Job": "InProgress"}
    StopSageMakerJob("My-Job").act([finding(0), finding(1)], Running(ended=2), None)
    assert sagemaker.calls == []
    StopSageMakerJob("My-Job").act([finding(0), finding(2)], Running(ended=2), None)
    assert sagemaker.jobs == {"My-Job": "Stopping"}


@pytest.mark.parametrize(
    "given",
    [
        {}, {"job_name": "a", "job_name_prefix": "b"}, {"job_name": ""}, {"job_name": "a_b"},
        {"job_name": "a-"}, {"job_name_prefix": "-a"}, {"job_name": "x" * 64}, {"job_name": 3},
        {"job_name": f"a{'-' * 99}b"},
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="StopSageMakerJob"):
        StopSageMakerJob(region="eu-west-1", **given)
