"""Recorded values are those of the training: compared with copies made before, and a second tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="stage keras of .ci/run has TensorFlow")

import keras
import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdcore as td
from tests.tensorflow.loops import MODELS, UPDATES, Perceptron, batches, compiled, criterion

MakeHook = Callable[..., Any]


def run_of(hook: Any) -> Any:
    hook.close()
    assert not hook._faults
    return td.create_trial(hook.out_dir)


def trained(model: Any, update: Any, way: str, hook: Any) -> list[dict[str, Any]]:
    """Train. Returns loss, gradients and weights of each step, computed apart from the hook."""

    def step(x: Any, y: Any) -> Any:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = criterion(y, model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        update.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run, found = compiled(step, way, hook), []
    for x, y in batches():
        with tf.GradientTape() as tape:
            loss = criterion(y, model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        if isinstance(model, Perceptron):
            model.calls.assign_sub(1.0)
        found.append(
            {
                "loss": float(loss),
                "gradients": [np.array(each) for each in gradients],
                "weights": [each.numpy().copy() for each in model.trainable_variables],
                "outputs": model(x).numpy(),
            }
        )
        if isinstance(model, Perceptron):
            model.calls.assign_sub(1.0)
        run(x, y)
    return found


@pytest.mark.shows("TensorFlow: weights", "values right")
@pytest.mark.shows("TensorFlow: gradients", "values right")
@pytest.mark.shows("TensorFlow: losses and metrics", "values right")
@pytest.mark.parametrize("way", ["eager", "function"])
@pytest.mark.parametrize("update", ["Adam", "by hand"])
def test_weights_gradients_and_loss_of_each_step(way: str, update: str, make_hook: MakeHook) -> None:
    model, hook = Perceptron(), make_hook()
    hook.register_model(model)
    expected = trained(model, UPDATES[update](), way, hook)
    run = run_of(hook)
    names = ["hidden/b", "hidden/w", "scores/b", "scores/w"]
    for number, each in enumerate(expected):
        for name, gradient, weight in zip(names, each["gradients"], each["weights"], strict=True):
            np.testing.assert_array_equal(run.tensor(name).value(number), weight)
            np.testing.assert_allclose(
                run.tensor(f"gradient/{name}").value(number), gradient, rtol=1e-5, atol=1e-7
            )
        np.testing.assert_allclose(run.tensor("loss").value(number), each["loss"], rtol=1e-6)
        np.testing.assert_allclose(
            run.tensor("perceptron_output_0").value(number), each["outputs"], rtol=1e-5
        )
        np.testing.assert_allclose(run.tensor("scores_output_0").value(number), each["outputs"], rtol=1e-5)
        assert float(run.tensor("calls").value(number)) == number
    assert run.collection("biases").tensor_names == {"hidden/b", "scores/b"}


@pytest.mark.shows("TensorFlow: gradients", "values right")
@pytest.mark.parametrize("way", ["eager", "function", "XLA"])
def test_gradients_are_those_of_float64_numpy(way: str, make_hook: MakeHook) -> None:
    numbers = np.random.default_rng(1)
    start = numbers.normal(size=(4, 3))
    weight = tf.Variable(start.astype(np.float32), name="w")
    hook = make_hook()

    def step(x: Any, y: Any) -> Any:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - y))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    run_step = compiled(step, way, hook)
    data = [(numbers.normal(size=(6, 4)), numbers.normal(size=(6, 3))) for _ in range(3)]
    for x, y in data:
        run_step(tf.constant(x, tf.float32), tf.constant(y, tf.float32))
    run, now = run_of(hook), start
    for number, (x, y) in enumerate(data):
        error = x @ now - y
        gradient = 2 * x.T @ error / error.size
        np.testing.assert_allclose(run.tensor("w").value(number), now, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(run.tensor("gradient/w").value(number), gradient, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(run.tensor("loss").value(number), np.mean(error**2), rtol=1e-5)
        now = now - 0.1 * gradient


@pytest.mark.shows("TensorFlow: outputs of layers", "values right")
@pytest.mark.shows("TensorFlow: losses and metrics", "values right")
@pytest.mark.shows("TensorFlow: optimizer state and hyper-parameters", "values right")
@pytest.mark.parametrize("way", ["eager", "function"])
def test_layers_metrics_and_the_optimizer_of_keras(way: str, make_hook: MakeHook) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="hidden"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), momentum=0.9)
    metric, loss_of = keras.metrics.Mean(name="mean_loss"), keras.losses.MeanSquaredError()
    hook = make_hook()

    def step(x: Any, y: Any) -> None:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = loss_of(tf.one_hot(y, 3), model(x, training=True))
            metric.update_state(loss)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=False)
        )

    run_step, hidden, means = compiled(step, way, hook), [], []
    for x, y in batches():
        hidden.append(model.layers[0](x).numpy())
        run_step(x, y)
        means.append(float(metric.result()))
    run = run_of(hook)
    path = model.layers[0].path
    for number in range(len(means)):
        np.testing.assert_allclose(run.tensor(f"{path}_output_0").value(number), hidden[number], rtol=1e-5)
        assert float(run.tensor("optimizer/group_0/lr").value(number)) == pytest.approx(0.1 * 0.5**number)
    metrics = [float(run.tensor("mean_loss").value(number)) for number in range(len(means))]
    assert metrics == pytest.approx(means)
    assert run.tensor("labels").value(0).shape == (8, 3)
    gradient = run.tensor(f"gradient/{path}/kernel").value(0)
    np.testing.assert_allclose(
        run.tensor(f"optimizer/momentum/{path}/kernel").value(1), -0.1 * gradient, rtol=1e-5
    )
    assert {f"{path}/kernel", f"{path}/bias"} <= set(run.tensor_names())


@pytest.mark.shows("TensorFlow: loss scale", "values right")
@pytest.mark.parametrize("way", ["eager", "function"])
def test_gradients_of_a_scaled_loss_are_recorded_without_the_scale(way: str, make_hook: MakeHook) -> None:
    weight = keras.Variable(np.ones((4, 1), np.float32), name="w")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), initial_scale=8.0)
    hook = make_hook()

    def step(x: Any) -> None:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(x @ weight.value)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled, [weight.value]), [weight], strict=False))

    run_step = compiled(step, way, hook)
    for _ in range(2):
        run_step(tf.ones((2, 4)))
    run = run_of(hook)
    np.testing.assert_array_equal(run.tensor(f"gradient/{weight.path}").value(1), np.ones((4, 1)))
    assert float(run.tensor("loss").value(1)) == 4.0
    assert float(run.tensor("optimizer/grad_scale").value(1)) == 8.0
    assert float(run.tensor("optimizer/found_inf").value(1)) == 0.0


@pytest.mark.shows("TensorFlow: replicas", "values right")
def test_replicas_of_a_strategy_are_recorded_as_a_whole_and_apart(make_hook: MakeHook) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def train(hook: Any) -> tuple[list[float], Any]:
        with strategy.scope():
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="only")])
            optimizer = keras.optimizers.SGD(0.1)

        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = criterion(y, model(x, training=True)) / 2
            pairs = zip(
                tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=False
            )
            optimizer.apply_gradients(pairs)
            return loss

        def step(x: Any, y: Any) -> Any:
            losses = strategy.run(replica, args=(x, y))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        run = compiled(step, "function", hook)
        data = tf.data.Dataset.from_tensor_slices(
            tuple(map(tf.concat, zip(*batches(3), strict=False), [0, 0]))
        ).batch(8)
        losses = [float(run(x, y)) for x, y in strategy.experimental_distribute_dataset(data)]
        return losses, [np.array(each) for each in model.get_weights()]

    plain, hook = train(None), make_hook()
    losses, weights = train(hook)
    assert losses == plain[0]
    for one, two in zip(weights, plain[1], strict=True):
        np.testing.assert_array_equal(one, two)
    run = run_of(hook)
    name = next(
        each for each in run.tensor_names() if each.startswith("gradient/") and each.endswith("kernel")
    )
    parts = [run.tensor(f"{name}/replica_{number}").value(1) for number in (0, 1)]
    np.testing.assert_array_equal(run.tensor(name).value(1), parts[0] + parts[1])
    output = next(each for each in run.tensor_names() if each.endswith("only_output_0"))
    assert run.tensor(output).value(1).shape == (8, 3)


@pytest.mark.shows("TensorFlow: generated networks", "values right")
@pytest.mark.shows("TensorFlow: generated networks", "same training")
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    activation=st.sampled_from(["relu", "tanh", None]),
    normal=st.booleans(),
    way=st.sampled_from(["eager", "function"]),
    interval=st.integers(1, 3),
    update=st.sampled_from(["SGD", "by hand"]),
)
def test_generated_networks_train_as_without_the_hook_and_are_recorded_right(
    sizes: list[int],
    activation: str | None,
    normal: bool,
    way: str,
    interval: int,
    update: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from tdcore.hooks.tensorflow import Hook

    def trained_model(hook: Any) -> tuple[list[Any], list[list[Any]]]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Dense(size, activation=activation) for size in sizes]
        parts = [*layers, *[keras.layers.BatchNormalization()] * normal, keras.layers.Dense(3)]
        model, optimizer, before = keras.Sequential([keras.Input((4,)), *parts]), UPDATES[update](), []

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() if hook is None else hook.wrap_tape(tf.GradientTape()) as tape:
                loss = criterion(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=False))

        run = compiled(step, way, hook)
        for x, y in batches(4):
            before.append([np.array(each) for each in model.trainable_variables])
            run(x, y)
        before.append([np.array(each) for each in model.trainable_variables])
        return [each.path for each in model.trainable_variables], before

    names, plain = trained_model(None)
    folder = tmp_path_factory.mktemp("generated") / "run"
    with Hook(
        folder, flusher="thread", save_all=True, save_config=td.SaveConfig(save_interval=interval)
    ) as hook:
        _, before = trained_model(hook)
    for one, two in zip(plain, before, strict=True):
        for left, right in zip(one, two, strict=True):
            np.testing.assert_array_equal(left, right)
    run = td.create_trial(str(folder))
    for name, index in zip(names, range(len(names)), strict=True):
        for step in range(0, 4, interval):
            np.testing.assert_array_equal(run.tensor(name).value(step), plain[step][index])
            if update == "by hand":
                changed = plain[step][index] - np.float32(0.1) * run.tensor(f"gradient/{name}").value(step)
                np.testing.assert_allclose(changed, plain[step + 1][index], rtol=1e-5, atol=1e-6)
    assert MODELS
