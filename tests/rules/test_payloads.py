"""Rules that read payloads, on runs on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tdcore.rules import DeadRelu, Engine, Status
from tdcore.rules.run_source import RunSource
from tests.trial.writer import RunWriter


def dead_layer() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    values = np.zeros((8, 10), dtype=np.float32)
    values[:, 0] = 1.0
    return values


def write(run: RunWriter, step: int, *, parts: int = 1) -> None:
    run.add("Net_act_output_0", dead_layer(), step=step, kind="output", origin="ReLU", parts=parts)
    run.flush()


def test_values_come_from_the_segments(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write(run, 0)
    run.end()
    (finding,) = Engine(RunSource(tmp_path), [DeadRelu()]).step()
    assert finding.numbers["dead_units"] == 9


def test_values_saved_in_parts_are_put_together(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write(run, 0, parts=3)
    run.end()
    (finding,) = Engine(RunSource(tmp_path), [DeadRelu()]).step()
    assert finding.numbers["units"] == 10


def test_a_segment_that_was_merged_after_the_index_was_read_is_found_again(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(3):
        write(run, step)
    run.end()
    source = RunSource(tmp_path)
    batch = source.next(["step", "name"])
    run.merge(segments=True)
    assert [batch.payload(row).sum() for row in range(3)] == [8.0, 8.0, 8.0]


def test_a_segment_that_is_lost_makes_that_row_not_judged_and_names_the_reason(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write(run, 0)
    write(run, 1)
    run.end()
    next((tmp_path / "data" / "worker_0").glob("0000-000000000000-*")).unlink()
    engine = Engine(RunSource(tmp_path), [DeadRelu()])
    assert [finding.step for finding in engine.step()] == [1]
    (verdict,) = engine.verdicts(finished=True)
    assert verdict.missing == {"ReLU output could not be read (TensorUnavailableForStep)": 1}


def test_damaged_values_are_not_judged(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    write(run, 0)
    run.end()
    (segment,) = (tmp_path / "data" / "worker_0").iterdir()
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    engine = Engine(RunSource(tmp_path), [DeadRelu()])
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "RunCorrupt" in verdict.reason
