"""The number of an attempt, found from run.json and from claims, which two trainers cannot share.

A run folder may be used several times. Every use is a new attempt, and files of earlier attempts are not
changed. A worker claims an attempt by creating ``attempts/<attempt>-<worker>.json`` exclusively; the claim
describes the worker. run.json lists the attempts for readers. A worker that changes run.json reads the claims
again and repeats until both agree, so the last writer of a race always leaves a complete list.

The workers of one job agree on the number without messages to each other. A worker takes the first attempt
that is later than its own last attempt, belongs to its job and is not over. If there is none, the worker
takes the next free number. An attempt belongs to the job when its first claim has the same world size, the
same workers and the same job of the launcher (variables of torchrun and Slurm that are equal on all ranks).
An attempt is over when the process of that claim has ended and, in addition, has left an end file or was
started more than ten minutes ago. For example, a folder that was used by 4 ranks, then by 2 and then by 4 has
attempts 0, 1 and 2, and all of the last four ranks are in attempt 2.

Threads: called by the thread that creates a session. Files of other workers are never overwritten.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tdcore._version import __version__
from tdcore.errors import ConfigError, RunCorrupt, SinkKeyError
from tdcore.format.collection_names import expand_names
from tdcore.format.documents import Fields, claimed_process, parse_json, parse_run
from tdcore.format.layout import FORMAT_VERSION, MAX_ATTEMPT, RUN_KEY, collections_key, end_key, valid_worker
from tdcore.liveness import process_is_gone

if TYPE_CHECKING:
    from tdcore.sinks import Sink

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

_START_NS = 600 * 10**9  # all workers of a job begin within this time
_SAME = ("world_size", "workers", "job")  # equal in all claims of one attempt
_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")
_CLAIM = re.compile(r"attempts/([0-9]{4})-(.+)\.json")
_ADVICE = "choose another out_dir, or move the file away"
_MAX_ROUNDS = 100  # maximum number of tries to write run.json while other trainers write it


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAttempt:
    """The attempt that a worker has claimed. earlier_collections: entries of collections.json by attempt."""

    run_id: str
    attempt: int
    earlier_collections: Mapping[str, JSON]


def claim_attempt(
    sink: Sink,
    *,
    where: str,
    worker: str,
    configuration: Mapping[str, JSON],
    framework: str,
    framework_version: str,
    world_size: int,
    pid: int | None = None,
    spool: str | None = None,
    workers: Sequence[str] = (),
) -> ClaimedAttempt:
    """Claim the next attempt of `worker` and enter it in run.json.

    Args:
        sink: The run.
        where: Location of the run, for messages.
        worker: Name of the worker.
        configuration: JSON values, stored in the claim.
        framework: Name of the training framework.
        framework_version: Version of the framework.
        world_size: Number of processes of the job.
        pid: Process id of the trainer, if it is another process.
        spool: Folder on this machine for data that a bucket does not accept in time.
        workers: Names of all workers that will write this attempt, if they are known.

    Raises:
        ConfigError: the worker name or the configuration cannot be stored.
        RunCorrupt: run.json was not written by tdcore.
        SinkError: the sink failed.
    """
    if not valid_worker(worker):
        raise ConfigError(
            f"worker must be made of letters, digits, '_', '-' and '.', like 'worker_0'; got {worker!r}"
        )
    entry: dict[str, JSON] = {
        "started_ns": time.time_ns(),
        "world_size": world_size,
        "framework": framework,
        "framework_version": framework_version,
        "tdcore_version": __version__,
        "host": socket.gethostname(),
        "pid": os.getpid() if pid is None else pid,
        "configuration": dict(configuration),
    }
    job = {name: os.environ[name] for name in _JOB if name in os.environ}
    if job and world_size > 1:
        entry["job"] = job
    if spool is not None:
        entry["spool"] = spool
    if workers:
        entry["workers"] = list(workers)
    check_configuration(configuration)
    claims = _claims(sink)  # first: without permission to list, a missing object raises a permission error
    run = _read_run(sink, where)
    if run and not {one["attempt"] for one in run["attempts"]} <= {number for number, _ in claims}:
        claims = _claims(sink)  # a newer claim, or an entry without a claim
    attempt = _claim(sink, worker, entry, claims, run)
    run_id = _enter(sink, where)
    earlier = _read_collections(sink, where, collections_key(worker, workers))
    return ClaimedAttempt(run_id=run_id, attempt=attempt, earlier_collections=earlier)


def check_configuration(configuration: Mapping[str, JSON]) -> None:
    """Raise ConfigError if the configuration cannot be stored."""
    try:
        json.dumps(configuration)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"configuration must be made of JSON values: {error}") from error


def _claim(
    sink: Sink,
    worker: str,
    entry: Mapping[str, JSON],
    claims: Sequence[tuple[int, str]],
    run: Mapping[str, Any] | None,
) -> int:
    first: dict[int, str] = {}  # attempt -> its first worker by name
    for number, name in sorted(claims):
        first.setdefault(number, name)
    entered = {one["attempt"]: one for one in run["attempts"]} if run else {}
    last = max((number for number, name in claims if name == worker), default=-1)
    attempt = max((*first, *entered), default=-1) + 1
    for number in sorted(first):  # numbers that a user or another tool has entered are never reused
        if number > last:
            said = entered.get(number) or _said(sink, f"attempts/{number:04d}-{first[number]}.json")
            same = all(said.get(what) == entry.get(what) for what in _SAME)
            if same and not _is_over(sink, first[number], number, said):
                attempt = number
                break
    while True:
        if attempt > MAX_ATTEMPT:
            raise ConfigError(f"the run already has attempt {MAX_ATTEMPT}, the last possible one; {_ADVICE}")
        document: dict[str, JSON] = {"attempt": attempt, **entry}
        if sink.put_new(f"attempts/{attempt:04d}-{worker}.json", [_dump(document)]):
            return attempt
        attempt += 1


def _said(sink: Sink, key: str) -> Mapping[str, Any]:
    """Content of a claim or an end file; empty when it does not exist or cannot be read."""
    try:
        return Fields(parse_json(sink.get(key), key), key).document
    except (SinkKeyError, RunCorrupt):
        return {}


def _is_over(sink: Sink, worker: str, number: int, claim: Mapping[str, Any]) -> bool:
    """Whether the attempt of a claim is over. False if this is unknown, for example between containers."""
    host, pid, started_ns = claimed_process(claim)
    if not pid:
        return False
    gone = process_is_gone(host, pid, started_ns)
    if gone is False:
        return False
    late = time.time_ns() - started_ns > _START_NS
    ended = bool(_said(sink, end_key(worker, number)))
    return late or ended if gone else late and ended  # unknown for another machine: both are needed


def _enter(sink: Sink, where: str) -> str:
    """Add the claimed attempts to run.json and return the id of the run."""
    for _ in range(_MAX_ROUNDS):
        run = _read_run(sink, where)
        entries: dict[int, Any] = {entry["attempt"]: entry for entry in run["attempts"]} if run else {}
        for number, worker in sorted(_claims(sink)):
            if number not in entries:
                entries[number] = _read_json(sink, f"attempts/{number:04d}-{worker}.json", where).document
        attempts = [entries[number] for number in sorted(entries)]
        if run is None:
            document: dict[str, Any] = {
                "format": FORMAT_VERSION,
                "run_id": uuid.uuid4().hex,
                "attempts": attempts,
            }
            # The worker that creates run.json sets the id of the run.
            sink.put_new(RUN_KEY, [_dump(document)])
        elif attempts == run["attempts"]:
            return str(run["run_id"])
        else:
            sink.put(RUN_KEY, [_dump({**run, "attempts": attempts})])
    raise RunCorrupt(
        f"{where}/{RUN_KEY} kept changing for {_MAX_ROUNDS} rounds; use one folder per training job"
    )


def _claims(sink: Sink) -> list[tuple[int, str]]:
    found = (_CLAIM.fullmatch(key) for key in sink.list("attempts/"))
    return [(int(match[1]), match[2]) for match in found if match]


def _read_run(sink: Sink, where: str) -> dict[str, Any] | None:
    """The checked contents of run.json; None if it does not exist."""
    try:
        data = sink.get(RUN_KEY)
    except SinkKeyError:
        return None
    try:
        return dict(parse_run(data, f"{where}/{RUN_KEY}").document)
    except RunCorrupt as error:
        raise type(error)(f"{error}; {_ADVICE}") from error


def _read_collections(sink: Sink, where: str, key: str) -> Mapping[str, JSON]:
    try:
        fields = _read_json(sink, key, where)
    except SinkKeyError:
        return {}
    attempts = fields.document.get("attempts")
    if not isinstance(attempts, dict):
        raise RunCorrupt(f"{where}/{key} has no attempts; {_ADVICE}")
    try:
        return expand_names(attempts)
    except ValueError as error:
        raise RunCorrupt(f"{where}/{key}: {error}; {_ADVICE}") from error


def _read_json(sink: Sink, key: str, where: str) -> Fields:
    data = sink.get(key)
    try:
        return Fields(parse_json(data, f"{where}/{key}"), f"{where}/{key}")
    except RunCorrupt as error:
        raise RunCorrupt(f"{error}; {_ADVICE}") from error


def _dump(document: Mapping[str, JSON]) -> bytes:
    return json.dumps(document, indent=1).encode()
