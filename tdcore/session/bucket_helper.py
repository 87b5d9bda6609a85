"""Bucket helper: a short-lived process that sends the requests of a training process to a bucket.

The training process therefore never loads an S3 client with its threads, sockets and memory. (If obstore has
run in a process, a forked child such as a DataLoader worker hangs when it uses obstore.) A request takes
about 0.5 s, while the calling thread sleeps. If the run is a folder, no process is started and the calling
thread does the work.

Threads: any.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from tdcore import errors
from tdcore.errors import SinkError, TdcoreError
from tdcore.session.attempts import ClaimedAttempt, check_configuration, claim_attempt
from tdcore.session.spawning import command, environment
from tdcore.sinks import Sink, is_remote, open_sink, shown_place

__all__ = ["claim", "main", "put"]

_SECONDS = 120.0  # longer than the sink's own timeouts
_PATIENCE = timedelta(seconds=30)


def claim(out: str, *, here: bool, **entry: Any) -> ClaimedAttempt:
    """Claim an attempt of the run at `out` (attempts.claim_attempt).

    here: claim in this process, even for a bucket.
    """
    check_configuration(entry["configuration"])
    job = {"task": "claim", "out": out, "entry": entry}
    return ClaimedAttempt(**(_do(job) if here or not is_remote(out) else _send(job)))


def put(out: str, key: str, data: bytes, *, here: bool, seconds: float = _SECONDS) -> None:
    """Store `data` under `key` in the run at `out` (Sink.put).

    Args:
        out: Place of the run.
        key: Key of the object.
        data: The bytes of the object.
        here: Store in this process, even for a bucket.
        seconds: Maximum time.

    Raises:
        SinkError: The sink failed, or `seconds` have passed.
    """
    job = {"task": "put", "out": out, "key": key, "data": base64.b64encode(data).decode()}
    if here or not is_remote(out):
        _do(job)
    else:
        _send(job, seconds)


def main(arguments: Sequence[str]) -> int:
    """Entry point of the process: read a task from stdin, run it, and print the result as JSON."""
    try:
        answer: dict[str, Any] = {"value": _do(json.load(sys.stdin))}
    except TdcoreError as error:
        details = {name: getattr(error, name) for name in ("kind", "errno") if hasattr(error, name)}
        answer = {"error": type(error).__name__, "message": str(error), "details": details}
    print(json.dumps(answer))
    return 0


def _do(job: Mapping[str, Any]) -> Any:
    with contextlib.closing(_open(job["out"])) as sink:
        if job["task"] == "claim":
            return asdict(claim_attempt(sink, where=shown_place(job["out"]), **job["entry"]))
        sink.put(job["key"], [base64.b64decode(job["data"])])
        return None


def _open(out: str) -> Sink:
    if not is_remote(out):
        return open_sink(out)
    from tdcore.sinks.s3 import S3Sink

    return S3Sink(out, patience=_PATIENCE)


def _send(job: Mapping[str, Any], seconds: float = _SECONDS) -> Any:
    where = shown_place(job["out"])
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise SinkError(
            f"cannot start a process to connect to {where}: sys.executable is not a program: "
            f"{sys.executable!r}"
        )
    try:
        done = subprocess.run(
            command("tdcore.session.bucket_helper", {}),
            # Not an argument: arguments are limited in length and readable by all users.
            input=json.dumps(job).encode(),
            capture_output=True,
            cwd="/",
            env=environment(),
            start_new_session=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SinkError(f"{where} did not answer within {seconds:.0f} s") from error
    except OSError as error:
        raise SinkError(
            f"cannot start a process to connect to {where}: {error}", errno=error.errno
        ) from error
    return _answer(done, where)


def _answer(done: subprocess.CompletedProcess[bytes], where: str) -> Any:
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip()[-2000:]
        raise SinkError(
            f"the process that connects to {where} ended with status {done.returncode}: {last}"
        ) from None
    if "error" not in answer:
        return answer["value"]
    kind = getattr(errors, answer["error"], TdcoreError)
    raise kind(answer["message"], **answer["details"])
