"""Scripts in the style of smdebug: reading a run, and errors (docs/moving.md)."""

from __future__ import annotations

import logging
import pickle
import threading
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import tdcore as td
import tdcore.smd as smd
from tdcore.errors import InvalidCollection, RunNotFound, UnsupportedFeature
from tests.moving import recorded
from tests.trial.writer import RunWriter


def test_names_at_a_step_are_asked_for_by_position(tmp_path: Path) -> None:
    trial = recorded(tmp_path)
    assert trial.tensor_names(3) == ["CrossEntropyLoss_output_0", "Net_fc.weight", "scalar/accuracy"]
    assert trial.tensor_names(1, smd.modes.TRAIN, "^Net") == ["Net_fc.weight"]


def test_the_switch_for_prefixed_names_of_keras_changes_nothing(tmp_path: Path) -> None:
    trial = recorded(tmp_path)
    assert trial.tensor_names(True) == trial.tensor_names(show_prefixed_tensors=True) == trial.tensor_names()


def test_prev_steps_without_a_number_are_all(tmp_path: Path) -> None:
    assert recorded(tmp_path).tensor("CrossEntropyLoss_output_0").prev_steps(2) == [0, 1, 2]


def test_values_can_be_written_to_and_the_run_stays_as_it_is(tmp_path: Path) -> None:
    tensor = recorded(tmp_path).tensor("Net_fc.weight")
    before = tensor.value(1)
    kept = before.copy()
    before[before < 0] = 0
    assert np.array_equal(tensor.value(1), kept)
    assert all(values.flags.writeable for values in tensor.values().values())


def test_a_saved_scalar_has_one_dimension_and_a_loss_has_none(tmp_path: Path) -> None:
    trial = recorded(tmp_path)
    scalar = trial.tensor("scalar/accuracy")
    assert (scalar.value(3).shape, scalar.shape(3), scalar.value(3)[0]) == ((1,), (1,), 0.5)
    assert trial.tensor("CrossEntropyLoss_output_0").value(0).shape == ()


def test_tdcores_own_create_trial_gives_views_of_the_file(tmp_path: Path) -> None:
    recorded(tmp_path)
    trial = td.create_trial(tmp_path / "run")
    assert trial.tensor("Net_fc.weight").value(1).flags.writeable is False
    assert trial.tensor("scalar/accuracy").value(3).shape == ()


def test_mode_and_step_come_together(tmp_path: Path) -> None:
    assert recorded(tmp_path).mode_modestep(3) == (smd.modes.EVAL, 0)


def test_what_is_included_in_a_collection_of_the_trial_is_part_of_it(tmp_path: Path) -> None:
    trial = recorded(tmp_path)
    trial.collection("losses").include("^scalar/")
    assert trial.tensor_names(collection="losses") == ["CrossEntropyLoss_output_0", "scalar/accuracy"]
    trial.collection("losses").add_tensor_name("Net_fc.weight")
    assert "Net_fc.weight" in trial.tensor_names(collection=trial.collection("losses"))
    assert "Net_fc.weight" not in td.create_trial(tmp_path / "run").collection("losses").tensor_names


def test_a_collection_that_the_run_lacks_is_made_as_in_the_older_library(tmp_path: Path) -> None:
    trial = recorded(tmp_path)
    trial.collection("mine").include("weight$")
    assert trial.tensor_names(collection="mine") == ["Net_fc.weight", "gradient/Net_fc.weight"]
    with pytest.raises(InvalidCollection):
        td.create_trial(tmp_path / "run").collection("mine")


