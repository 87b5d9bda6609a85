"""The run on disk: names of its files, columns of its index, codes in its rows.

    run.json                        the run, with one entry per attempt
    collections.json                collections with their tensors
    collections/<worker>.json       the same for each further worker of a job
    index/<worker>/<range>.parquet       one row per tensor and step
    data/<worker>/<range>.safetensors    payloads ("segments") that rows refer to
    findings/<rule>.jsonl           findings of rules
    control/stop-<attempt>.json     request to stop that attempt
    control/capture-<attempt>-<number>.json   requests to capture more for some steps, numbered from 0
    end/<worker>/<attempt>.json     how that attempt ended

Keys are relative to the run and always use "/". <range> is <attempt:04d>-<first:012d>-<last:012d>: the ring
tickets, inclusive, that it covers. The index files of one worker and attempt cover all tickets from 0 without
gaps. A file supersedes another file whose range is inside its own: `live_ranges` selects the files to read.
Pure functions without input or output, any thread. The first use of INDEX_SCHEMA imports pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    INDEX_SCHEMA: pa.Schema

__all__ = [
    "COLLECTIONS_KEY",
    "COLLECTIONS_PREFIX",
    "CONTROL_PREFIX",
    "DATA_PREFIX",
    "END_PREFIX",
    "EPOCH_SCALAR",
    "FINDINGS_PREFIX",
    "FORMAT_VERSION",
    "INDEX_PREFIX",
    "INDEX_SCHEMA",
    "LEFT_OUT_NOTE",
    "LOG2_MIN",
    "MAX_ATTEMPT",
    "MAX_NAME_CHARS",
    "PAD_PREFIX",
    "PROFILES_PREFIX",
    "RUN_KEY",
    "STATISTICS_COLUMNS",
    "STATUSES",
    "SUMMARY_KEY",
    "FileRange",
    "TensorKind",
    "capture_key",
    "collections_key",
    "data_key",
    "data_prefix",
    "end_key",
    "findings_key",
    "index_key",
    "index_prefix",
    "index_schema",
    "live_ranges",
    "parse_data_key",
    "parse_end_key",
    "parse_index_key",
    "parse_segment_name",
    "said_run_id",
    "segment_key",
    "segment_name",
    "size_limit",
    "stop_key",
    "valid_worker",
    "whole_step",
    "worker_name",
]

FORMAT_VERSION = 1
RUN_KEY = "run.json"
COLLECTIONS_KEY = "collections.json"
COLLECTIONS_PREFIX = "collections/"
INDEX_PREFIX = "index/"
DATA_PREFIX = "data/"
FINDINGS_PREFIX = "findings/"
END_PREFIX = "end/"
CONTROL_PREFIX = "control/"
PROFILES_PREFIX = "profiles/"  # format/profiles.py
SUMMARY_KEY = b"tdcore"  # key of the summary in an index file's metadata (flusher/index_summary.py)
PAD_PREFIX = "__pad__"  # names of the tensors that only fill gaps in a segment
EPOCH_SCALAR = "epoch"  # name of the number that Hook.set_epoch() sets, in the first saved step of an epoch
LEFT_OUT_NOTE = "names_left_out"  # heading in collections.json (hooks/left_out.py, trial/left_out.py)
# Maximum length of a text in the index. Readers reject longer texts, so the writer rejects them too.
MAX_NAME_CHARS = 65536
MAX_ATTEMPT = 10**4 - 1  # highest number of an attempt
LOG2_MIN = -40  # exponent of bin 0 of TensorStats.log2_counts

STATUSES = ("ok", "absent", "skipped", "lost")
STATISTICS_COLUMNS = (
    "count",
    "nan_count",
    "pos_inf_count",
    "neg_inf_count",
    "zero_count",
    "subnormal_count",
    "min",
    "max",
    "mean",
    "m2",
    "abs_sum",
    "square_sum",
    "abs_min",
    "abs_max",
    "log2_first",
    "log2_counts",
)

_MAX_DOCUMENT_BYTES = 64 << 20
_MAX_COLLECTIONS_BYTES = 256 << 20  # it has the names of the tensors of all attempts
_MAX_CONTROL_BYTES = 1 << 20
_MAX_TICKET = 10**12 - 1
_WORKER = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_RANGE = r"(?P<attempt>[0-9]{4})-(?P<first>[0-9]{12})-(?P<last>[0-9]{12})"
_WORKER_PATTERN = re.compile(_WORKER, re.ASCII)
_RULE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_INDEX_PATTERN = re.compile(rf"index/(?P<worker>{_WORKER})/{_RANGE}\.parquet", re.ASCII)
_DATA_PATTERN = re.compile(rf"data/(?P<worker>{_WORKER})/{_RANGE}\.safetensors", re.ASCII)
_SEGMENT_PATTERN = re.compile(rf"{_RANGE}\.safetensors", re.ASCII)
_END_PATTERN = re.compile(rf"end/(?P<worker>{_WORKER})/(?P<attempt>[0-9]{{4}})\.json", re.ASCII)


class TensorKind(IntEnum):
    """Role of a tensor in the training. Stored lower-case in the `kind` column; append only."""

    WEIGHT = 1
    BIAS = 2
    GRADIENT = 3
    OUTPUT = 4
    INPUT = 5
    LOSS = 6
    SCALAR = 7
    OPTIMIZER_STATE = 8
    HYPERPARAMETER = 9
    CUSTOM = 10
    METRIC = 11
    REDUCTION = 12
    OUTPUT_GRADIENT = 13

    @property
    def label(self) -> str:
        """The word in the index: "optimizer_state"."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, order=True)
