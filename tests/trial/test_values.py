"""Values are returned bit for bit, or an error with the reason is raised."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from tdcore import modes
from tdcore.errors import (
    InvalidWorker,
    RunCorrupt,
    StepNotYetAvailable,
    StepUnavailable,
    TdcoreError,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from tdcore.trial import Trial, create_trial, no_refresh
from tdcore.trial.trial_factory import open_trial
from tests.trial.test_index import memory_run
from tests.trial.writer import DTYPES, RunWriter, index_bytes

Array = npt.NDArray[Any]

_TYPES = [np.dtype(getattr(ml_dtypes, name, name)) for name in DTYPES]


def sample(dtype: np.dtype[Any], size: int = 12) -> Array:
    """Return values of a dtype, including its extremes."""
    rng = np.random.default_rng(7)
    if dtype.kind == "c":
        return np.asarray(rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, info.max, *range(size - 2)], dtype=dtype)
    if dtype.kind == "b":
        return np.asarray(np.arange(size) % 3 == 0)
    return np.array([0.0, -0.0, np.nan, 1.5, *rng.standard_normal(size - 4)]).astype(dtype)


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def only_segment(run: RunWriter) -> Path:
    (segment,) = (run.root / "data/worker_0").glob("*.safetensors")
    return segment


def rewrite_rows(run: RunWriter, **columns: Any) -> None:
    """Replace columns in all rows of the only index file."""
    (path,) = run.index_files()
    rows = pq.read_table(path).to_pylist()
    path.write_bytes(index_bytes([row | columns for row in rows]))


@pytest.mark.parametrize("dtype", _TYPES, ids=str)
@pytest.mark.parametrize("parts", [1, 3])
def test_every_dtype_comes_back_bit_for_bit(run: RunWriter, dtype: np.dtype[Any], parts: int) -> None:
    values = sample(dtype).reshape(3, 4)
    run.add("x", values, step=5, parts=parts)
    run.flush()
    assert same_bits(create_trial(run.root).tensor("x").value(5), values)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 1, 3)])
def test_every_shape_comes_back(run: RunWriter, shape: tuple[int, ...]) -> None:
    values = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    run.add("x", values, step=0)
    run.flush()
    tensor = create_trial(run.root).tensor("x")
    assert same_bits(tensor.value(0), values)
    assert tensor.shape(0) == shape


def test_local_values_are_read_only_views_of_the_file(run: RunWriter) -> None:
    run.add("x", np.arange(1000, dtype=np.float64), step=0)
    run.flush()
    value = create_trial(run.root).tensor("x").value(0)
    assert not value.flags.owndata
    assert not value.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 1


def test_values_outlive_their_trial_and_their_file(run: RunWriter) -> None:
    values = np.arange(1000, dtype=np.float64)
    run.add("x", values, step=0)
    run.flush()
    trial = create_trial(run.root)
    value = trial.tensor("x").value(0)
    only_segment(run).unlink()
    trial.close()
    del trial
    assert np.array_equal(value, values)


def test_unaligned_values_are_copied(run: RunWriter) -> None:
    values = np.arange(5, dtype=np.float64)
    run.add("x", values, step=0)
    run.flush()
    segment = only_segment(run)
    (row,) = pq.read_table(run.index_files()[0]).to_pylist()
    segment.write_bytes(b"\0" + segment.read_bytes())
    rewrite_rows(run, offset=row["offset"] + 1)
    value = create_trial(run.root).tensor("x").value(0)
    assert same_bits(value, values)
    assert value.flags.aligned


def test_values_come_from_sinks_that_are_not_local(run: RunWriter) -> None:
    values = np.arange(6, dtype=np.float32)
    run.add("x", values, step=0, parts=2)
    run.flush()
    trial = open_trial(memory_run(run.root))
    assert same_bits(trial.tensor("x").value(0), values)


def test_all_values_by_step(run: RunWriter) -> None:
    for step in (0, 10, 20):
        run.add("x", np.full(2, step), step=step, payload=step != 10)
    run.flush()
    run.end()
    values = create_trial(run.root).tensor("x").values()
    assert {step: value.tolist() for step, value in values.items()} == {0: [0, 0], 20: [20, 20]}


def test_each_call_of_a_module_has_its_value(run: RunWriter) -> None:
    for call in (0, 1):
        run.add("relu_output_0", np.full(2, call), step=0, call=call)
    run.flush()
    tensor = create_trial(run.root).tensor("relu_output_0")
    assert tensor.value(0).tolist() == [0, 0]
    assert tensor.value(0, call=1).tolist() == [1, 1]
    with pytest.raises(TensorUnavailableForStep, match="no call 7; it has 0, 1"):
        tensor.value(0, call=7)


def test_the_last_of_two_values_saved_at_one_step_counts(run: RunWriter) -> None:
    run.add("x", np.array([1.0, 2.0]), step=0, parts=2)
    run.add("x", np.array([3.0, 4.0]), step=0, parts=2)
    run.flush()
    assert create_trial(run.root).tensor("x").value(0).tolist() == [3.0, 4.0]


def test_workers_have_values_of_their_own(tmp_path: Path) -> None:
    for rank in (10, 2):
        run = RunWriter(tmp_path, worker=f"worker_{rank}", world_size=12)
        run.add("x", np.array([rank]), step=0)
        run.flush()
        run.end()
    trial = create_trial(tmp_path)
    tensor = trial.tensor("x")
    assert trial.workers() == ["worker_2", "worker_10"]
    assert tensor.workers(0) == ["worker_2", "worker_10"]
    assert tensor.value(0).tolist() == [2]
    assert tensor.value(0, worker="worker_10").tolist() == [10]
    with pytest.raises(InvalidWorker, match="worker_2, worker_10"):
        tensor.value(0, worker="worker_3")


# Missing values. --------------------------------------------------------------------------------------


def unavailable(trial: Trial, name: str, step: int) -> TensorUnavailableForStep:
    with pytest.raises(TensorUnavailableForStep) as caught:
        trial.tensor(name).value(step)
    return caught.value


def test_reason_why_a_value_is_missing_is_in_the_error(run: RunWriter) -> None:
    x = np.ones(4)
    run.add("absent", None, step=0, status="absent")
    run.add("skipped", None, step=0, status="skipped", reason="ring_full")
    run.add("lost", x, step=0, status="lost", reason="io_error", payload=False)
    run.add("degraded", x, step=0, payload=False, reason="degraded")
    run.add("statistics", x, step=0, payload=False)
    run.flush()
    trial = create_trial(run.root)
    for name, reason, text, has_statistics in [
        ("absent", "absent", "without gradient", False),
        ("skipped", "skipped", "ring_full", False),
        ("lost", "lost", "io_error", True),
        ("degraded", "stats_only", "degraded", True),
        ("statistics", "stats_only", "without its values", True),
    ]:
        error = unavailable(trial, name, 0)
        assert error.reason == reason
        assert text in str(error)
        assert error.has_statistics == has_statistics
        assert ("reduction_value" in str(error)) == has_statistics


def test_missing_part_is_told(run: RunWriter) -> None:
    run.add("x", np.arange(9.0), step=0, parts=3)
    run.flush()
    (path,) = run.index_files()
    rows = pq.read_table(path).to_pylist()
    path.write_bytes(index_bytes([rows[0], rows[2]]))
    error = unavailable(create_trial(run.root), "x", 0)
    assert error.reason == "incomplete"
    assert "2 of 3 parts" in str(error)


def test_tensor_that_was_never_saved_is_unavailable(run: RunWriter) -> None:
    run.add("fc.weight", np.ones(2), step=0)
    run.flush()
    with pytest.raises(TensorUnavailable, match=re.escape("did you mean 'fc.weight'?")):
        create_trial(run.root).tensor("fc.weigth")


def test_step_that_may_come_and_step_that_will_not_are_told_apart(run: RunWriter) -> None:
    for step in (0, 10):
        run.add("x", np.ones(2), step=step)
    run.add("y", np.ones(2), step=20)
    run.add("x", np.ones(2), step=30)
    run.flush()
    tensor = create_trial(run.root).tensor("x")
    with pytest.raises(StepUnavailable, match="nothing was saved at step 5"):
        tensor.value(5)
    with pytest.raises(TensorUnavailableForStep, match="was not saved at step 20"):
        tensor.value(20)
    with pytest.raises(StepNotYetAvailable, match="step 99 of mode TRAIN"):
        tensor.value(99, mode=modes.TRAIN)
    run.end()
    with pytest.raises(StepUnavailable):
        tensor.value(99)


# Damage and hostility. --------------------------------------------------------------------------------


def test_damaged_bytes_are_refused_unless_verification_is_off(run: RunWriter) -> None:
    run.add("x", np.arange(4.0), step=0)
    run.flush()
    (row,) = pq.read_table(run.index_files()[0]).to_pylist()
    damage(only_segment(run), row["offset"] + 9)
    with pytest.raises(RunCorrupt, match=r"data/worker_0/0000-.* have checksum [0-9a-f]{8}, expected"):
        create_trial(run.root).tensor("x").value(0)
    assert create_trial(run.root, verify=False).tensor("x").value(0).shape == (4,)


def test_segment_that_is_cut_short_is_refused(run: RunWriter) -> None:
    run.add("x", np.arange(4.0), step=0)
    run.flush()
    segment = only_segment(run)
    os.truncate(segment, segment.stat().st_size - 1)
    with pytest.raises(RunCorrupt, match="cut short"):
        create_trial(run.root).tensor("x").value(0)


def test_segment_that_is_cut_while_mapped_is_refused(run: RunWriter) -> None:
    run.add("x", np.arange(4000.0), step=0)
    run.flush()
    trial = create_trial(run.root)
    trial.tensor("x").value(0)
    os.truncate(only_segment(run), 4096)
    with pytest.raises(RunCorrupt, match="cut short"):
        trial.tensor("x").value(0)


def test_segment_that_was_removed_is_told(run: RunWriter) -> None:
    run.add("x", np.arange(4.0), step=0)
    run.flush()
    only_segment(run).unlink()
    trial = create_trial(run.root)
    trial._reader.wait = lambda _: None
    assert unavailable(trial, "x", 0).reason == "lost"


def test_segment_that_was_merged_away_is_found_again(run: RunWriter) -> None:
    for step in range(3):
        run.add("x", np.full(3, step), step=step)
        run.add("y", np.full(2, -step), step=step, parts=2)
        run.flush()
    trial = create_trial(run.root)
    rows = len(trial.index)
    run.merge(segments=True)
    for step in range(3):
        assert trial.tensor("x").value(step).tolist() == [step] * 3
        assert trial.tensor("y").value(step).tolist() == [-step] * 2
    assert len(trial.index) == rows


def test_segment_merged_with_later_ones_is_found_without_taking_in_their_rows(run: RunWriter) -> None:
    run.add("x", np.full(3, 0), step=0)
    run.flush()
    trial = create_trial(run.root)
    for step in (1, 2):
        run.add("x", np.full(3, step), step=step)
        run.flush()
    run.merge(segments=True)
    with no_refresh(trial):
        assert trial.tensor("x").value(0).tolist() == [0] * 3
        assert trial.steps(show_incomplete_steps=True) == [0]
    assert trial.tensor("x").value(2).tolist() == [2] * 3
    assert len(trial.index) == 3


def test_merged_index_that_contradicts_what_was_read_is_refused(run: RunWriter) -> None:
    for step in range(2):
        run.add("x", np.full(3, step), step=step)
        run.flush()
    trial = create_trial(run.root)
    run.merge(segments=True)
    rewrite_rows(run, name="z")
    with pytest.raises(RunCorrupt, match="does not contain the rows"):
        trial.tensor("x").value(0)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_links_out_of_the_run_are_not_followed(run: RunWriter, tmp_path: Path, what: str) -> None:
    run.add("x", np.arange(4.0), step=0)
    run.flush()
    segment = only_segment(run)
    outside = tmp_path / "outside"
    if what == "file":
        segment.rename(outside)
        segment.symlink_to(outside)
    else:
        (run.root / "data").rename(outside)
        (run.root / "data").symlink_to(outside)
    with pytest.raises(RunCorrupt, match="outside the run"):
        create_trial(run.root).tensor("x").value(0)


def test_segment_that_is_no_file_is_refused(run: RunWriter) -> None:
    run.add("x", np.arange(4.0), step=0)
    run.flush()
    segment = only_segment(run)
    segment.unlink()
    os.mkfifo(segment)
    with pytest.raises(RunCorrupt, match="is a FIFO, not a file"):
        create_trial(run.root).tensor("x").value(0)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"offset": 2**62}, "cut short or the index is damaged"),
        ({"nbytes": 2**62}, "and the index has"),
        ({"nbytes": 8}, "are 32 bytes, and the index has 8"),
        ({"elements": 2**61, "nbytes": 2**62}, "are .* bytes"),
        ({"elements": 2**59, "nbytes": 2**62}, "has 4 elements, its parts have"),
        ({"elements": 2**59, "nbytes": 2**62, "shape": [2**59]}, "cut short"),
        ({"elements": -4, "nbytes": 0}, "element"),
        ({"element_offset": 7}, "starts at element 7"),
        ({"shape": [2, -2]}, "which no tensor has"),
        ({"shape": [1] * 70}, "which no tensor has"),
        ({"shape": [2**40, 2**40]}, "elements, its parts have 4"),
        ({"shape": None}, "no shape"),
        ({"elements": 0, "nbytes": 0, "shape": [2**62, 0, 2**62]}, "NumPy rejects"),
        ({"dtype": "F128"}, "dtype 'F128'"),
        ({"dtype": "x" * 5000}, "5000 characters"),
        ({"dtype": None}, "dtype"),
        ({"dtype": "BOOL", "shape": [32], "elements": 32}, "is BOOL but has a byte of"),
    ],
)
def test_rows_that_point_wrong_are_refused(run: RunWriter, columns: dict[str, Any], complaint: str) -> None:
    run.add("x", np.arange(4.0), step=0)
    run.flush()
    rewrite_rows(run, **columns)
    with pytest.raises(TdcoreError, match=complaint) as caught:
        create_trial(run.root).tensor("x").value(0)
    assert len(str(caught.value)) < 1000


def test_huge_number_of_parts_costs_nothing(run: RunWriter) -> None:
    run.add("x", np.arange(4.0), step=0)
    run.flush()
    rewrite_rows(run, parts=2**31 - 1)
    trial = create_trial(run.root)
    assert unavailable(trial, "x", 0).reason == "incomplete"
    assert trial.stats().to_pylist()[0]["reason"] == "incomplete"


def test_values_are_those_that_value_gives_at_each_step(run: RunWriter) -> None:
    rng = np.random.default_rng(0)
    for step in range(4):
        run.add("w", rng.standard_normal((2, 3)).astype(np.float32), step=step)
    run.add("w", rng.standard_normal(8), step=4, parts=3)
    run.add("w", rng.standard_normal(4), step=5, call=1)
    run.add("w", rng.standard_normal(4), step=5, call=0)
    run.add("w", np.zeros((0, 3), dtype=np.float32), step=6)
    run.flush()
    run.end()
    tensor = create_trial(run.root).tensor("w")
    values = tensor.values()
    assert list(values) == tensor.steps() == list(range(7))
    for step, value in values.items():
        np.testing.assert_array_equal(value, tensor.value(step), strict=True)


def test_values_leave_out_steps_that_were_saved_without(run: RunWriter) -> None:
    run.add("w", np.ones(3), step=0)
    run.add("w", np.ones(3), step=1, payload=False)
    run.add("w", None, step=2, status="absent")
    run.add("w", np.ones(3), step=3, status="lost", payload=False)
    run.add("w", np.ones(3), step=4)
    run.flush()
    run.end()
    assert list(create_trial(run.root).tensor("w").values()) == [0, 4]


def test_values_of_a_mode_and_a_worker_are_theirs_alone(run: RunWriter) -> None:
    other = RunWriter(run.root, worker="worker_1")
    for writer, factor in ((run, 1), (other, 10)):
        writer.add("w", np.full(2, factor), step=0, mode="TRAIN", mode_step=0)
        writer.add("w", np.full(2, 2 * factor), step=1, mode="EVAL", mode_step=0)
        writer.flush()
        writer.end()
    tensor = create_trial(run.root).tensor("w")
    assert {step: value[0] for step, value in tensor.values().items()} == {0: 1, 1: 2}
    assert {step: value[0] for step, value in tensor.values(worker="worker_1").items()} == {0: 10, 1: 20}
    assert {step: value[0] for step, value in tensor.values(modes.EVAL, "worker_1").items()} == {0: 20}
    with pytest.raises(InvalidWorker):
        tensor.values(worker="worker_7")


def test_values_follow_segments_that_were_merged_away(run: RunWriter) -> None:
    for step in range(3):
        run.add("w", np.full(4, step), step=step)
        run.flush()
    run.end()
    trial = create_trial(run.root)
    with no_refresh(trial):
        run.merge(segments=True)
        assert {step: value[0] for step, value in trial.tensor("w").values().items()} == {0: 0, 1: 1, 2: 2}
