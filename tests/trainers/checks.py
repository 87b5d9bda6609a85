"""Starts trainers in their own processes, and checks their runs with pyarrow, without tdcore.trial."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import tdcore
from tdcore import _core
from tdcore.format import layout
from tests.signals import default_signals
from tests.trainers import quadratic
from tests.waiting import PATIENCE_SECONDS, wait_until

HERE = Path(__file__).resolve().parent


class Trainer:
    """One run of a script of this folder.

    signals: a context manager of tests/signals.py in which the script starts; by default, default signals.
    """

    def __init__(
        self,
        folder: Path,
        *,
        script: str = "quadratic.py",
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        signals: AbstractContextManager[None] | None = None,
        **job: Any,
    ) -> None:
        self.out = folder / "run"
        self.ledger = folder / "ledger.txt"
        self._go = folder / "go"
        self._output = folder / "output.txt"
        job = {"out": str(self.out), "ledger": str(self.ledger), "go": str(self._go), "steps": 40, **job}
        # The tdcore of the tests first, wherever it is installed; then this folder as tests.trainers.
        places = [os.path.dirname(os.path.abspath(tdcore.__path__[0])), str(HERE.parents[1])]
        with self._output.open("wb") as output, signals or default_signals():
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / script), json.dumps(job)],
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places), **(env or {})},
                start_new_session=True,  # so that a signal to its process group does not reach the tests
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def captured(self) -> list[tuple[int, int]]:
        """Return (step, tensors left out) of every capture that returned.

        An incomplete last line is ignored.
        """
        text = self.ledger.read_text() if self.ledger.exists() else ""
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(int(step), int(left_out)) for step, left_out in lines]

    def wait_for_steps(self, steps: int) -> None:
        wait_until(
            lambda: len(self.captured()) >= steps or self.process.poll() is not None,
            f"{steps} steps were captured",
        )
        assert len(self.captured()) >= steps, self.output

    def go_on(self) -> None:
        """Allow the step `wait_at`, before which the script waits."""
        self._go.touch()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def flushers(self) -> list[psutil.Process]:
        return flushers_of(self.out)

    def wait_for_flushers(self) -> None:
        """Wait until the flushers of the run have ended."""
        wait_until(lambda: not self.flushers(), f"the flusher of {self.out} ended")

    def stop(self) -> None:
        """Kill the trainer and its flushers, if they still run."""
        self.process.kill()
        for process in self.flushers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(PATIENCE_SECONDS)


def flushers_of(out: str | Path) -> list[psutil.Process]:
    """Return the living flusher processes of the run at `out`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        is_ours = "-c" in command and any(f'"out": "{out}"' in word for word in command)
        if is_ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def end_of(out: Path, attempt: int = 0, worker: str = "worker_0") -> dict[str, Any]:
    """Return the end document of an attempt."""
    document: dict[str, Any] = json.loads((out / layout.end_key(worker, attempt)).read_text())
    return document


def read_index(out: Path, attempt: int = 0, worker: str = "worker_0") -> pa.Table:
    """Return all rows of an attempt, in ticket order; check that its files cover one range without holes."""
    found = (
        layout.parse_index_key(f"index/{worker}/{path.name}")
        for path in (out / "index" / worker).glob("*.parquet")
    )
    ranges = layout.live_ranges(each for each in found if each and each.attempt == attempt)
    expected_first = 0
    for each in ranges:
        assert each.first == expected_first, f"hole or overlap before {each}"
        expected_first = each.last + 1
    schema: pa.Schema = layout.index_schema()
    if not ranges:
        return schema.empty_table()
    return pa.concat_tables([pq.read_table(out / each.index_key).cast(schema) for each in ranges])


class Segment:
    """One safetensors file, read only by its published layout."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = path.read_bytes()
        (header_bytes,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + header_bytes])
        spans = [tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"]
        assert 8 + header_bytes + max(end for _, end in spans) == len(data), (
            f"{path} is truncated or has additional bytes"
        )
        self._spans = {(8 + header_bytes + first, end - first) for first, end in spans}
        self._data = memoryview(data)

    def payload(self, row: Mapping[str, Any]) -> memoryview:
        """Return the bytes that a row refers to, after a check of the checksum and the header."""
        place = (row["offset"], row["nbytes"])
        assert place in self._spans, f"{self._path} declares no tensor at {place}"
        data = self._data[place[0] : sum(place)]
        assert _core.crc32c(data) == row["crc32c"], f"{row['name']} of step {row['step']} is damaged"
        return data


def check_run(out: Path, captured: list[tuple[int, int]], attempt: int = 0) -> int:
    """Check a run of quadratic.py against its ledger and a repeated training; return its number of rows.

    Every captured step has every tensor once; the step after the last one in the ledger may be there, because
    the trainer was killed between the capture and the ledger. Every payload has the right checksum and bits.
    """
    rows = read_index(out, attempt).to_pylist()
    kept = {step for step, left_out in captured if left_out == 0}
    assert len(kept) == len(captured), "this check is for runs that left nothing out"
    times = Counter((row["step"], row["name"], row["part"]) for row in rows)
    assert all(count == 1 for count in times.values()), "rows are doubled"
    names_of: dict[int, set[str]] = {}
    for row in rows:
        names_of.setdefault(row["step"], set()).add(row["name"])
    assert kept <= set(names_of), f"steps are missing: {sorted(kept - set(names_of))[:10]}"
    assert set(names_of) <= kept | {max(kept, default=-1) + 1}, "steps were invented"
    assert all(len(names) == len(quadratic.NAMES) for names in names_of.values()), "a step is incomplete"
    assert all(row["status"] == "ok" and row["segment"] is not None for row in rows), "a payload is missing"
    check_values(out, rows)
    return len(rows)


def check_values(out: Path, rows: list[dict[str, Any]]) -> None:
    """Check that every payload has the bits of a repeated training, and that statistics agree with them."""
    open_segment = lru_cache(maxsize=4)(lambda key: Segment(out / key))
    of_step: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        of_step.setdefault(row["step"], []).append(row)
    for step, tensors in quadratic.training(max(of_step, default=-1) + 1):
        for row in of_step.get(step, []):
            value = tensors[row["name"]]
            assert (row["dtype"], row["shape"], row["count"]) == ("F32", [value.size], value.size)
            assert (row["min"], row["max"]) == (float(value.min()), float(value.max())), (step, row["name"])
            if row["segment"] is not None:
                payload = open_segment(layout.segment_key(row["worker"], row["segment"])).payload(row)
                assert np.array_equal(np.frombuffer(payload, np.float32), value), (step, row["name"])