class FileRange:
    """Range of tickets, inclusive, of an index file or a segment."""

    worker: str
    attempt: int
    first: int
    last: int

    def contains(self, other: FileRange) -> bool:
        """Whether this file supersedes `other` (or is the same file)."""
        return (
            self.worker == other.worker
            and self.attempt == other.attempt
            and self.first <= other.first
            and other.last <= self.last
        )

    @property
    def index_key(self) -> str:
        """Key of the index file of this range."""
        return index_key(self.worker, self.attempt, self.first, self.last)

    @property
    def data_key(self) -> str:
        """Key of the segment of this range."""
        return data_key(self.worker, self.attempt, self.first, self.last)


def worker_name(rank: int) -> str:
    """Name of the worker of a rank: "worker_0"."""
    if rank < 0:
        raise ValueError(f"rank must be 0 or more, got {rank}")
    return f"worker_{rank}"


def valid_worker(worker: str) -> bool:
    """Whether a name is safe as one folder of a key."""
    return _WORKER_PATTERN.fullmatch(worker) is not None


def index_prefix(worker: str) -> str:
    """Prefix of the index files of a worker."""
    return f"{INDEX_PREFIX}{_checked_worker(worker)}/"


def data_prefix(worker: str) -> str:
    """Prefix of the segments of a worker."""
    return f"{DATA_PREFIX}{_checked_worker(worker)}/"


def index_key(worker: str, attempt: int, first: int, last: int) -> str:
    """Key of the index file of the tickets from `first` to `last`, both included."""
    return f"{index_prefix(worker)}{_range_name(attempt, first, last)}.parquet"


def segment_name(attempt: int, first: int, last: int) -> str:
    """File name of a segment, as in the column `segment`."""
    return f"{_range_name(attempt, first, last)}.safetensors"


def segment_key(worker: str, segment: str) -> str:
    """Key of the segment that a row names. Raises ValueError unless the name is a plain segment name."""
    if parse_segment_name(segment) is None:
        raise ValueError(
            f"segment {segment!r} is not a segment name ('<attempt>-<first>-<last>.safetensors'); "
            "the index file that names it is damaged"
        )
    return data_prefix(worker) + segment


def data_key(worker: str, attempt: int, first: int, last: int) -> str:
    """Key of the segment with the tickets from `first` to `last`, both included."""
    return data_prefix(worker) + segment_name(attempt, first, last)


def collections_key(worker: str, workers: Sequence[str]) -> str:
    """Key of the collections of a worker of a job. The first worker writes collections.json."""
    if worker in workers[1:]:
        return f"{COLLECTIONS_PREFIX}{_checked_worker(worker)}.json"
    return COLLECTIONS_KEY


def end_key(worker: str, attempt: int) -> str:
    """Key of the file about the end of an attempt."""
    return f"{END_PREFIX}{_checked_worker(worker)}/{_checked_attempt(attempt):04d}.json"


def stop_key(attempt: int) -> str:
    """Key of the request to stop an attempt."""
    return f"{CONTROL_PREFIX}stop-{_checked_attempt(attempt):04d}.json"


def capture_key(attempt: int, number: int) -> str:
    """Key of the n-th request, from 0, to capture more in an attempt."""
    if not 0 <= number <= MAX_ATTEMPT:
        raise ValueError(f"requests are numbered 0 to {MAX_ATTEMPT}, got {number}")
    return f"{CONTROL_PREFIX}capture-{_checked_attempt(attempt):04d}-{number:04d}.json"


def findings_key(rule: str) -> str:
    """Key of the findings of a rule. Raises ValueError for a name that cannot be a file name."""
    if _RULE_PATTERN.fullmatch(rule) is None:
        raise ValueError(f"rule name {rule!r} cannot be a file name; use letters, digits, '_', '-' and '.'")
    return f"{FINDINGS_PREFIX}{rule}.jsonl"


def size_limit(key: str) -> int | None:
    """Largest size in bytes of a file that is read whole; None for files that are read in pieces.

    Index files and segments contain their own sizes, which are checked.
    """
    if key.startswith(CONTROL_PREFIX):
        return _MAX_CONTROL_BYTES
    if key == COLLECTIONS_KEY or key.startswith(COLLECTIONS_PREFIX):
        return _MAX_COLLECTIONS_BYTES
    return None if key.startswith((INDEX_PREFIX, DATA_PREFIX)) else _MAX_DOCUMENT_BYTES


