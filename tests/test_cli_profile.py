"""`tdcore profile` on trainings in other processes: a folder, a bucket, two ranks, and no training at all."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tdcore as td
from tdcore.format.layout import capture_key
from tdcore.sinks import LocalSink
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer
from tests.test_cli import Command, write
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
TRAINER = ROOT / "tests" / "trainers" / "profiled.py"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a training that writes to a place, and end it after the test. Its status must be 0."""
    started: list[subprocess.Popen[str]] = []
    stop = tmp_path / "stop"

    def run(out: object, *launcher: str) -> subprocess.Popen[str]:
        job = json.dumps({"out": str(out), "stop": str(stop)})
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(
                [sys.executable, *launcher, str(TRAINER), job],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield run
    stop.touch()
    for process in started:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors


def wait_for_run(place: object, process: subprocess.Popen[str]) -> None:
    def there() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            td.create_trial(str(place))
        except td.TdcoreError:
            return False
        return True

    wait_until(there, "the run exists")


@pytest.mark.full
def test_a_running_training_is_profiled(tdcore: Command, start: Start, tmp_path: Path) -> None:
    out = tmp_path / "run"
    wait_for_run(out, start(out))
    found = tdcore("profile", out, "--steps", 3, "--python")
    assert found.code == 0, found
    assert "Request 0: operators and Python functions of the next 3 training steps of worker_0" in found.out
    assert re.search(r"Profile 0 of worker_0: TRAIN steps (\d+) to (\d+), complete", found.out)
    assert re.search(r"aten::addmm +6 ", found.out)
    assert re.search(r"<built-in method torch\._C\._nn\.linear> +6 ", found.out)
    assert "https://ui.perfetto.dev" in found.out
    (place,) = re.findall(r"trace: (\S+)", found.out)
    events = json.loads(gzip.decompress(Path(place).read_bytes()))["traceEvents"]
    assert sum(each["name"] == "aten::addmm" for each in events) == 6
    again = tdcore("profile", out, "--steps", 1, "--no-operators", "--python", "--json")
    assert again.code == 0, again
    (document,) = again.json["profiles"]
    assert (document["request"], document["state"], sorted(document["keys"])) == (
        1, "complete", ["functions", "pstats"],
    )  # fmt: skip
    listed = tdcore("profile", out, "--list")
    assert len(re.findall(r"worker_0 +TRAIN \d+ to \d+ +complete", listed.out)) == 2
    trace = tdcore("trace", out, "-o", tmp_path / "trace.json")
    assert trace.code == 0, trace
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(each["name"] == "aten::addmm" for each in written) == 6


@pytest.mark.full
def test_without_waiting_the_profile_arrives_later(tdcore: Command, start: Start, tmp_path: Path) -> None:
    out = tmp_path / "run"
    wait_for_run(out, start(out))
    found = tdcore("profile", out, "--no-wait", "--workers", "worker_0")
    assert (found.code, "Profile 0" in found.out) == (0, False)
    wait_until(lambda: td.create_trial(out).profiles(), "the profile arrived")


@pytest.mark.full
def test_a_training_whose_run_is_in_a_bucket_is_profiled(
    tdcore: Command, start: Start, stub: StubServer, s3_prefix: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spools"))
    monkeypatch.setenv("TDCORE_CACHE", str(tmp_path / "cache"))
    url = Place(server=stub, prefix=s3_prefix).url("run")
    wait_for_run(url, start(url))
    found = tdcore("profile", url, "--steps", 2)
    assert found.code == 0, found
    assert re.search(r"Profile 0 of worker_0: TRAIN steps \d+ to \d+, complete", found.out)
    assert re.search(r"trace: s3://\S+/run/profiles/worker_0/0000-0000\.trace\.json\.gz", found.out)
    (profile,) = td.create_trial(url).profiles()
    names = profile.operators().column("name").to_pylist()
    assert "aten::addmm" in names
    assert any(each["name"] == "aten::addmm" for each in profile.trace_events())


@pytest.mark.full
def test_all_ranks_of_a_job_are_profiled_and_are_in_one_timeline(
    tdcore: Command, start: Start, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    wait_for_run(out, start(out, *launcher))
    found = tdcore("profile", out, "--steps", 4)
    assert found.code == 0, found
    for worker in ("worker_0", "worker_1"):
        assert re.search(rf"Profile 0 of {worker}: TRAIN steps \d+ to \d+, complete", found.out)
    only = tdcore("profile", out, "--steps", 1, "--workers", "worker_1", "--json")
    assert [each["worker"] for each in only.json["profiles"]] == ["worker_1"]
    assert tdcore("trace", out, "-o", tmp_path / "trace.json").code == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    workers = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    of = {workers[each["pid"]] for each in events if each["name"] == "aten::addmm"}
    assert of == {"worker_0", "worker_1"}


# Without a training ---------------------------------------------------------------------------------------


def test_a_run_that_has_ended_is_refused(tdcore: Command, tmp_path: Path) -> None:
    root = write(tmp_path / "run")
    found = tdcore("profile", root)
    assert found.code == 2
    assert "has ended, so it records no more profiles; start it again" in found.err
    assert not (root / "control").exists()
    listed = tdcore("profile", root, "--list")
    assert (listed.code, "has no profiles. Request one while the training runs" in listed.out) == (0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "steps must be 1 to 1000, got 0"),
        (["--steps", "1001"], "steps must be 1 to 1000, got 1001"),
        (["--no-operators"], "operators and python are both false"),
        (["--workers", "../x"], "workers must be names such as 'worker_0'"),
        (["--workers", "worker_9"], "'worker_9' is not a worker of the run; it has worker_0"),
    ],
)
def test_a_wrong_request_is_refused(
    tdcore: Command, tmp_path: Path, options: list[str], message: str
) -> None:
    root = write(tmp_path / "run", end=False)
    found = tdcore("profile", root, *options)
    assert (found.code, message in found.err) == (2, True), found
    assert not (root / "control").exists()


def test_a_training_that_does_not_answer_is_reported_with_the_reason(tdcore: Command, tmp_path: Path) -> None:
    """An older version of tdcore ignores the request, and notes this."""
    root = write(tmp_path / "run", end=False)
    note = {"number": 1, "ignored": "a request names 1 to 64 tensors, got 0"}
    attempts = {"0": {"collections": {}, "capture_requests": [note]}}
    (root / "collections.json").write_text(json.dumps({"format": 1, "attempts": attempts}))
    LocalSink(root).put_new(capture_key(0, 0), [b"{}"])  # the number 0 is taken
    found = tdcore("profile", root, "--timeout", "0")
    assert found.code == 1
    assert (
        "worker_0 has stored no profile within 0 s: the request was ignored, because a request names"
        in found.out
    )
    assert "The request stays in the run" in found.out
    assert json.loads((root / capture_key(0, 1)).read_text())["kind"] == "profile"
