"""Checks the bucket after a job: every committed tensor is there once, with its bytes; totals are exact.

Reads index files and segments with pyarrow by their documented layout, and then again through create_trial.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tdcore import _core
from tdcore.format import layout
from tdcore.format.step_times import STEP_TIME_FILES
from tdcore.format.system import SYSTEM_FILES
from tdcore.trial import create_trial
from tests.faults.outcome import Outcome
from tests.faults.values import Spec, value

__all__ = ["Checked", "check_bucket", "check_trial"]

_WORKER = "worker_0"
_OTHER_FILES = {layout.RUN_KEY, layout.COLLECTIONS_KEY, f"attempts/0000-{_WORKER}.json"}
_COLUMNS = ["ticket", "step", "name", "part", "parts", "status", "reason", "segment", "offset", "nbytes"]
_COLUMNS += ["crc32c"]
Row = dict[str, Any]
Objects = Mapping[str, bytes]
Keys = frozenset[tuple[str, int]]  # name, step


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Result of the checks.

    kept: (name, step) of every complete tensor. strays: number of unneeded objects.
    """

    kept: Keys
    dropped: int
    strays: int


def check_bucket(objects: Objects, specs: Sequence[Spec], outcome: Outcome) -> Checked:
    """Check the objects of the run. Raises AssertionError with the problem.

    objects: all objects of the run, by relative key.
    """
    live = _live(objects)
    rows = [row for place in live for row in _rows(objects, place)]
    kept = _check_payloads(objects, rows, {spec.name: spec for spec in specs})
    _check_steps(rows, kept, specs, outcome)
    dropped = 0
    if not outcome.lossy:
        end = json.loads(objects[layout.end_key(_WORKER, 0)])
        _check_end(end, rows, live, outcome)
        dropped = _check_drops(end, kept, specs, outcome)
    return Checked(kept=kept, dropped=dropped, strays=_count_strays(objects, live, rows))


def check_trial(url: str, specs: Sequence[Spec], checked: Checked, outcome: Outcome) -> None:
    """Check the same tensors through create_trial, as a user reads them."""
    trial = create_trial(url)
    try:
        known = set(trial.tensor_names())
        assert known >= {name for name, _ in checked.kept}, "create_trial has fewer tensors"
        for spec in (spec for spec in specs if spec.name in known):
            expected = {step for name, step in checked.kept if name == spec.name}
            tensor = trial.tensor(spec.name)
            found = tensor.values()
            if outcome.lossy:  # then the last step may be incomplete
                found |= {step: tensor.value(step) for step in expected - set(found)}
            assert set(found) == expected, f"create_trial returns other steps of {spec.name}"
            for step, data in found.items():
                wanted = value(spec, step)
                assert (data.dtype, data.shape) == (wanted.dtype, wanted.shape), (spec.name, step)
                assert data.tobytes() == wanted.tobytes(), f"create_trial: {spec.name} of step {step}"
        if not outcome.lossy:
            missing = trial.missing()
            assert {one.what for one in missing} <= {"gap"}, f"create_trial misses {missing}"
            assert checked.dropped or not missing, (
                f"create_trial has no {missing}, although nothing was dropped"
            )
            assert trial.status == ("ended" if outcome.clean else "died"), trial.status
    finally:
        trial.close()


def _live(objects: Objects) -> list[layout.FileRange]:
    """Return the index files to read; check that their ticket ranges are contiguous from 0."""
    found = [layout.parse_index_key(key) for key in objects if key.startswith(layout.INDEX_PREFIX)]
    assert all(found), "index/ contains an object that is not an index file"
    live = layout.live_ranges(each for each in found if each is not None)
    following = 0
    for each in live:
        assert (each.worker, each.attempt) == (_WORKER, 0), f"{each} belongs to no worker of the job"
        assert each.first == following, f"hole or overlap before ticket {each.first}, expected {following}"
        following = each.last + 1
    return live


def _rows(objects: Objects, place: layout.FileRange) -> list[Row]:
    table = pq.read_table(pa.BufferReader(objects[place.index_key]))
    rows: list[Row] = table.select(_COLUMNS).to_pylist()
    assert all(place.first <= row["ticket"] <= place.last for row in rows), (
        f"{place} has rows outside of its range"
    )
    return rows


def _check_payloads(objects: Objects, rows: Sequence[Row], specs: Mapping[str, Spec]) -> Keys:
    """Check the checksum and value of every payload; return the tensors with all their parts."""
    parts: defaultdict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
    times = Counter((row["name"], row["step"], row["part"]) for row in rows)
    assert not [key for key, count in times.items() if count > 1], "rows are there twice"
    whole: dict[tuple[str, int], int] = {}
    for row in rows:
        whole_row = row["status"] == "ok" and row["reason"] is None  # "degraded": only statistics
        assert whole_row == (row["segment"] is not None), f"status and segment contradict each other: {row}"
        if row["segment"] is None:
            continue
        key = layout.segment_key(_WORKER, row["segment"])
        assert key in objects, f"{row['name']} of step {row['step']}: its segment {key} is missing"
        data = objects[key][row["offset"] : row["offset"] + row["nbytes"]]
        assert len(data) == row["nbytes"], f"{key} is too short for {row['name']} of step {row['step']}"
        assert _core.crc32c(data) == row["crc32c"], (
            f"{row['name']} of step {row['step']} has a wrong checksum"
        )
        parts[row["name"], row["step"]][row["part"]] = data
        whole[row["name"], row["step"]] = row["parts"]
    kept = {key for key, pieces in parts.items() if len(pieces) == whole[key]}
    for name, step in kept:
        data = b"".join(parts[name, step][part] for part in sorted(parts[name, step]))
        assert data == value(specs[name], step).tobytes(), f"{name} of step {step} has other bytes"
    return frozenset(kept)


