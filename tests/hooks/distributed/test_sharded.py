"""Capture on four ranks: the assembled tensors of the ranks equal those of one process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td

from .cases import CASES
from .models import batch, twin
from .shards import Run

RANKS = range(4)
TOLERANCE = 2e-6  # for float32 sums in another order, relative to values around 1

# Case: (row of the support matrix, sizes of the model), for trainings that one process can repeat.
SPREAD = {
    "ddp": ("DDP", 10, 7),
    "ddp_inside": ("DDP", 10, 7),
    "fsdp2": ("FSDP2", 10, 7),
    "fsdp2_registered_first": ("FSDP2", 10, 7),
    "hsdp": ("FSDP2", 10, 7),
    "tensor_parallel": ("tensor parallel", 8, 8),
    "fsdp2_over_tp": ("FSDP2 over tensor parallel", 8, 8),
}
ROWS = {
    **{case: row for case, (row, _, _) in SPREAD.items()},
    "fsdp2_first_rank": "FSDP2",
    "fsdp2_outlier": "FSDP2",
    "fsdp2_series": "FSDP2",
    "fsdp2_over_tp_series": "FSDP2 over tensor parallel",
    "fsdp2_some_ranks": "FSDP2",
    "dtensors": "tensor parallel",
    "tensor_parallel_series": "tensor parallel",
    "unfinished": "tensor parallel",
    "pipeline": "pipeline",
    "experts": "expert parallel",
    "groups": "several process groups",
}


def each_case(names: Iterable[str], column: str) -> pytest.MarkDecorator:
    """Parametrize a test by case; each case counts in its row of the support matrix, if it has one."""
    rows = [(name, ROWS.get(name)) for name in names]
    marked = [
        pytest.param(name, marks=[pytest.mark.supports(row, column)] if row else []) for name, row in rows
    ]
    return pytest.mark.parametrize("case", marked)


@each_case(CASES, "losses")
def test_losses_are_the_same_to_the_last_bit_with_capture_on_and_off(
    outcomes: list[dict[str, Any]], case: str
) -> None:
    for rank in RANKS:
        assert outcomes[rank][case]["on"]["losses"] == outcomes[rank][case]["off"]["losses"]


@each_case(CASES, "cost")
def test_no_process_group_sees_one_operation_more_with_capture_on(
    outcomes: list[dict[str, Any]], case: str
) -> None:
    assert any(outcomes[rank][case]["off"]["operations"] for rank in RANKS)  # the counter works
    for rank in RANKS:
        assert outcomes[rank][case]["on"]["operations"] == outcomes[rank][case]["off"]["operations"]


@each_case(CASES, "breaks")
def test_nothing_of_any_rank_s_hook_fails_or_is_dropped(job: Path, case: str) -> None:
    folder = job / case
    files = [folder / "collections.json", *folder.glob("collections/*.json")]
    assert not any("faults" in json.loads(path.read_text())["attempts"]["0"] for path in files)
    ends = [json.loads(path.read_text()) for path in folder.glob("end/*/*.json")]
    assert [end["clean"] for end in ends] == [True] * len(Run(folder).attempt["workers"])
    dropped = {why for end in ends for why, drop in end["drops"].items() if drop["tensors"]}
    assert dropped <= {"no_storage"}  # outputs of collectives that no code has waited for: rows "skipped"


@each_case(SPREAD, "values")
def test_parts_of_all_ranks_are_what_one_process_computes(job: Path, case: str) -> None:
    run = Run(job / case)
    reference = twin(*SPREAD[case][1:])
    for (name, step), expected in reference.items():
        tolerance = 0 if step == 0 and name.startswith("Net_") else TOLERANCE
        np.testing.assert_allclose(run.merged(name, step), expected, rtol=0, atol=tolerance, err_msg=name)


@each_case(SPREAD, "breaks")
def test_every_tensor_has_the_name_that_it_has_in_one_process(job: Path, case: str) -> None:
    kinds = {"weight", "bias", "gradient", "optimizer_state"}
    found = {(row["name"], row["origin"]) for row in Run(job / case).rows if row["kind"] in kinds}
    assert {name for name, _ in found} == {name for name, _ in twin(*SPREAD[case][1:])}
    assert {origin for _, origin in found} == {"Linear", "SGD"}


@each_case([case for case in SPREAD if "tensor" not in case], "values")
def test_every_parameter_and_its_gradient_and_state_say_where_they_lie(job: Path, case: str) -> None:
    names = {name for name, _ in twin(*SPREAD[case][1:])}
    assert all(row["shard"] is not None for row in Run(job / case).rows if row["name"] in names)


@pytest.mark.supports("FSDP2", "values")
def test_a_rank_without_rows_of_a_weight_has_an_empty_part(job: Path) -> None:
    parts = [(row["shape"], row["count"]) for row in Run(job / "fsdp2").of("Net_head.weight", 0)]
    assert parts == [([1, 7], 7), ([1, 7], 7), ([1, 7], 7), ([0, 7], 0)]


@pytest.mark.supports("FSDP2 over tensor parallel", "values")
def test_two_cuts_of_one_dimension_are_told_in_their_order(job: Path) -> None:
    rows = Run(job / "fsdp2_over_tp").of("Net_fc1.weight", 0)
    assert [row["shard"]["offset"] for row in rows] == [[0, 0], [4, 0], [2, 0], [6, 0]]


@pytest.mark.supports("FSDP2", "values")
def test_statistics_of_the_parts_add_up_to_those_of_the_whole(job: Path) -> None:
    run = Run(job / "fsdp2")
    for (name, step), expected in twin(10, 7).items():
        rows = run.of(name, step)
        assert sum(row["count"] for row in rows) == expected.size
        squares = sum(row["square_sum"] for row in rows)
        assert squares == pytest.approx(np.square(expected.astype(np.float64)).sum(), rel=1e-5)
        assert min(row["min"] for row in rows if row["count"]) == pytest.approx(expected.min(), abs=1e-6)


@pytest.mark.parametrize(
    ("case", "workers"),
    [
        ("fsdp2", ["worker_0", "worker_1", "worker_2", "worker_3"]),
        ("fsdp2_first_rank", ["worker_0"]),
        ("fsdp2_some_ranks", ["worker_1", "worker_3"]),
    ],
)
def test_those_workers_capture_that_were_named_and_the_run_says_so(
    job: Path, case: str, workers: list[str]
) -> None:
    run = Run(job / case)
    assert sorted(run.workers()) == workers == run.attempt["workers"]
    assert run.attempt["world_size"] == 4


@pytest.mark.supports("tensor parallel", "values")
def test_a_part_that_is_a_summand_says_of_which_reduction(job: Path) -> None:
    run = Run(job / "dtensors")
    rows = run.of("summand", 1)
    assert [row["shard"]["partial"] for row in rows] == ["sum"] * 4
    assert [run.value(row).max() for row in rows] == [0, 1, 2, 3]


@pytest.mark.supports("tensor parallel", "values")
def test_outputs_and_losses_that_are_spread_say_where_their_parts_lie(job: Path) -> None:
    run = Run(job / "dtensors")
    np.testing.assert_array_equal(run.merged("shifted", 1), np.arange(10.0))
    weights = twin(8, 8)
    x, _ = batch(0)
    expected = x.numpy() @ weights["Net_fc1.weight", 0].T + weights["Net_fc1.bias", 0]
    np.testing.assert_allclose(run.merged("Linear_output_0", 0), expected, rtol=0, atol=TOLERANCE)
    assert float(run.merged("whole_loss_output_0", 0)) == pytest.approx(float(np.square(expected).mean()))
    assert run.merged("scalar/scalar_loss", 0) == run.merged("whole_loss_output_0", 0)


@pytest.mark.supports("pipeline", "values")
def test_stages_hold_the_layers_that_they_have_under_their_names_in_the_whole(job: Path) -> None:
    run = Run(job / "pipeline")
    for (name, step), expected in twin(10, 7).items():
        (row,) = run.of(name, step)
        assert (
            row["worker"]
            == {"fc1": "worker_0", "fc2": "worker_2", "hea": "worker_3"}[name.split("Net_")[1][:3]]
        )
        np.testing.assert_allclose(run.value(row), expected, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.supports("pipeline", "values")
def test_collections_hold_the_tensors_of_all_stages(job: Path) -> None:
    collection = td.create_trial(str(job / "pipeline")).collection("weights")
    assert {"Net_fc1.weight", "Net_fc2.weight", "Net_head.weight"} <= set(collection.tensor_names)


@pytest.mark.supports("pipeline", "breaks")
def test_every_micro_batch_of_a_stage_is_a_call_of_the_step(job: Path) -> None:
    rows = Run(job / "pipeline").of("fc2_output_0", 2)
    assert [(row["worker"], row["call"]) for row in rows] == [("worker_2", call) for call in range(4)]


@pytest.mark.supports("expert parallel", "values")
def test_an_expert_without_tokens_has_no_gradient_which_is_not_zero(job: Path) -> None:
    run = Run(job / "experts")
    for rank, status in enumerate(["ok", "ok", "ok", "absent"]):
        (row,) = run.of(f"gradient/Experts_experts.{rank}.weight", 1)
        assert (row["worker"], row["status"]) == (f"worker_{rank}", status)
    scale = run.of("Experts_scale", 0)
    assert [row["shard"]["offset"] for row in scale] == [[0, 0], [1, 0], [2, 0], [3, 0]]


@pytest.mark.supports("expert parallel", "values")
def test_a_gradient_that_is_not_there_says_where_it_would_lie(job: Path) -> None:
    rows = Run(job / "experts").of("gradient/Experts_spare", 0)
    assert [row["status"] for row in rows] == ["absent"] * 4
    assert [row["shard"]["offset"] for row in rows] == [[0], [1], [2], [3]]


def test_pieces_of_flattened_parameters_keep_their_names_and_are_said_to_be_pieces(job: Path) -> None:
    run = Run(job / "fsdp1")
    expected = twin(10, 7)["gradient/Net_fc1.weight", 1]
    pieces = [run.value(row).ravel() for row in run.of("gradient/Net_fc1.weight", 1) if row["shape"]]
    np.testing.assert_allclose(np.concatenate(pieces), expected.ravel(), rtol=0, atol=TOLERANCE)
    notes = json.loads((run.path / "collections.json").read_text())["attempts"]["0"]
    assert "flattened" in notes["flat_parameters"]


@pytest.mark.supports("tensor parallel", "values")
def test_an_output_that_a_collective_still_writes_is_read_when_the_training_has_waited(job: Path) -> None:
    run = Run(job / "tensor_parallel")
    weights = twin(8, 8)
    x, _ = batch(0)
    hidden = np.maximum(x.numpy() @ weights["Net_fc1.weight", 0].T + weights["Net_fc1.bias", 0], 0)
    expected = hidden @ weights["Net_fc2.weight", 0].T + weights["Net_fc2.bias", 0]
    rows = run.of("fc2_output_0", 0)
    assert [row["status"] for row in rows] == ["ok"] * 4
    for row in rows:
        np.testing.assert_allclose(run.value(row), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.supports("tensor parallel", "breaks")
def test_an_unfinished_output_that_is_changed_or_never_waited_for_is_skipped(job: Path) -> None:
    run = Run(job / "unfinished")
    assert {row["status"] for row in run.of("changed_output_0", 0)} == {"skipped"}
    assert {row["status"] for row in run.of("last_output_0", 0)} == {"skipped"}
    notes = json.loads((run.path / "collections.json").read_text())["attempts"]["0"]
    assert "was not finished" in notes["unplaced"]["last_output_0"]


@pytest.mark.supports("several process groups", "values")
def test_groups_with_models_of_their_own_keep_their_values_and_say_who_shares_them(job: Path) -> None:
    run = Run(job / "groups")
    values = [run.value(row) for row in run.of("Net_head.bias", 0)]
    expected = twin(10, 7)["Net_head.bias", 0]
    for rank in RANKS:
        np.testing.assert_array_equal(values[rank], expected + np.float32(rank // 2))
    for file, ranks in (("collections.json", [0, 1]), ("collections/worker_3.json", [2, 3])):
        notes = json.loads((run.path / file).read_text())["attempts"]["0"]
        assert notes["copied_over"] == [ranks]
