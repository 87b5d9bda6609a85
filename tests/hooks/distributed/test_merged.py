"""Runs of four ranks, read by the trial: whole tensors and their statistics equal those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tdcore as td
from tdcore.trial import Trial

from .models import STEPS, twin
from .series import series_twin

TOLERANCE = 2e-6  # for float32 sums in another order, relative to values around 1
RANKS = [f"worker_{rank}" for rank in range(4)]

Twin = dict[tuple[str, int], npt.NDArray[Any]]

# Case: (row of the support matrix, sizes of the model, layers whose shards have no recorded place).
SPREAD = {
    "ddp": ("DDP", (10, 7), ()),
    "fsdp2": ("FSDP2", (10, 7), ()),
    "tensor_parallel": ("tensor parallel", (8, 8), ("Net_head",)),
    "fsdp2_over_tp": ("FSDP2 over tensor parallel", (8, 8), ()),
}
each_case = pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.supports(row[0], "values")) for name, row in SPREAD.items()]
)


def opened(job: Path, case: str) -> Trial:
    return td.create_trial(str(job / case))


def told(case: str) -> Twin:
    """Return the reference values of the tensors whose shards have a recorded place."""
    _, sizes, untold = SPREAD[case]
    return {key: one for key, one in twin(*sizes).items() if not any(layer in key[0] for layer in untold)}


@each_case
def test_the_trial_gives_the_values_of_wholes(job: Path, case: str) -> None:
    trial = opened(job, case)
    for (name, step), expected in told(case).items():
        for value in (trial.tensor(name).global_value(step), trial.tensor(name).value(step)):
            np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE, err_msg=name)


@each_case
def test_the_trial_gives_the_statistics_of_wholes_and_counts_copies_once(job: Path, case: str) -> None:
    kinds = ["weight", "bias", "gradient", "optimizer_state"]
    table = opened(job, case).stats(kinds=kinds, merged=True).to_pylist()
    found = {(row["name"], row["step"]): row for row in table}
    for key, expected in told(case).items():
        row, x = found[key], expected.astype(np.float64)
        assert (row["count"], row["shape"], row["reason"]) == (x.size, list(x.shape), None), key
        assert row["min"] == pytest.approx(x.min(), abs=TOLERANCE)
        assert row["max"] == pytest.approx(x.max(), abs=TOLERANCE)
        assert row["mean"] == pytest.approx(x.mean(), abs=TOLERANCE)
        assert row["std"] == pytest.approx(x.std(), abs=TOLERANCE)
        assert row["l2"] == pytest.approx(np.linalg.norm(x), abs=TOLERANCE * x.size)


@pytest.mark.supports("tensor parallel", "values")
def test_what_does_not_say_that_it_is_a_copy_stays_each_rank_s_own(job: Path) -> None:
    (row,) = opened(job, "tensor_parallel").tensor("Net_head.bias").global_stats(steps=[0]).to_pylist()
    assert row["count"] == 4 * 3


@pytest.mark.supports("FSDP2", "values")
def test_the_rank_that_was_made_an_outlier_is_named(job: Path) -> None:
    rows = (
        opened(job, "fsdp2_outlier")
        .compare_workers("^fc1_output_0$|loss|^Net_input", column="l2")
        .to_pylist()
    )
    assert {row["step"] for row in rows} == set(range(STEPS))
    assert {row["worker"] for row in rows if row["order"] == 1} == {"worker_2"}
    far = [abs(row["deviation"]) for row in rows if row["worker"] == "worker_2"]
    assert min(far) > 5


def clipped_and_not(trial: Trial, reference: Twin) -> None:
    for (name, step), expected in reference.items():
        value = trial.tensor(name).global_value(step)
        np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE, err_msg=f"{name} {step}")


@pytest.mark.supports("FSDP2", "values")
@pytest.mark.supports("gradient clipping", "values")
@pytest.mark.supports("GradScaler", "values")
def test_gradients_before_and_after_clipping_and_updates_are_those_of_wholes_under_fsdp2(job: Path) -> None:
    clipped_and_not(opened(job, "fsdp2_series"), series_twin(10, 7, fused=False))


@pytest.mark.supports("GradScaler", "values")
@pytest.mark.supports("fused optimizer", "values")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("tensor_parallel_series", marks=pytest.mark.supports("tensor parallel", "values")),
        pytest.param(
            "fsdp2_over_tp_series", marks=pytest.mark.supports("FSDP2 over tensor parallel", "values")
        ),
    ],
)
def test_parts_of_scaled_gradients_are_unscaled_under_tensor_parallelism(job: Path, case: str) -> None:
    clipped_and_not(opened(job, case), series_twin(8, 8, fused=True))


@pytest.mark.supports("FSDP2", "values")
def test_what_each_rank_s_backward_gave_is_whole_and_its_mean_is_the_gradient(job: Path) -> None:
    trial = opened(job, "fsdp2_series")
    for (name, step), expected in series_twin(10, 7, fused=False).items():
        if name.startswith("backward_gradient/"):
            part = trial.tensor(name.replace("backward", "microbatch"))
            each = [part.value(step, worker=worker) for worker in RANKS]
            np.testing.assert_allclose(np.mean(each, axis=0), expected, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.supports("tensor parallel", "values")
def test_what_a_backward_gave_is_this_rank_s_part_under_tensor_parallelism(job: Path) -> None:
    trial = opened(job, "tensor_parallel_series")
    for (name, step), expected in series_twin(8, 8, fused=True).items():
        if name.startswith("backward_gradient/"):
            value = trial.tensor(name.replace("backward", "microbatch")).global_value(step)
            np.testing.assert_allclose(value, expected, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.supports("update ratio", "values")
@pytest.mark.parametrize(
    ("case", "with_ratio"),
    [
        ("fsdp2_series", set()),
        ("tensor_parallel_series", {"Net_fc2.bias", "Net_head.weight", "Net_head.bias"}),
    ],
)
def test_a_ratio_that_no_rank_can_know_is_noted_as_missing(
    job: Path, case: str, with_ratio: set[str]
) -> None:
    trial = opened(job, case)
    assert {name.partition("/")[2] for name in trial.tensor_names(regex="^update_ratio/")} == with_ratio
    assert any("no rank has the whole norm" in one for one in trial.notes()["not_captured"])


@pytest.mark.supports("order of execution", "values")
@pytest.mark.parametrize("case", ["ddp", "fsdp2", "fsdp2_over_tp", "tensor_parallel"])
def test_gradients_are_in_the_order_in_which_backward_made_them(job: Path, case: str) -> None:
    rows = opened(job, case).rows().to_pylist()
    for step in range(STEPS):
        mine = [row for row in rows if row["step"] == step and row["worker"] == "worker_1"]
        mine.sort(key=lambda row: row["seq"])
        gradients = [row["name"] for row in mine if row["kind"] == "gradient"]
        layers = [name.removeprefix("gradient/Net_").partition(".")[0] for name in gradients]
        assert list(dict.fromkeys(layers)) == ["head", "fc2", "fc1"]