def _check_steps(rows: Sequence[Row], kept: Keys, specs: Sequence[Spec], outcome: Outcome) -> None:
    """Check that there are no extra steps, and that no tensor is missing where none was dropped."""
    steps = {row["step"] for row in rows}
    known = set(outcome.captured) | outcome.unsure
    assert steps <= known, f"steps were invented: {sorted(steps - known)[:10]}"
    if outcome.lossy:
        return
    lost: list[tuple[int, str]] = []
    for step, left_out in outcome.captured.items():
        missing = [spec.name for spec in specs if (spec.name, step) not in kept]
        assert len(missing) >= left_out, f"step {step}: {left_out} were left out, {len(missing)} are missing"
        lost += [(step, name) for name in missing[left_out:]]
    given_up = (outcome.drops or {}).get("io_error", 0)
    if outcome.drops is not None and not outcome.unsure:
        # A killed flusher may have counted a tensor as dropped although its upload succeeded.
        exact = given_up == len(lost) or (outcome.restarts and given_up > len(lost))
        assert exact, (
            f"{len(lost)} tensors are missing, {given_up} were counted as given up; missing are {lost}"
        )


def _check_drops(end: Mapping[str, Any], kept: Keys, specs: Sequence[Spec], outcome: Outcome) -> int:
    """Check that every tensor is either kept or counted once; return the number of dropped tensors."""
    counted = {reason: drop["tensors"] for reason, drop in end["drops"].items() if drop["tensors"]}
    if outcome.drops is not None:
        assert counted == dict(outcome.drops), f"end/ counts {counted}, the ring {dict(outcome.drops)}"
    dropped: int = sum(counted.values())
    torn = counted.get("torn", 0)
    at_capture = dropped - counted.get("io_error", 0) - torn
    offered = end["totals"]["captured_tensors"] + at_capture - counted.get("degraded", 0)
    given = len(kept) + dropped
    assert offered <= given, f"{offered} offered, {given} kept or counted"
    assert torn or given <= offered or outcome.restarts, f"{offered} offered, {given} kept or counted"
    if not outcome.unsure:
        all_ = len(outcome.captured) * len(specs)
        assert offered == all_, f"{all_} were offered, end/ counts {offered}"
        left_out = sum(outcome.captured.values())
        assert at_capture == left_out, f"captures left {left_out} out, {at_capture} were counted"
    in_gaps = [gap for gap in end["gaps"] if gap["reason"] == "io_error"]
    if all(gap["tensors"] is not None for gap in in_gaps):
        told = sum(gap["tensors"] for gap in in_gaps)
        assert told == counted.get("io_error", 0), f"gaps have {told} tensors, the counters {counted}"
    return dropped


def _check_end(
    end: Mapping[str, Any], rows: Sequence[Row], live: Sequence[layout.FileRange], outcome: Outcome
) -> None:
    totals = end["totals"]
    true = {
        "rows": len(rows),
        "records": live[-1].last + 1 if live else 0,
        "payload_bytes": sum(row["nbytes"] for row in rows if row["segment"] is not None),
    }
    told = {name: totals[name] for name in true}
    assert told == true, f"end/ has {told}, expected {true}"
    assert end["clean"] == outcome.clean, f"end/ has clean = {end['clean']}"
    assert end["flusher_restarts"] <= outcome.restarts, (
        f"end/ has {end['flusher_restarts']} restarts, at most {outcome.restarts} happened"
    )
    assert end["last_step"] == max((row["step"] for row in rows), default=-1), "end/ has another last step"
    assert np.isfinite(end["ended_ns"])


def _count_strays(objects: Objects, live: Sequence[layout.FileRange], rows: Sequence[Row]) -> int:
    """Return the number of unneeded objects. Raises AssertionError for objects that no flusher writes."""
    needed = {place.index_key for place in live} | {layout.end_key(_WORKER, 0)} | _OTHER_FILES
    needed |= {layout.segment_key(_WORKER, row["segment"]) for row in rows if row["segment"]}
    strays = set(objects) - needed
    strays = {key for key in strays if SYSTEM_FILES.parse(key) is None and STEP_TIME_FILES.parse(key) is None}
    foreign = [key for key in strays if not layout.parse_index_key(key) and not layout.parse_data_key(key)]
    assert not foreign, f"foreign objects: {foreign[:5]}"
    return len(strays)