def test_answers_stand_still_within_no_refresh(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    writer.add("loss", 1.0, step=0, kind="loss")
    writer.flush()
    trial = smd.create_trial(str(tmp_path / "run"))
    with smd.no_refresh(trial):
        writer.add("late", 1.0, step=0, kind="loss")
        writer.flush()
        assert not trial.has_tensor("late")
    assert trial.has_tensor("late")


def test_a_trial_may_be_made_before_the_run_exists(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    waiting = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waiting.set()

    def write() -> None:
        waiting.wait()
        writer = RunWriter(tmp_path / "run")
        writer.add("loss", 1.0, step=0, kind="loss")
        writer.flush()
        writer.end()

    log = logging.getLogger("tdcore")
    handler = Told()
    log.addHandler(handler)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        trial = smd.create_trial(f" {tmp_path / 'run'} ")
    finally:
        log.removeHandler(handler)
        thread.join()
    assert trial.tensor_names() == ["loss"]
    assert f"waits for a run to begin at {tmp_path / 'run'}" in caplog.text


def test_the_wait_may_have_an_end(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        smd.create_trial(str(tmp_path / "run"), wait=timedelta(0))


def test_the_older_arguments_of_create_trial_are_taken(tmp_path: Path) -> None:
    recorded(tmp_path)
    trial = smd.create_trial(
        str(tmp_path / "run"),
        "mine",
        False,
        "/opt/ml/processing/outputs/",
        range_steps=(1, 3),
        parallel=False,
        check=True,
        index_mode=False,
        cache=True,
    )
    assert (trial.name, trial.steps()) == ("mine", [1, 2])


def test_a_profiler_trial_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="profiler=True is not supported"):
        smd.create_trial(str(tmp_path), profiler=True)


def test_a_local_trial_is_opened_by_its_class(tmp_path: Path) -> None:
    recorded(tmp_path)
    trial = smd.LocalTrial("mine", str(tmp_path / "run"), range_steps=(0, 2))
    assert isinstance(trial, smd.Trial)
    assert (trial.name, trial.steps(), trial.tensor("Net_fc.weight").value(0).flags.writeable) == (
        "mine",
        [0, 1],
        True,
    )


def test_errors_have_the_older_attributes(tmp_path: Path) -> None:
    trial = recorded(tmp_path)
    weight = trial.tensor("Net_fc.weight")
    with pytest.raises(smd.TensorUnavailable) as tensor:
        trial.tensor("absent")
    assert tensor.value.tname == "absent"
    with pytest.raises(smd.TensorUnavailableForStep) as value:
        trial.tensor("scalar/accuracy").value(1, mode=smd.modes.TRAIN)
    assert (value.value.tname, value.value.step, value.value.mode) == ("scalar/accuracy", 1, smd.modes.TRAIN)
    assert value.value.has_reductions is False
    with pytest.raises(smd.StepUnavailable) as step:
        weight.value(99)
    assert (step.value.step, step.value.mode) == (99, smd.modes.GLOBAL)
    with pytest.raises(smd.NoMoreData) as ended:
        trial.wait_for_steps([7], smd.modes.TRAIN)
    assert (ended.value.step, ended.value.mode, ended.value.last_step) == (7, smd.modes.TRAIN, 2)
    with pytest.raises(smd.InvalidWorker) as worker:
        weight.value(0, worker="worker_7")
    assert worker.value.worker == "worker_7"


def test_a_tensor_without_its_values_says_that_it_has_reductions(tmp_path: Path) -> None:
    trial = recorded(tmp_path, reduction_config=smd.ReductionConfig(["mean"]))
    with pytest.raises(smd.TensorUnavailableForStep) as error:
        trial.tensor("Net_fc.weight").value(1)
    assert (error.value.tname, error.value.step, error.value.has_reductions) == ("Net_fc.weight", 1, True)


def test_errors_keep_their_attributes_between_processes(tmp_path: Path) -> None:
    with pytest.raises(smd.NoMoreData) as ended:
        recorded(tmp_path).wait_for_steps([7])
    copied = pickle.loads(pickle.dumps(ended.value))
    assert (copied.step, copied.mode, copied.last_step) == (7, smd.modes.GLOBAL, 3)


def test_a_rule_may_say_that_it_lacks_something() -> None:
    error = smd.InsufficientInformationForRuleInvocation("MyRule", "threshold is missing")
    assert (error.rule_name, error.message, str(error)) == (
        "MyRule",
        "threshold is missing",
        "MyRule: threshold is missing",
    )
