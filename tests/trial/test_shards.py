"""Values of sharded tensors: assembled from the workers' parts, and the errors when a part is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore.errors import RunCorrupt, TensorUnavailableForStep
from tdcore.trial import Tensor, create_trial
from tests.trial.sharding import Box, add_part, cut, partitions, rows, workers, write_parts
from tests.trial.writer import RunWriter, place

W = np.arange(24, dtype=np.float32).reshape(6, 4)


def tensor(root: Path, name: str = "w") -> Tensor:
    return create_trial(root).tensor(name)


def refused(tensor: Tensor, step: int = 0) -> TensorUnavailableForStep:
    with pytest.raises(TensorUnavailableForStep) as caught:
        tensor.value(step)
    return caught.value


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=partitions(), parts=st.integers(1, 2))
def test_parts_make_the_whole_bit_for_bit(
    case: tuple[npt.NDArray[Any], list[Box]], parts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values, boxes = case
    root = tmp_path_factory.mktemp("run")
    write_parts(root, values, boxes, parts=parts)
    one = tensor(root)
    whole = one.value(0)
    assert (whole.dtype, whole.shape, whole.flags.writeable) == (values.dtype, values.shape, False)
    assert whole.tobytes() == values.tobytes()
    assert one.shape(0) == values.shape
    for rank, box in enumerate(boxes):
        worker = f"worker_{rank}"
        part = one.value(0, worker=worker)
        assert part.tobytes() == cut(values, box).tobytes()
        assert one.shape(0, worker=worker) == part.shape


def test_all_steps_have_the_whole(tmp_path: Path) -> None:
    for run, box in zip(workers(tmp_path, 3), rows(W.shape, 3), strict=True):
        for step in (0, 1):
            add_part(run, "w", W + step, box, step=step)
        run.flush()
        run.end()
    found = tensor(tmp_path).values()
    assert {step: values.tolist() for step, values in found.items()} == {
        step: (W + step).tolist() for step in (0, 1)
    }
    assert tensor(tmp_path).values(worker="worker_1")[1].tolist() == (W + 1)[2:4].tolist()


def test_parts_say_where_they_lie(tmp_path: Path) -> None:
    write_parts(tmp_path, W, rows(W.shape, 2))
    found = tensor(tmp_path).shards(0)
    assert [(shard.worker, shard.offset, shard.shape, shard.global_shape) for shard in found] == [
        ("worker_0", (0, 0), (3, 4), (6, 4)),
        ("worker_1", (3, 0), (3, 4), (6, 4)),
    ]
    assert tensor(tmp_path).workers(0) == ["worker_0", "worker_1"]


def test_part_of_the_only_worker_that_saved_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    write_parts(tmp_path, W, rows(W.shape, 3)[:1])
    error = refused(tensor(tmp_path))
    assert error.reason == "incomplete"
    assert "lacks [2:6, 0:4] of its shape [6, 4]" in str(error)
    assert "no worker saved them" in str(error)
    assert tensor(tmp_path).values() == {}


def test_missing_part_is_told_with_its_worker_and_box(tmp_path: Path) -> None:
    for rank, (run, box) in enumerate(zip(workers(tmp_path, 3), rows(W.shape, 3), strict=True)):
        for step in (0, 1):
            if (rank, step) != (1, 1):
                add_part(run, "w", W, box, step=step)
        run.flush()
        run.end()
    error = refused(tensor(tmp_path), 1)
    assert error.reason == "incomplete"
    assert "lacks [2:4, 0:4]" in str(error)
    assert "worker_1 has [2:4, 0:4] at other steps" in str(error)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"payload": False}, "stats_only"),
        ({"payload": False, "status": "lost", "reason": "io_error"}, "lost"),
        ({"payload": False, "stats": False, "status": "skipped", "reason": "dtype"}, "skipped"),
    ],
)
def test_part_without_values_is_told_with_its_reason(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    for rank, (run, box) in enumerate(zip(workers(tmp_path, 2), rows(W.shape, 2), strict=True)):
        add_part(run, "w", W, box, **(options if rank else {}))
        run.flush()
        run.end()
    error = refused(tensor(tmp_path))
    assert error.reason == reason
    assert "worker_1 has [3:6, 0:4]" in str(error)


def test_copies_count_once_and_one_without_values_is_not_missed(tmp_path: Path) -> None:
    for rank, run in enumerate(workers(tmp_path, 3)):
        add_part(run, "w", W, rows(W.shape, 1)[0], payload=rank == 1)
        run.flush()
        run.end()
    assert tensor(tmp_path).value(0).tolist() == W.tolist()


def test_copies_that_differ_are_told_and_never_averaged(tmp_path: Path) -> None:
    for rank, run in enumerate(workers(tmp_path, 3)):
        values = W.copy()
        values[1, 2] += rank == 2
        add_part(run, "w", values, rows(W.shape, 1)[0])
        run.flush()
        run.end()
    error = refused(tensor(tmp_path))
    assert error.reason == "copies_differ"
    assert "worker_0 and worker_2" in str(error)
    assert "1 of 24 values differ, the first at [1, 2]: 6.0 and 7.0" in str(error)
    with pytest.raises(TensorUnavailableForStep, match="copies"):
        tensor(tmp_path).values()
    assert tensor(tmp_path).value(0, worker="worker_2")[1, 2] == 7.0


def test_copies_with_nans_and_other_cuts_are_equal(tmp_path: Path) -> None:
    values = W.copy()
    values[0, 0] = np.nan
    for rank, run in enumerate(workers(tmp_path, 2)):
        add_part(run, "w", values, rows(W.shape, 1)[0], parts=1 + rank)
        run.flush()
        run.end()
    assert np.array_equal(tensor(tmp_path).value(0), values, equal_nan=True)


def test_parts_that_lie_over_each_other_must_agree(tmp_path: Path) -> None:
    boxes: list[Box] = [((0, 4), (0, 4)), ((3, 6), (0, 4))]
    write_parts(tmp_path / "same", W, boxes)
    assert tensor(tmp_path / "same").value(0).tolist() == W.tolist()
    for rank, (run, box) in enumerate(zip(workers(tmp_path / "other", 2), boxes, strict=True)):
        add_part(run, "w", W + rank, box)
        run.flush()
        run.end()
    error = refused(tensor(tmp_path / "other"))
    assert error.reason == "copies_differ"
    assert "both have [3:4, 0:4]" in str(error)


def test_values_that_are_no_parts_of_one_tensor_stay_apart(tmp_path: Path) -> None:
    one, other = workers(tmp_path, 2)
    for name, shard in (("own", None), ("shape", place([2, 4], [0, 0])), ("mixed", None)):
        one.add(name, W, step=0, shard=shard and place([6, 4], [0, 0]))
        other.add(name, W[:2], step=0, shard=place([6, 4], [0, 0]) if name == "mixed" else shard)
    for run in (one, other):
        run.flush()
        run.end()
    trial = create_trial(tmp_path)
    assert trial.tensor("own").value(0).tolist() == W.tolist()  # the value of the first worker
    assert trial.tensor("own").shards(0) == []
    for name in ("own", "shape", "mixed"):
        with pytest.raises(TensorUnavailableForStep) as caught:
            trial.tensor(name).global_value(0)
        assert caught.value.reason == "disagree"


def test_whole_of_what_one_worker_has_is_its_value(run: RunWriter) -> None:
    run.add("w", W, step=0)
    run.flush()
    run.end()
    assert tensor(run.root).global_value(0).tolist() == W.tolist()


def test_each_call_has_a_whole_of_its_own(tmp_path: Path) -> None:
    for run, box in zip(workers(tmp_path, 2), rows(W.shape, 2), strict=True):
        for call in (0, 1):
            add_part(run, "w", W * call, box, call=call)
        run.flush()
        run.end()
    assert tensor(tmp_path).value(0).sum() == 0
    assert tensor(tmp_path).value(0, call=1).tolist() == W.tolist()
    with pytest.raises(TensorUnavailableForStep, match="no call 7"):
        tensor(tmp_path).global_value(0, call=7)


# Partial values. --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduction", "wanted"),
    [
        ("sum", lambda x: x.sum(0)),
        ("avg", lambda x: x.mean(0)),
        ("max", lambda x: x.max(0)),
        ("min", lambda x: x.min(0)),
        ("product", lambda x: x.prod(0)),
        ("norm_2", lambda x: np.sqrt(np.square(x).sum(0))),
        ("norm_1", lambda x: np.abs(x).sum(0)),
    ],
)
def test_partial_values_are_reduced_over_workers(reduction: str, wanted: Any, tmp_path: Path) -> None:
    parts = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    for rank, run in enumerate(workers(tmp_path, 3)):
        run.add("w", parts[rank], step=0, shard=place([2, 5], [0, 0], reduction))
        run.flush()
        run.end()
    whole = tensor(tmp_path).value(0)
    assert whole.dtype == np.float32
    assert np.array_equal(whole, wanted(parts.astype(np.float64)).astype(np.float32))
    assert np.array_equal(tensor(tmp_path).value(0, worker="worker_1"), parts[1])


@pytest.mark.parametrize("power", ["3", "1.5", "40"])
@pytest.mark.parametrize("size", [0.0, 1e-150, 1.0, 1e150, np.inf, np.nan])
def test_partial_norm_is_that_of_all_elements_at_any_size(tmp_path: Path, power: str, size: float) -> None:
    parts = np.array([3.0, 4.0, 12.0])
    for rank, run in enumerate(workers(tmp_path, 3)):
        value = (
            size if rank == 1 and not np.isfinite(size) else parts[rank] * (size if np.isfinite(size) else 1)
        )
        run.add("norm", np.array(value), step=0, shard=place([], [], f"norm_{power}"))
        run.flush()
        run.end()
    expected = size if not np.isfinite(size) else size * np.sum(parts ** float(power)) ** (1 / float(power))
    np.testing.assert_allclose(tensor(tmp_path, "norm").value(0), expected, rtol=1e-13)


def test_partial_value_that_lacks_a_worker_is_refused(tmp_path: Path) -> None:
    runs = workers(tmp_path / "step", 2)
    for rank, run in enumerate(runs):
        for step in range(2 - rank):
            run.add("w", W, step=step, shard=place(W.shape, [0, 0], "sum"))
        run.flush()
        run.end()
    assert tensor(tmp_path / "step").value(0).tolist() == (2 * W).tolist()
    error = refused(tensor(tmp_path / "step"), 1)
    assert error.reason == "incomplete"
    assert "the contribution of worker_1 was not saved" in str(error)
    alone = workers(tmp_path / "job", 4)[:1]  # the claims of the other workers show that they took part
    for claim in (tmp_path / "job" / "attempts").glob("*-worker_[123].json"):
        claim.unlink()
    alone[0].add("w", W, step=0, shard=place(W.shape, [0, 0], "sum"))
    alone[0].flush()
    alone[0].end()
    assert "the contribution of 3 of 4 workers was not saved" in str(refused(tensor(tmp_path / "job")))


def test_partial_value_is_not_reduced_before_all_have_written_theirs(tmp_path: Path) -> None:
    first, second = workers(tmp_path, 2)
    first.add("w", W, step=0, shard=place(W.shape, [0, 0], "sum"))
    first.flush()
    assert "the contribution of worker_1 was not saved" in str(refused(tensor(tmp_path)))
    second.add("w", W, step=0, shard=place(W.shape, [0, 0], "sum"))
    second.flush()
    for run in (first, second):
        run.end()
    assert tensor(tmp_path).value(0).tolist() == (2 * W).tolist()


def test_partial_value_lacks_a_worker_also_when_its_last_row_is_absent(tmp_path: Path) -> None:
    first, second = workers(tmp_path, 2)
    for step in range(3):
        first.add("w", W, step=step, shard=place(W.shape, [0, 0], "sum"))
    second.add("w", W, step=0, shard=place(W.shape, [0, 0], "sum"))
    second.add("w", None, step=2, status="absent", shard=place(W.shape, [0, 0], "sum"))
    for run in (first, second):
        run.flush()
        run.end()
    assert "the contribution of worker_1 was not saved" in str(refused(tensor(tmp_path), 1))


def test_partial_value_of_a_job_with_fewer_ranks_than_before_is_whole(tmp_path: Path) -> None:
    for attempt, size in enumerate((3, 2)):
        for rank in range(size):
            run = RunWriter(tmp_path, worker=f"worker_{rank}", attempt=attempt, world_size=size)
            run.add("w", W, step=attempt, shard=place(W.shape, [0, 0], "sum"))
            run.flush()
            run.end()
    assert tensor(tmp_path).value(0).tolist() == (3 * W).tolist()
    assert tensor(tmp_path).value(1).tolist() == (2 * W).tolist()


def test_copies_of_a_partial_value_do_not_count_again(tmp_path: Path) -> None:
    for rank, run in enumerate(workers(tmp_path, 4)):
        partial = "sum" if rank < 2 else "copy of sum"
        run.add("w", W * (rank % 2 + 1), step=0, shard=place(W.shape, [0, 0], partial))
        run.flush()
        run.end()
    assert tensor(tmp_path).value(0).tolist() == (3 * W).tolist()


def test_reduction_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    for run in workers(tmp_path, 2):
        run.add("w", W, step=0, shard=place(W.shape, [0, 0], "premul_sum"))
        run.flush()
        run.end()
    error = refused(tensor(tmp_path))
    assert error.reason == "partial"
    assert "'premul_sum'" in str(error)


# Damage. ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shard",
    [
        place([6, 4], [4, 0]),
        place([6], [0]),
        place([6, 4], [-1, 0]),
        place([1 << 60, 4], [0, 0]),
        {"global_shape": None, "offset": [0, 0], "partial": None},
        {"global_shape": [6, None], "offset": [0, 0], "partial": None},
    ],
)
def test_part_that_does_not_lie_in_its_tensor_is_refused(shard: dict[str, Any], run: RunWriter) -> None:
    run.add("w", W[:3], step=0, shard=shard)
    run.flush()
    run.end()
    with pytest.raises(RunCorrupt, match=r"worker_0"):
        tensor(run.root).value(0)
    with pytest.raises(RunCorrupt, match=r"worker_0"):
        create_trial(run.root).stats(merged=True)
