"""Made-up system samples: written into a run, or judged as a table that is cut at random places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tdcore.flusher.row_tables import to_parquet
from tdcore.flusher.system.recorder import sample_columns
from tdcore.format.layout import FileRange
from tdcore.format.system import SYSTEM_FILES
from tdcore.rules.base import Finding, Rule, Verdict
from tdcore.rules.engine import Engine
from tdcore.rules.safe_pickle import dump, load
from tdcore.rules.table_source import TableSource
from tdcore.rules.trace import Trace
from tests.rules.judging import by_key, judge
from tests.rules.trainings import judge_run
from tests.trial.writer import RunWriter

__all__ = ["START_NS", "gpu", "judged_in_a_run", "same_in_any_cuts", "trace_of", "write_samples"]

START_NS = 1_700_000_000_000_000_000
RUN_ID = "0123"  # of RunWriter
Row = dict[str, Any]


def gpu(utilization: float | None = None, *, index: int = 0, **fields: Any) -> Row:
    """Return one entry of the column gpus."""
    return {"index": index, "utilization_percent": utilization, **fields}


def trace_of(rows: Sequence[Row], **origin: Any) -> Trace:
    """Return a trace with these samples."""
    trace = Trace()
    for row in rows:
        trace.add_sample(**origin, **row)
    return trace


def write_samples(
    root: Path,
    rows: Sequence[Row],
    *,
    first: int = 0,
    worker: str = "worker_0",
    attempt: int = 0,
    host: str = "node-1",
    interval_ms: int = 500,
    run_id: str = RUN_ID,
) -> Path:
    """Write one file of samples as the flusher does, and return its path."""
    place = FileRange(worker, attempt, first, first + len(rows) - 1)
    timed = [
        {"time_ns": START_NS + 1_000_000 * interval_ms * (first + number), "lost": 0, **row}
        for number, row in enumerate(rows)
    ]
    path = root / SYSTEM_FILES.key(host, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_parquet(sample_columns(timed, place, host), SYSTEM_FILES.schema(), run_id))
    return path


def judged_in_a_run(
    rule: Rule, place: Path, rows: Sequence[Row], *, per_file: int = 400
) -> tuple[list[Finding], Verdict]:
    """Write a run with a tensor and these samples; return the findings of a rule, and its verdict."""
    run = RunWriter(place)
    run.add("loss", 1.0, step=0, kind="loss")
    run.flush()
    for first in range(0, len(rows), per_file):
        write_samples(place, rows[first : first + per_file], first=first)
    run.end()
    return judge_run(rule, place)


class _Cut(TableSource):
    """The samples of a trace, in pieces of random sizes."""

    def __init__(self, trace: Trace, random: np.random.Generator, pieces: int) -> None:
        super().__init__(trace.table())
        whole = trace.sample_table()
        ends = np.sort(random.integers(0, len(whole) + 1, pieces))
        cuts = [0, *ends.tolist(), len(whole)]
        self.pieces = [whole.slice(first, last - first) for first, last in pairwise(cuts)]

    def samples(self) -> Iterator[pa.Table]:
        """Return the next piece."""
        yield self.pieces.pop(0)


def same_in_any_cuts(rule: Rule, trace: Trace, *, seeds: int = 4) -> list[Finding]:
    """Return the findings over the whole trace; assert that samples in pieces have the same findings.

    Each piece is judged by an engine of its own with the state of the one before, as when a runner restarts.
    """
    whole = by_key(judge(rule, trace)[0])
    for seed in range(seeds):
        source = _Cut(trace, np.random.default_rng(seed), 3 * seed + 1)
        engine = Engine(source, [rule])
        found: list[Finding] = []
        while source.pieces:
            found += engine.step()
            assert not engine._runs[0].error, engine._runs[0].error
            state = load(dump(engine.state()), {type(rule).__module__})
            engine = Engine(source, [rule])
            engine.restore(state)
        assert by_key(found) == whole
    return whole
