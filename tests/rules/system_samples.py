"""Made-up system samples and times of steps: written into a run, or judged as a table that is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.flusher.row_tables import to_parquet
from tdcore.flusher.system.recorder import sample_columns
from tdcore.format.layout import FileRange
from tdcore.format.step_times import STEP_TIME_FILES, step_time_schema
from tdcore.format.system import SYSTEM_FILES
from tdcore.rules.base import Finding, Rule, Verdict
from tdcore.rules.engine import Engine
from tdcore.rules.safe_pickle import dump, load
from tdcore.rules.source import RowBatch
from tdcore.rules.table_source import TableSource
from tdcore.rules.trace import Trace
from tests.rules.judging import by_key, judge
from tests.rules.trainings import judge_run
from tests.trial.writer import RunWriter

__all__ = [
    "START_NS",
    "gpu",
    "judged_in_a_run",
    "judged_trace_in_a_run",
    "same_in_any_cuts",
    "summary_in_cuts",
    "trace_of",
    "write_samples",
    "write_step_times",
]

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
    return judged_trace_in_a_run(rule, place, trace_of(rows), per_file=per_file)


def judged_trace_in_a_run(
    rule: Rule, place: Path, trace: Trace, *, per_file: int = 400
) -> tuple[list[Finding], Verdict]:
    """Write a run with a tensor, and the samples and times of steps of a trace, and judge the run."""
    ranks = sorted({worker for _, worker in trace.step_times}) or ["worker_0"]
    for worker in ranks:
        run = RunWriter(place, worker=worker, world_size=len(ranks))
        run.add("loss", 1.0, step=0, kind="loss")
        run.flush()
        run.end()
    origins: dict[tuple[str, str], list[Row]] = {}
    for sample in trace.samples:
        origins.setdefault((sample["worker"], sample["host"]), []).append(sample)
    for (worker, host), rows in origins.items():
        for first in range(0, len(rows), per_file):
            part = rows[first : first + per_file]
            write_samples(place, part, first=first, worker=worker, host=host)
    write_step_times(place, trace, per_file=per_file)
    return judge_run(rule, place)


def write_step_times(
    root: Path, trace: Trace, *, per_file: int = 400, first: int = 0, end: int | None = None
) -> None:
    """Write the rows `first` to `end` of the times of steps of a trace, as the flusher does."""
    for (attempt, worker), rows in trace.step_times.items():
        last = len(rows) if end is None else min(end, len(rows))
        for begin in range(first, last, per_file):
            part = rows[begin : min(begin + per_file, last)]
            place = FileRange(worker, attempt, begin, begin + len(part) - 1)
            columns = pa.Table.from_pylist(part, schema=step_time_schema()).to_pydict()
            columns |= {"attempt": [attempt] * len(part), "worker": [worker] * len(part)}
            path = root / STEP_TIME_FILES.key("", place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(to_parquet(columns, STEP_TIME_FILES.schema(), RUN_ID))


class _Cut(TableSource):
    """The samples and times of steps of a trace, in pieces that end at random times.

    A step is in the piece in which it ends. Within a piece, the workers come in random order.
    """

    def __init__(self, trace: Trace, random: np.random.Generator, pieces: int) -> None:
        super().__init__(trace.table(), step_times=trace.step_time_table() if trace.step_times else None)
        samples, steps = trace.sample_table(), trace.step_time_table()
        sampled = samples["time_ns"].to_numpy()
        ended = steps["time_ns"].to_numpy() + steps["duration_ns"].to_numpy()
        times = np.concatenate([sampled, ended])
        low, high = int(times.min()), int(times.max()) + 1
        ends = [low - 1, *np.sort(random.integers(low, high, pieces)).tolist(), high]
        self.pieces: list[tuple[list[pa.Table], list[pa.Table]]] = [
            ([], [])
        ]  # the one of the time before the first call of next()
        for after, last in pairwise(ends):
            of_samples = samples.filter((sampled > after) & (sampled <= last))
            of_steps = steps.filter((ended > after) & (ended <= last))
            self.pieces.append(([of_samples], _shuffled(of_steps, random)))

    def samples(self) -> Iterator[pa.Table]:
        """Return the samples of the piece."""
        yield from self.pieces[0][0]

    def step_times(self) -> Iterator[pa.Table]:
        """Return the times of steps of the piece."""
        yield from self.pieces[0][1]

    def next(self, columns: Sequence[str], *, everything: bool = False) -> RowBatch:
        """Begin the next piece."""
        self.pieces.pop(0)
        return super().next(columns, everything=everything)


def _shuffled(steps: pa.Table, random: np.random.Generator) -> list[pa.Table]:
    """Return the rows of each worker, the workers in random order."""
    workers = pc.unique(steps["worker"].cast(pa.string())).to_pylist()
    random.shuffle(workers)
    return [steps.filter(pc.equal(steps["worker"].cast(pa.string()), worker)) for worker in workers]


def same_in_any_cuts(rule: Rule, trace: Trace, *, seeds: int = 4) -> list[Finding]:
    """Return the findings over the whole trace; assert that samples in pieces have the same findings.

    Each piece has its own engine with the state of the previous engine, as after a restart of a runner.
    """
    whole = by_key(judge(rule, trace)[0])
    for seed in range(seeds):
        found, _ = _judged_in_cuts(rule, trace, seed)
        assert by_key(found) == whole
    return whole


def summary_in_cuts(rule: Rule, trace: Trace, seed: int) -> Any:
    """Return the summary in the verdict of a rule that gets the rows in pieces, with restarts."""
    _, engine = _judged_in_cuts(rule, trace, seed)
    return engine.verdicts(finished=True)[0].summary


def _judged_in_cuts(rule: Rule, trace: Trace, seed: int) -> tuple[list[Finding], Engine]:
    source = _Cut(trace, np.random.default_rng(seed), 3 * seed + 1)
    engine = Engine(source, [rule])
    found: list[Finding] = []
    while len(source.pieces) > 1:
        found += engine.step()
        assert not engine._runs[0].error, engine._runs[0].error
        state = load(dump(engine.state()), {type(rule).__module__})
        engine = Engine(source, [rule])
        engine.restore(state)
    return found, engine
