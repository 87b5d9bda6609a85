"""Which step a tape or an update of an eager loop belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="stage keras of .ci/run has TensorFlow")

import keras
import numpy as np
import tensorflow as tf

import tdcore as td
from tdcore.modes import ModeKeys

MakeHook = Callable[..., Any]


def variable(*shape: int, name: str = "w") -> Any:
    return tf.Variable(tf.ones(shape), name=name)


def run_of(hook: Any) -> Any:
    hook.close()
    assert not hook._faults
    return td.create_trial(hook.out_dir)


def gradient_of(hook: Any, weight: Any, factor: float = 1.0) -> Any:
    with hook.wrap_tape(tf.GradientTape()) as tape:
        loss = factor * tf.reduce_sum(weight)
    return tape.gradient(loss, weight)


@pytest.mark.shows("TensorFlow: accumulation, several and persistent tapes", "values right")
@pytest.mark.parametrize("by_hand", [False, True])
def test_an_accumulation_of_gradients_is_one_step(by_hand: bool, make_hook: MakeHook) -> None:
    weight, optimizer, hook = variable(2), keras.optimizers.SGD(0.1), make_hook()
    for _ in range(3):
        total = gradient_of(hook, weight) + gradient_of(hook, weight, 2.0)
        if by_hand:
            weight.assign_sub(0.1 * total)
        else:
            optimizer.apply_gradients([(total, weight)])
    run = run_of(hook)
    assert hook.mode_steps[ModeKeys.TRAIN] == 2
    calls = [float(run.tensor("loss").value(1, call=call)) for call in (0, 1)]
    assert calls == pytest.approx([2 * (1 - 0.3), 4 * (1 - 0.3)])
    gradients = run.tensor("gradient/w")
    if by_hand:  # of each tape
        assert [float(gradients.value(1, call=call)[0]) for call in (0, 1)] == [1.0, 2.0]
    else:  # as the optimizer used it
        assert float(gradients.value(1)[0]) == 3.0


def test_a_tape_without_a_gradient_begins_no_further_step(make_hook: MakeHook) -> None:
    weight, hook = variable(2), make_hook()
    for _ in range(3):
        with hook.wrap_tape(tf.GradientTape()):
            tf.reduce_sum(weight)
        weight.assign_sub(0.1 * gradient_of(hook, weight))
    run_of(hook)
    assert hook.mode_steps[ModeKeys.TRAIN] == 2


def test_an_evaluation_does_not_end_the_training_step(make_hook: MakeHook) -> None:
    weight, optimizer, hook = variable(2), keras.optimizers.SGD(0.1), make_hook()
    hook.wrap_optimizer(optimizer)
    for _ in range(2):
        first = gradient_of(hook, weight)
        hook.set_mode(ModeKeys.EVAL)
        gradient_of(hook, weight, 5.0)
        hook.set_mode(ModeKeys.TRAIN)
        optimizer.apply_gradients([(first + gradient_of(hook, weight), weight)])
    run = run_of(hook)
    assert hook.mode_steps == {ModeKeys.TRAIN: 1, ModeKeys.EVAL: 1, ModeKeys.PREDICT: -1, ModeKeys.GLOBAL: -1}
    assert run.tensor("loss").steps(ModeKeys.EVAL) == [0, 1]
    assert float(run.tensor("loss").value(1, mode=ModeKeys.EVAL)) == pytest.approx(5 * 2 * 0.8)
    assert float(run.tensor("gradient/w").value(1, mode=ModeKeys.TRAIN)[0]) == 2.0


@pytest.mark.shows("TensorFlow: wrapped optimizers", "values right")
def test_a_wrapped_optimizer_is_enough(make_hook: MakeHook) -> None:
    weight, hook = variable(2), make_hook()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    assert hook.wrap_optimizer(optimizer) is optimizer
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    run = run_of(hook)
    assert run.tensor("gradient/w").steps() == [0, 1, 2]
    np.testing.assert_allclose(run.tensor("w").value(1), [0.9, 0.9], rtol=1e-6)
    assert run.tensor("optimizer/momentum/w").steps() == [1, 2]
    assert float(run.tensor("optimizer/group_0/lr").value(0)) == pytest.approx(0.1)


@pytest.mark.shows("TensorFlow: wrapped optimizers", "nothing left behind")
def test_an_optimizer_without_keras_is_wrapped_until_close(make_hook: MakeHook) -> None:
    weight, hook = variable(2), make_hook()
    optimizer = hook.wrap_optimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
    for _ in range(2):
        gradient = gradient_of(hook, weight)
        optimizer.apply_gradients([(gradient, weight)])
    run = run_of(hook)
    assert run.tensor("gradient/w").steps() == [0, 1]
    assert "apply_gradients" not in vars(optimizer)


def test_gradients_of_inner_tapes_and_jacobians_are_not_recorded(make_hook: MakeHook) -> None:
    weight, hook = variable(2), make_hook()
    with hook.wrap_tape(tf.GradientTape()) as outer:
        with hook.wrap_tape(tf.GradientTape()) as inner:
            loss = tf.reduce_sum(weight**3)
        first = inner.gradient(loss, weight)
        penalty = tf.reduce_sum(first**2)
    second = outer.gradient(penalty, weight)
    with hook.wrap_tape(tf.GradientTape()) as tape:
        values = weight**2
    np.testing.assert_allclose(tape.jacobian(values, weight), 2 * np.eye(2))
    run = run_of(hook)
    np.testing.assert_allclose(second, [36.0, 36.0])
    np.testing.assert_array_equal(run.tensor("gradient/w").value(0), second)
    assert float(run.tensor("loss").value(0)) == 18.0


@pytest.mark.shows("TensorFlow: gradients", "values right")
def test_a_gradient_that_does_not_exist_has_a_row(make_hook: MakeHook) -> None:
    used, unused, hook = variable(2, name="used"), variable(2, name="unused"), make_hook()
    with hook.wrap_tape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(used)
    assert tape.gradient(loss, [used, unused])[1] is None
    run = run_of(hook)
    status = {row["name"]: row["status"] for row in run.stats("^gradient/").to_pylist()}
    assert status == {"gradient/used": "ok", "gradient/unused": "absent"}


def test_variables_of_one_name_get_numbers(make_hook: MakeHook) -> None:
    one, two, hook = variable(2), variable(3), make_hook()
    with hook.wrap_tape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(one) + tf.reduce_sum(two)
    tape.gradient(loss, [one, two])
    run = run_of(hook)
    assert run.tensor("w").value(0).shape == (2,)
    assert run.tensor("gradient/w_1").value(0).shape == (3,)


def test_a_wrapped_tape_is_the_same_tape(make_hook: MakeHook) -> None:
    class Own(tf.GradientTape):  # type: ignore[misc]  # tensorflow may not be installed
        pass

    tape, hook = Own(persistent=True), make_hook()
    assert hook.wrap_tape(tape) is tape
    assert isinstance(tape, Own)
    with pytest.raises(td.errors.ConfigError, match=r"wrap_tape takes a tf\.GradientTape; got int"):
        hook.wrap_tape(3)
    with pytest.raises(td.errors.ConfigError, match=r"wrap_optimizer takes an optimizer.*got int"):
        hook.wrap_optimizer(3)
    with pytest.raises(td.errors.ConfigError, match=r"register_model takes a Keras model"):
        hook.register_model(3)


def test_layers_that_are_called_outside_of_tapes_are_not_recorded(make_hook: MakeHook) -> None:
    layer, hook = keras.layers.Dense(1), make_hook()
    for _ in range(2):
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(layer(tf.ones((2, 3))))
        for each, weight in zip(tape.gradient(loss, layer.trainable_variables), layer.variables, strict=True):
            weight.assign_sub(each)
        layer(tf.ones((7, 3)))
    run = run_of(hook)
    name = f"{layer.path}_output_0"
    assert [run.tensor(name).value(step).shape for step in run.tensor(name).steps()] == [(2, 1), (2, 1)]