def parse_index_key(key: str) -> FileRange | None:
    """Range of an index file; None for any other key."""
    return _parse_range(_INDEX_PATTERN, key)


def parse_data_key(key: str) -> FileRange | None:
    """Range of a segment; None for any other key."""
    return _parse_range(_DATA_PATTERN, key)


def parse_segment_name(name: str) -> tuple[int, int, int] | None:
    """(attempt, first, last) of a segment's file name; None for any other name."""
    match = _SEGMENT_PATTERN.fullmatch(name)
    if match is None:
        return None
    attempt, first, last = (int(match[group]) for group in ("attempt", "first", "last"))
    return (attempt, first, last) if first <= last else None


def parse_end_key(key: str) -> tuple[str, int] | None:
    """(worker, attempt) of an end file; None for any other key."""
    match = _END_PATTERN.fullmatch(key)
    return None if match is None else (match["worker"], int(match["attempt"]))


def live_ranges(ranges: Iterable[FileRange]) -> list[FileRange]:
    """The files to read, which no other file supersedes, by worker, attempt and first ticket."""
    live: list[FileRange] = []
    for each in sorted(set(ranges), key=lambda r: (r.worker, r.attempt, r.first, -r.last)):
        if not live or not live[-1].contains(each):
            live.append(each)
    return live


@cache
def index_schema() -> pa.Schema:
    """Columns of an index file, in order. Same object as INDEX_SCHEMA."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    int64, float64 = pa.int64(), pa.float64()
    # The row's values are the box of its shape at `offset` in a tensor of `global_shape`. With `partial`, the
    # name of a reduction ("sum"), they are one worker's operand of the reduction.
    shard = pa.struct(
        [("global_shape", pa.list_(int64)), ("offset", pa.list_(int64)), ("partial", pa.string())]
    )
    fields: list[tuple[str, pa.DataType, bool]] = [
        ("attempt", pa.int32(), False),
        ("worker", word, False),
        ("ticket", int64, False),
        ("mode", word, False),
        ("mode_step", int64, False),
        ("step", int64, False),
        ("seq", pa.int32(), False),
        ("name", word, False),
        ("kind", word, False),
        ("origin", word, True),
        ("call", pa.int32(), False),
        ("dtype", word, True),
        ("shape", pa.list_(int64), True),
        ("part", pa.int32(), False),
        ("parts", pa.int32(), False),
        ("element_offset", int64, False),
        ("elements", int64, False),
        ("shard", shard, True),
        ("time_ns", int64, False),
        ("status", word, False),
        ("reason", word, True),
        ("segment", word, True),
        ("offset", int64, True),
        ("nbytes", int64, True),
        ("crc32c", pa.uint32(), True),
    ]
    floats = {"min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_min", "abs_max"}
    for name in STATISTICS_COLUMNS:
        kind = float64 if name in floats else int64
        if name == "log2_first":
            kind = pa.int8()
        elif name == "log2_counts":
            kind = pa.list_(int64)
        fields.append((name, kind, True))
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields])


def _parse_range(pattern: re.Pattern[str], key: str) -> FileRange | None:
    match = pattern.fullmatch(key)
    if match is None:
        return None
    found = FileRange(match["worker"], int(match["attempt"]), int(match["first"]), int(match["last"]))
    return found if found.first <= found.last else None


def _range_name(attempt: int, first: int, last: int) -> str:
    if not 0 <= first <= last <= _MAX_TICKET:
        raise ValueError(f"tickets must be 0 <= first <= last <= {_MAX_TICKET}, got {first} and {last}")
    return f"{_checked_attempt(attempt):04d}-{first:012d}-{last:012d}"


def _checked_attempt(attempt: int) -> int:
    if not 0 <= attempt <= MAX_ATTEMPT:
        raise ValueError(f"attempt must be 0 to {MAX_ATTEMPT}, got {attempt}; start a new run folder")
    return attempt


def _checked_worker(worker: str) -> str:
    if not valid_worker(worker):
        raise ValueError(f"worker {worker!r} cannot be a folder name; use letters, digits, '_', '-' and '.'")
    return worker


def said_run_id(metadata: Mapping[bytes, bytes] | None) -> str:
    """The id of the run in the metadata of an index file; "" in files of older versions."""
    try:
        run_id = json.loads((metadata or {})[SUMMARY_KEY])["run_id"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ""
    return run_id if isinstance(run_id, str) else ""


def whole_step(metadata: Mapping[bytes, bytes] | None) -> int | None:
    """The highest complete step in the metadata of an index file.

    None if it is missing or invalid; the rows of the file are valid without it.
    """
    try:
        step = json.loads((metadata or {})[SUMMARY_KEY])["whole_step"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return step if type(step) is int else None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "INDEX_SCHEMA":
            return index_schema()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
