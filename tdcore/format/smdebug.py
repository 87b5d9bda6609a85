"""Names of the files in a recording of smdebug, the library of Amazon SageMaker Debugger.

    collections/<number>/<worker>_collections.json      collections of one worker
    index/<number>/<step>_<worker>.json                 tensors of one worker and step, with their places
    events/<step>/<step>_<worker>.tfevents              the tensors
    training_job_end.ts                                 the training has closed its hook

Steps are global steps of the worker, with twelve digits. Pure functions, any thread.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = [
    "COLLECTIONS_FOLDER",
    "END_MARKERS",
    "INDEX_FOLDER",
    "StepKey",
    "collections_worker",
    "parse_step_key",
    "recording_of",
    "run_worker",
]

COLLECTIONS_FOLDER = "collections"
INDEX_FOLDER = "index"
END_MARKERS = ("training_job_end.ts", "END_OF_JOB.ts")

_COLLECTIONS = re.compile(r"collections/[0-9]{1,20}/(?P<worker>[^/]{1,200})_collections\.json")
_INDEX = re.compile(r"index/[0-9]{1,20}/(?P<step>[0-9]{12})_(?P<worker>[^/]{1,200})\.json")
_INVALID = re.compile(r"[^A-Za-z0-9_.-]")


class StepKey(NamedTuple):
    """An index file: one step of one worker. worker: the name in the recording."""

    worker: str
    step: int
    key: str


def collections_worker(key: str) -> str | None:
    """The worker of a file of collections; None for any other key."""
    match = _COLLECTIONS.fullmatch(key)
    return None if match is None else match["worker"]


def parse_step_key(key: str) -> StepKey | None:
    """The step and worker of an index file; None for any other key."""
    match = _INDEX.fullmatch(key)
    return None if match is None else StepKey(match["worker"], int(match["step"]), key)


def recording_of(key: str) -> str:
    """The prefix of the recording that has a file of collections with this key; "" for other files."""
    above, _, name = key.rpartition(f"/{COLLECTIONS_FOLDER}/")
    return above if collections_worker(f"{COLLECTIONS_FOLDER}/{name}") is not None else ""


def run_worker(worker: str) -> str:
    """The name in a run for a worker of a recording.

    A device of TensorFlow ("_job-worker_replica-0_...") loses its first characters, because the name of a
    worker begins with a letter or digit.
    """
    return _INVALID.sub("-", worker).lstrip("_.-")[:128] or "worker"
