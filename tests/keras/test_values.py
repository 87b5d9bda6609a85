"""Recorded values are equal to an independent computation of the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras", reason="stage keras of .ci/run has Keras")

import keras
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

import tdcore as td
from tdcore.errors import TensorUnavailableForStep
from tdcore.rules import AbsentGradient, run
from tests.keras.cases import BACKEND, BATCH, built, data_of, shows, train
from tests.keras.reference import Before, gradients_of, outputs_of

CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-6}
MakeHook = Callable[..., Any]


def trained(model: Any, hook: Any, epochs: int = 3) -> list[dict[str, Any]]:
    """Train without shuffling. Returns the weights before each step."""
    x, y = data_of()
    before = Before()
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[before, hook])
    hook.close()
    return before.weights


def compare(model: Any, run: Any, weights: list[dict[str, Any]], step: int) -> None:
    """Compare a step of the run with the model at the weights that it had then."""
    x, y = data_of()
    start = step % 2 * BATCH
    x, y = x[start : start + BATCH], y[start : start + BATCH]
    for variable in model.weights:
        variable.assign(weights[step][variable.path])
        np.testing.assert_array_equal(run.tensor(variable.path).value(step), weights[step][variable.path])
    outputs = outputs_of(model, x)
    for variable in model.weights:
        variable.assign(weights[step][variable.path])
    loss, gradients = gradients_of(model, x, y)
    assert run.tensor("loss").value(step) == pytest.approx(loss, rel=1e-5)
    for path, gradient in gradients.items():
        np.testing.assert_allclose(run.tensor(f"gradient/{path}").value(step), gradient, **CLOSE)
    for name, output in outputs.items():
        if f"{name}_output_0" in run.tensor_names():
            np.testing.assert_allclose(run.tensor(f"{name}_output_0").value(step), output, **CLOSE)


def without_dropout() -> Any:
    model = built("functional")
    model.get_layer("dropped").rate = 0.0
    return model


@shows("weights", "values right")
@shows("gradients", "values right")
@shows("outputs of layers", "values right")
@shows("losses and metrics", "values right")
@pytest.mark.parametrize("case", ["functional", "eager"])
def test_weights_gradients_outputs_and_loss_are_those_of_a_tape(case: str, make_hook: MakeHook) -> None:
    model = built(case)
    model.get_layer("dropped").rate = 0.0
    hook = make_hook(save_config=td.SaveConfig(save_interval=2))
    weights = trained(model, hook)
    run = td.create_trial(hook.out_dir)
    assert run.tensor("hidden_output_0").steps() == [0, 2, 4]
    for step in (0, 2, 4):
        compare(model, run, weights, step)


@shows("weights", "values right")
def test_a_model_that_is_built_in_its_first_step_has_weights_there(make_hook: MakeHook) -> None:
    hook = make_hook()
    model = built("sequential")
    trained(model, hook)
    names = [each.path for each in model.weights]
    run = td.create_trial(hook.out_dir)
    np.random.seed(0)
    keras.utils.set_random_seed(3)
    fresh = built("sequential")
    fresh.build((None, 4))
    for name, value in zip(names, fresh.get_weights(), strict=True):
        assert run.tensor(name).steps()[0] == 0
        assert run.tensor(name).value(0).shape == value.shape


@shows("outputs of layers", "values right")
def test_layers_of_the_same_name_and_repeated_calls_are_kept_apart(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained(built("subclassed"), hook)
    run = td.create_trial(hook.out_dir)
    names = [name for name in run.tensor_names() if "part" in name and "output" in name]
    assert len(names) == 2
    first = min(names, key=len)
    calls = [row["call"] for row in run.rows().to_pylist() if row["name"] == first and row["step"] == 0]
    assert sorted(calls) == [0, 1]
    assert not np.array_equal(run.tensor(first).value(0, call=0), run.tensor(first).value(0, call=1))
    assert {name for name in run.tensor_names() if name.startswith("gradient/") and "part" in name}


@shows("optimizer state and hyper-parameters", "values right")
def test_the_learning_rate_follows_the_schedule(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained(built("schedule"), hook)
    run = td.create_trial(hook.out_dir)
    rates = [float(run.tensor("optimizer/group_0/lr").value(step)) for step in range(6)]
    assert rates == pytest.approx([0.1 * 0.5**step for step in range(6)], rel=1e-6)


@shows("optimizer state and hyper-parameters", "values right")
def test_the_state_of_the_optimizer_is_named_after_its_weights(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained(built("functional"), hook)
    run = td.create_trial(hook.out_dir)
    moment = run.tensor("optimizer/momentum/hidden/kernel")
    gradient = run.tensor("gradient/hidden/kernel")
    np.testing.assert_allclose(moment.value(1), 0.1 * gradient.value(0), **CLOSE)


@shows("weights", "values right")
def test_moving_statistics_are_those_before_the_step(make_hook: MakeHook) -> None:
    hook = make_hook(include_regex="moving_", save_all=False)
    weights = trained(built("functional"), hook)
    run = td.create_trial(hook.out_dir)
    for step in range(6):
        np.testing.assert_array_equal(
            run.tensor("normal/moving_mean").value(step), weights[step]["normal/moving_mean"]
        )
    assert not run.tensor("normal/moving_mean").value(0).any()


def test_frozen_weights_are_listed_and_have_no_gradient(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained(built("frozen"), hook)
    run = td.create_trial(hook.out_dir)
    assert hook._notes["frozen"] == ["hidden/kernel", "hidden/bias"]
    assert "gradient/hidden/kernel" not in run.tensor_names()
    assert "hidden/kernel" in run.tensor_names()


@shows("gradients", "values right")
@pytest.mark.skipif(BACKEND == "jax", reason="gradients of JAX always exist")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_gradient_that_does_not_exist_has_rows_and_a_finding(make_hook: MakeHook) -> None:
    inputs = keras.Input((4,))
    cut = layers.Lambda(keras.ops.stop_gradient)(layers.Dense(5, name="encoder")(inputs))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax", name="head")(cut))
    model.compile("sgd", "sparse_categorical_crossentropy")
    hook = make_hook()
    model.fit(*data_of(), batch_size=BATCH, epochs=4, verbose=0, callbacks=[hook])
    hook.close()
    trial = td.create_trial(hook.out_dir)
    with pytest.raises(TensorUnavailableForStep, match="no backward reached it"):
        trial.tensor("gradient/encoder/kernel").value(0)
    assert trial.tensor("gradient/head/kernel").steps()
    (verdict,) = run(hook.out_dir, [AbsentGradient(patience=3)], write_findings=False).verdicts
    assert verdict.findings[0].numbers["kind"] == "no_backward"
    assert "encoder/" in verdict.findings[0].why


@pytest.mark.skipif(BACKEND == "torch", reason="a loop of Python, whose layers are called one by one")
def test_layers_in_the_loop_of_an_rnn_are_noted(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained(built("recurrent"), hook)
    run = td.create_trial(hook.out_dir)
    assert run.tensor("memory_output_0").value(0).shape == (BATCH, 3)
    assert any("lstm_cell" in each for each in hook._notes["not_captured"])


@shows("loss scale", "values right")
def test_gradients_of_a_scaled_loss_are_unscaled_and_skipped_steps_are_shown(make_hook: MakeHook) -> None:
    model = built("mixed precision")
    model.optimizer.initial_scale = 2.0**24  # too large for half precision
    hook = make_hook()
    trained(model, hook, epochs=8)
    run = td.create_trial(hook.out_dir)
    found = [float(run.tensor("optimizer/found_inf").value(step)) for step in range(16)]
    scale = [float(run.tensor("optimizer/grad_scale").value(step)) for step in range(16)]
    assert found[0] == 1.0
    for step in range(15):
        assert scale[step + 1] == scale[step] / (2 if found[step] else 1)
    finite = found.index(0.0)
    last = run.tensor("gradient/scores/bias").value(finite)
    assert 0 < np.abs(last.astype(np.float64)).max() < 1


@shows("labels and predictions", "values right")
def test_labels_predictions_and_metrics_are_recorded(make_hook: MakeHook) -> None:
    hook = make_hook(include_collections=["labels", "predictions", "metrics"], save_all=False)
    trained(built("functional"), hook)
    run = td.create_trial(hook.out_dir)
    _, y = data_of()
    np.testing.assert_array_equal(np.ravel(run.tensor("labels").value(1)), y[BATCH:])
    assert run.tensor("predictions").value(1).shape == (BATCH, 3)
    assert run.tensor("accuracy").steps() == list(range(6))
    assert "not_recorded" not in hook._notes
    assert set(run.tensor_names()) == {"labels", "predictions", "accuracy", "loss", "epoch"}


def test_several_inputs_and_outputs_are_numbered(make_hook: MakeHook) -> None:
    keras.utils.set_random_seed(1)
    one, two = keras.Input((4,), name="one"), keras.Input((2,), name="two")
    both = layers.Concatenate(name="both")([one, two])
    model = keras.Model([one, two], [layers.Dense(1, name="a")(both), layers.Dense(1, name="b")(both)])
    model.compile("sgd", ["mse", "mae"], jit_compile=False)
    hook = make_hook()
    x = [np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)]
    model.fit(x, [np.zeros((8, 1)), np.ones((8, 1))], epochs=1, verbose=0, callbacks=[hook])
    hook.close()
    names = td.create_trial(hook.out_dir).tensor_names()
    assert {"labels_0", "labels_1", "predictions_0", "predictions_1"} <= set(names)
    assert {"both_input_0", "both_input_1", "a_output_0", "b_output_0", "a_loss", "b_loss"} <= set(names)


LAYERS = st.sampled_from(["dense", "relu", "normal", "residual", "reshape", "twice"])


def stacked(kinds: list[str]) -> Any:
    inputs = keras.Input((4,))
    x = inputs
    twice = layers.Dense(4)
    for kind in kinds:
        if kind == "dense":
            x = layers.Dense(4, activation="tanh")(x)
        elif kind == "relu":
            x = layers.ReLU()(x)
        elif kind == "normal":
            x = layers.LayerNormalization()(x)
        elif kind == "residual":
            x = layers.Add()([x, layers.Dense(4)(x)])
        elif kind == "reshape":
            x = layers.Flatten()(layers.Reshape((2, 2))(x))
        else:
            x = twice(x)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return model


@shows("generated architectures", "values right")
@shows("generated architectures", "same training")
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(kinds=st.lists(LAYERS, min_size=1, max_size=4), interval=st.integers(1, 4))
def test_any_architecture_trains_the_same_and_has_right_values(
    kinds: list[str], interval: int, make_hook: MakeHook, tmp_path: Path
) -> None:
    keras.utils.set_random_seed(7)
    plain = train(stacked(kinds), whole=False)
    keras.utils.set_random_seed(7)
    model = stacked(kinds)
    hook = make_hook(
        f"run-{len(list(tmp_path.iterdir()))}", save_config=td.SaveConfig(save_interval=interval)
    )
    assert train(model, hook, whole=False) == plain
    assert not hook._faults
    keras.utils.set_random_seed(7)
    model = stacked(kinds)
    hook = make_hook(
        f"run-{len(list(tmp_path.iterdir()))}", save_config=td.SaveConfig(save_interval=interval)
    )
    weights = trained(model, hook)
    compare(model, td.create_trial(hook.out_dir), weights, interval)


@shows("replicas and shardings", "values right")
@shows("replicas and shardings", "same training")
@pytest.mark.skipif(BACKEND != "tensorflow", reason="a strategy of TensorFlow")
def test_replicas_are_recorded_each_and_together(make_hook: MakeHook) -> None:
    import tensorflow as tf

    def fit(*callbacks: Any) -> list[Any]:
        keras.utils.set_random_seed(2)
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax", name="only")])
            model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
        x, y = data_of()
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=list(callbacks), shuffle=False)
        found: list[Any] = model.get_weights()
        return found

    plain = fit()
    hook = make_hook()
    for one, two in zip(fit(hook), plain, strict=True):
        np.testing.assert_array_equal(one, two)
    hook.close()
    assert not hook._faults
    run = td.create_trial(hook.out_dir)
    name = next(each for each in run.tensor_names() if each.endswith("only_output_0"))
    parts = [run.tensor(f"{name}/replica_{number}").value(0) for number in (0, 1)]
    np.testing.assert_array_equal(run.tensor(name).value(0), np.concatenate(parts))
    kernel = next(each for each in run.tensor_names() if each.endswith("only/kernel"))
    changed = run.tensor(kernel.removeprefix("gradient/")).value(1)
    before = run.tensor(kernel.removeprefix("gradient/")).value(0)
    gradient = run.tensor(f"gradient/{kernel.removeprefix('gradient/')}").value(0)
    np.testing.assert_allclose(changed, before - 0.01 * gradient, **CLOSE)


@shows("replicas and shardings", "values right")
@pytest.mark.skipif(BACKEND != "jax", reason="a sharding of JAX")
def test_sharded_arrays_are_recorded_whole(make_hook: MakeHook) -> None:
    import jax

    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices()))
    try:
        model = built("shared layer")
        hook = make_hook()
        trained(model, hook)
        assert not hook._faults
        run = td.create_trial(hook.out_dir)
        assert run.tensor("twice_output_0").value(1, call=1).shape == (BATCH, 4)
        assert run.tensor("gradient/twice/kernel").value(1).shape == (4, 4)
    finally:
        keras.distribution.set_distribution(None)
