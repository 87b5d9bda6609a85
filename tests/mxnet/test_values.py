"""Recorded values are those of the training, at the right steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdcore as td
from tdcore.errors import TensorUnavailableForStep
from tdcore.hooks.mxnet import Hook
from tdcore.trial import Trial
from tests.mxnet.networks import NETWORKS, Training, batches

TRAIN, EVAL = td.modes.TRAIN, td.modes.EVAL


def hooked(place: Path, training: Training, interval: int = 1) -> Hook:
    hook = Hook(place, save_all=True, save_config=td.SaveConfig(save_interval=interval), flusher="thread")
    hook.register_block(training.net)
    hook.register_loss(training.criterion)
    return hook


def value(trial: Trial, name: str, step: int, mode: Any = TRAIN) -> np.ndarray[Any, Any]:
    return np.asarray(trial.tensor(name).value(step, mode=mode))


@pytest.mark.shows("MXNet: loops of autograd.record()", "values right")
@pytest.mark.shows("MXNet: hybridized blocks", "values right")
@pytest.mark.shows("MXNet: weights", "values right")
@pytest.mark.shows("MXNet: gradients", "values right")
@pytest.mark.shows("MXNet: losses", "values right")
@pytest.mark.shows("MXNet: hyper-parameters", "values right")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    network=st.sampled_from(sorted(NETWORKS)),
    hybrid=st.booleans(),
    optimizer=st.sampled_from(["sgd", "adam", "nag", "rmsprop"]),
    interval=st.integers(1, 3),
)
def test_weights_gradients_and_losses_are_those_of_the_loop(
    tmp_path_factory: pytest.TempPathFactory, network: str, hybrid: bool, optimizer: str, interval: int
) -> None:
    place = tmp_path_factory.mktemp("run")
    training = Training(network, hybrid=hybrid, optimizer=optimizer)
    expected = []
    with hooked(place, training, interval):
        for x, y in batches(5):
            loss = training.step(x, y)
            expected.append((training.weights, training.gradients, loss))
    trial = td.create_trial(place)
    name = training.criterion.name
    for step in range(0, 5, interval):
        weights, gradients, loss = expected[step]
        for key, gradient in gradients.items():
            np.testing.assert_array_equal(value(trial, f"gradient/{key}", step), gradient)
            np.testing.assert_array_equal(value(trial, key, step), weights[key])
        np.testing.assert_array_equal(value(trial, f"{name}_output_0", step), loss)
        assert value(trial, f"{name}_mean", step) == pytest.approx(loss.mean(dtype=np.float64))
        assert value(trial, "optimizer/group_0/lr", step) == 0.05
    assert trial.tensor(f"{name}_output_0").steps(mode=TRAIN) == list(range(0, 5, interval))


@pytest.mark.shows("MXNet: inputs and outputs of blocks", "values right")
def test_inputs_and_outputs_are_those_that_the_blocks_had(tmp_path: Path) -> None:
    training = Training("shared")
    seen: dict[str, list[np.ndarray[Any, Any]]] = {}

    def note(block: Any, inputs: Any, outputs: Any) -> None:
        if not isinstance(outputs, nd.NDArray):
            return  # shapes are inferred with symbols
        seen.setdefault(f"{block.name}_input_0", []).append(inputs[0].asnumpy())
        seen.setdefault(f"{block.name}_output_0", []).append(outputs.asnumpy())

    training.net.apply(lambda block: block.register_forward_hook(note))
    with hooked(tmp_path, training):
        training.step(*batches(1)[0])
    trial = td.create_trial(tmp_path)
    assert len(seen[f"{training.net.first.name}_output_0"]) == 2
    for name, values in seen.items():
        found = [np.asarray(trial.tensor(name).value(0, call=call)) for call in range(len(values))]
        for one, other in zip(found, values, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.shows("MXNet: validation within a step", "values right")
def test_forwards_in_prediction_mode_are_eval_steps_and_do_not_end_the_training_step(
    tmp_path: Path,
) -> None:
    training = Training("dense")
    with hooked(tmp_path, training):
        for x, y in batches(3):
            with autograd.record():
                first = training.criterion(training.net(x), y)
            training.validate(x)  # within the step
            with autograd.record():
                second = training.criterion(training.net(x), y)
            autograd.backward([first, second])
            training.trainer.step(len(x))
    trial = td.create_trial(tmp_path)
    loss = trial.tensor(f"{training.criterion.name}_mean")
    assert loss.steps(mode=TRAIN) == [0, 1, 2]
    assert trial.tensor(f"{training.net.name}_output_0").steps(mode=EVAL) == [0, 1, 2]
    for name in trial.tensor_names(collection="weights"):
        assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2]


@pytest.mark.shows("MXNet: several trainers", "values right")
def test_two_trainers_that_update_one_after_the_other_share_a_step(tmp_path: Path) -> None:
    training = Training("dense")
    parameters = training.net.collect_params()
    head = {name: each for name, each in parameters.items() if name.startswith("dense1") or "1_" in name}
    body = {name: each for name, each in parameters.items() if name not in head}
    trainers = [
        gluon.Trainer(list(some.values()), "sgd", {"learning_rate": rate})
        for some, rate in ((body, 0.1), (head, 0.01))
    ]
    with hooked(tmp_path, training):
        for x, y in batches(2):
            with autograd.record():
                loss = training.criterion(training.net(x), y)
            loss.backward()
            for trainer in trainers:
                trainer.step(len(x))
    trial = td.create_trial(tmp_path)
    for name in parameters:
        assert trial.tensor(f"gradient/{name}").steps(mode=TRAIN) == [0, 1]
    rates = [value(trial, f"{prefix}/group_0/lr", 1) for prefix in ("optimizer", "optimizer_1")]
    assert rates == [0.1, 0.01]


@pytest.mark.shows("MXNet: gradients", "values right")
def test_a_parameter_without_a_fresh_gradient_is_absent(tmp_path: Path) -> None:
    training = Training("dense")
    unused = nn.Dense(2, in_units=2, prefix="unused_")
    unused.initialize()
    parameters = [*training.net.collect_params().values(), *unused.collect_params().values()]
    trainer = gluon.Trainer(parameters, "sgd")
    with hooked(tmp_path, training) as hook:
        hook.register_block(unused)
        x, y = batches(1)[0]
        with autograd.record():
            loss = training.criterion(training.net(x), y)
        loss.backward()
        trainer.step(len(x), ignore_stale_grad=True)
    trial = td.create_trial(tmp_path)
    with pytest.raises(TensorUnavailableForStep, match="no backward reached it"):
        value(trial, f"gradient/{unused.weight.name}", 0)


def test_a_block_that_is_trained_through_another_method_is_recorded_from_its_second_step_on(
    tmp_path: Path,
) -> None:
    training = Training("shared")
    forward = training.net.last
    with hooked(tmp_path, training):
        for x, y in batches(4):
            with autograd.record():
                loss = training.criterion(forward(training.net.first(x)), y)
            loss.backward()
            gradient = forward.weight.grad().asnumpy()
            training.trainer.step(len(x), ignore_stale_grad=True)
            training.validate(x)
    trial = td.create_trial(tmp_path)
    name = f"gradient/{forward.weight.name}"
    assert trial.tensor(name).steps(mode=TRAIN) == [0, 1, 2]
    np.testing.assert_array_equal(value(trial, name, 2), gradient)
    assert trial.tensor(f"{training.net.name}_output_0").steps(mode=EVAL) == [0, 1, 2, 3]
    assert "another method than forward" in trial.notes()["not_captured"][0]


@pytest.mark.shows("MXNet: inputs and outputs of blocks", "values right")
def test_what_roots_and_children_share_is_recorded_once(tmp_path: Path) -> None:
    training = Training("dense")
    layer = nn.Dense(12, in_units=12, prefix="twice_")
    net = nn.Sequential()
    net.add(layer, layer, training.net)
    layer.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    training.net = net
    with hooked(tmp_path, training) as hook:
        hook.register_block(layer)
        x, y = batches(1)[0]
        with autograd.record():
            loss = training.criterion(net(x), y)
        loss.backward()
        trainer.step(len(x))
    trial = td.create_trial(tmp_path)
    rows = trial.stats("^twice_").to_pylist()
    found = sorted((row["name"], row["call"]) for row in rows)
    ends = [(f"twice_{end}_0", call) for end in ("input", "output") for call in (0, 1)]
    assert found == sorted([*ends, ("twice_bias", 0), ("twice_weight", 0)])


@pytest.mark.shows("MXNet: gradients", "values right")
def test_a_second_update_in_a_step_is_a_call_of_its_own(tmp_path: Path) -> None:
    training = Training("dense")
    with hooked(tmp_path, training):
        x, y = batches(1)[0]
        training.step(x, y)
        training.trainer.step(len(x), ignore_stale_grad=True)
    trial = td.create_trial(tmp_path)
    for name, gradient in training.gradients.items():
        np.testing.assert_array_equal(value(trial, f"gradient/{name}", 0), gradient)
        status = [(row["call"], row["status"]) for row in trial.stats(f"^gradient/{name}$").to_pylist()]
        assert status == [(0, "ok"), (1, "absent")]


@pytest.mark.shows("MXNet: weights", "values right")
def test_two_roots_without_shapes_have_their_weights_in_the_first_step(tmp_path: Path) -> None:
    training, second = Training("dense"), nn.Dense(2, prefix="second_")
    second.initialize()
    with hooked(tmp_path, training) as hook:
        hook.register_block(second)
        x, _ = batches(1)[0]
        with autograd.record():
            second(training.net(x))
    trial = td.create_trial(tmp_path)
    for name in [*training.net.collect_params(), *second.collect_params()]:
        assert trial.tensor(name).steps() == [0]


@pytest.mark.shows("MXNet: types of elements", "values right")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
def test_values_of_every_type_are_recorded_as_they_are(tmp_path: Path, dtype: str) -> None:
    array = nd.arange(12).reshape((3, 4)).astype(dtype)
    with Hook(tmp_path, flusher="thread") as hook:
        hook.add_collection(td.CollectionConfig(name="custom", save_config=td.SaveConfig(save_interval=1)))
        net = nn.Lambda(lambda x: x)
        hook.register_block(net)
        hook.add_collection(td.CollectionConfig(name="inputs", save_config=td.SaveConfig(save_interval=1)))
        net(array)
    found = value(td.create_trial(tmp_path), f"{net.name}_input_0", 0, EVAL)
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, array.asnumpy())


def test_what_is_inside_a_hybridized_block_is_noted(tmp_path: Path) -> None:
    training = Training("dense", hybrid=True)
    with hooked(tmp_path, training):
        training.step(*batches(1)[0])
    trial = td.create_trial(tmp_path)
    assert "hybridized" in trial.notes()["not_captured"][0]
    assert trial.tensor(f"{training.net.name}_output_0").steps() == [0]


@pytest.mark.shows("MXNet: steps that save nothing", "cost")
def test_a_step_that_saves_nothing_attaches_no_hook_and_reads_nothing(tmp_path: Path) -> None:
    training = Training("dense")
    with hooked(tmp_path, training, interval=1000) as hook:
        data = batches(4)
        training.step(*data[0])
        reads = hook.counters().tensors
        for x, y in data[1:]:
            with autograd.record():
                loss = training.criterion(training.net(x), y)
                assert not any(block._forward_hooks for block in training.net._children.values())
            loss.backward()
            training.trainer.step(len(x))
        assert hook.counters().tensors == reads
