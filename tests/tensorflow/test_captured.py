"""Functions of capture_step(): compiled as by tf.function, and recorded, or the reason is noted."""

# mypy: disable-error-code="untyped-decorator"
# TensorFlow may not be installed: its decorators have no types.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="stage keras of .ci/run has TensorFlow")

import numpy as np
import tensorflow as tf

import tdcore as td
from tdcore.errors import CaptureError, ConfigError
from tdcore.modes import ModeKeys

MakeHook = Callable[..., Any]


def run_of(hook: Any) -> Any:
    hook.close()
    assert not hook._faults
    return td.create_trial(hook.out_dir)


def noted(hook: Any) -> str:
    return " ".join(hook._notes.get("not_captured", ()))


@pytest.mark.shows("TensorFlow: weights", "values right")
def test_variables_that_the_first_call_creates_are_recorded_in_it(make_hook: MakeHook) -> None:
    def train(hook: Any) -> list[float]:
        tf.random.set_seed(4)
        made: list[Any] = []

        def step(x: Any) -> Any:
            if not made:
                made.append(tf.Variable(tf.random.normal((3,)), name="made"))
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(made[0] * x))
            made[0].assign_sub(0.1 * tape.gradient(loss, made[0]))
            return loss

        run = tf.function(step) if hook is None else hook.capture_step(step)
        return [float(run(tf.constant([1.0, 2.0, 3.0]))) for _ in range(4)]

    plain, hook = train(None), make_hook()
    assert train(hook) == plain
    run = run_of(hook)
    assert run.tensor("made").steps() == run.tensor("gradient/made").steps() == [0, 1, 2, 3]


@pytest.mark.shows("TensorFlow: loops and captured functions", "same training")
def test_a_new_shape_is_traced_as_without_the_hook(make_hook: MakeHook) -> None:
    weight = tf.Variable([1.0])

    def traces(hook: Any) -> int:
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * x)
            return tape.gradient(loss, weight)

        run = tf.function(step) if hook is None else hook.capture_step(step)
        for size in (2, 3, 2, 3, 4):
            run(tf.ones(size))
        return int(run.experimental_get_tracing_count())

    never = make_hook("never", save_config=td.SaveConfig(start_step=100))
    assert traces(None) == traces(make_hook()) == traces(never) == 3


@pytest.mark.shows("TensorFlow: loops and captured functions", "values right")
def test_input_signatures_autograph_and_keyword_arguments_work(make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0, 1.0], name="w"), make_hook()

    @hook.capture_step(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([])], reduce_retracing=True)
    def step(x: Any, factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * weight)
            if factor > 1.0:  # of autograph
                loss = loss * factor
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return {"loss": loss, "none": None}

    assert float(step(tf.ones((3, 2)), factor=tf.constant(2.0))["loss"]) == 12.0
    assert step(tf.ones((1, 2)), tf.constant(1.0))["none"] is None
    assert step.__name__ == "step"
    run = run_of(hook)
    np.testing.assert_array_equal(run.tensor("gradient/w").value(0), [6.0, 6.0])
    np.testing.assert_array_equal(run.tensor("gradient/w").value(1), [1.0, 1.0])


@pytest.mark.shows("TensorFlow: outputs of layers", "values right")
def test_tensors_of_an_inner_function_are_outputs_of_the_step(make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0, 2.0], name="w"), make_hook()

    @tf.function
    def inner(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * weight)
        hook.save_tensor("product", x * weight)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    @hook.capture_step
    def step(x: Any) -> Any:
        return inner(x)

    for _ in range(2):
        step(tf.constant([3.0, 4.0]))
    run = run_of(hook)
    np.testing.assert_array_equal(run.tensor("gradient/w").value(1), [3.0, 4.0])
    np.testing.assert_array_equal(run.tensor("product").value(0), [3.0, 8.0])


def test_an_inner_function_that_xla_compiles_is_noted(make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0, 2.0], name="w"), make_hook()

    @tf.function(jit_compile=True)
    def inner(x: Any) -> Any:
        return x * weight

    @hook.capture_step
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner(x))
        return tape.gradient(loss, weight)

    np.testing.assert_array_equal(step(tf.constant([3.0, 4.0])), [3.0, 4.0])
    assert "inner: a compiled function of its own" in noted(hook)
    assert run_of(hook).tensor("gradient/w").steps() == [0]


def test_tensors_in_a_loop_are_noted(make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0], name="w"), make_hook()

    @hook.capture_step
    def step(x: Any) -> Any:
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * weight)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return weight.read_value()

    np.testing.assert_allclose(step(tf.ones(1)), [0.7], rtol=1e-6)
    assert "gradient/w: it is computed in a loop" in noted(hook)
    assert run_of(hook).tensor("w").steps() == [0]


@pytest.mark.shows("TensorFlow: random numbers and other effects", "same training")
@pytest.mark.parametrize("interval", [1, 2])
def test_a_step_with_random_numbers_of_one_function_is_recorded_as_far_as_possible(
    interval: int, make_hook: MakeHook
) -> None:
    def train(hook: Any) -> list[float]:
        tf.random.set_seed(4)
        weight = tf.Variable([1.0, 1.0], name="w")

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.dropout(x, 0.5) * weight)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
            return loss

        run = tf.function(step) if hook is None else hook.capture_step(step)
        return [float(run(tf.ones((8, 2)))) for _ in range(5)]

    plain, hook = train(None), make_hook(save_config=td.SaveConfig(save_interval=interval))
    assert train(hook) == plain
    assert "RandomUniform" in noted(hook)
    run = run_of(hook)
    assert run.tensor("w").steps() == list(range(0, 5, interval))
    assert "gradient/w" not in run.tensor_names()


@pytest.mark.shows("TensorFlow: random numbers and other effects", "values right")
def test_random_generators_are_captured(make_hook: MakeHook) -> None:
    def train(hook: Any) -> list[float]:
        generator, weight = tf.random.Generator.from_seed(3), tf.Variable([1.0, 1.0], name="w")

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(generator.normal((2,)) * x * weight)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
            return loss

        run = tf.function(step) if hook is None else hook.capture_step(step)
        return [float(run(tf.ones(2))) for _ in range(5)]

    plain, hook = train(None), make_hook(save_config=td.SaveConfig(save_interval=2))
    assert train(hook) == plain
    assert run_of(hook).tensor("gradient/w").steps() == [0, 2, 4]


@pytest.mark.shows("TensorFlow: loops and captured functions", "values right")
def test_methods_of_several_objects_are_captured_steps(make_hook: MakeHook) -> None:
    hook = make_hook()

    class Trainer:
        def __init__(self, name: str) -> None:
            self.weight = tf.Variable([1.0], name=name)

        @hook.capture_step
        def step(self, x: Any, factor: float = 1.0) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.weight * x) * factor
            self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
            return loss

    one, two = Trainer("one"), Trainer("two")
    assert [float(each.step(tf.ones(1), factor=2.0)) for each in (one, two, one)] == pytest.approx(
        [2.0, 2.0, 1.6]
    )
    run = run_of(hook)
    assert run.tensor("gradient/one").steps() == [0, 2]
    assert run.tensor("gradient/two").steps() == [1]


@pytest.mark.shows("TensorFlow: losses and metrics", "values right")
def test_an_evaluation_has_its_mode_and_the_loss_of_keras(make_hook: MakeHook) -> None:
    import keras

    model, criterion, hook = keras.layers.Dense(1), keras.losses.MeanSquaredError(), make_hook()

    @hook.capture_step(mode=ModeKeys.EVAL)
    def test_step(x: Any, y: Any) -> Any:
        return criterion(y, model(x))

    expected = [float(test_step(tf.ones((2, 3)), tf.ones((2, 1)))) for _ in range(2)]
    run = run_of(hook)
    assert hook.mode_steps[ModeKeys.EVAL] == 1
    assert [float(run.tensor("loss").value(step, mode=ModeKeys.EVAL)) for step in (0, 1)] == expected
    assert f"{model.path}_output_0" in run.tensor_names()


def test_a_plain_function_is_told_which_decorator_to_use(make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0], name="w"), make_hook()

    @tf.function
    def step() -> Any:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight)
        return tape.gradient(loss, weight)

    with pytest.raises(CaptureError, match=r"wrap_tape\(\).*@hook\.capture_step instead of @tf\.function"):
        step()

    @tf.function
    def saves() -> None:
        hook.save_tensor("mine", weight)

    with pytest.raises(CaptureError, match=r"save_tensor\(\).*@hook\.capture_step"):
        saves()
    hook.close()
    assert float(step()[0]) == 1.0


@pytest.mark.shows("TensorFlow: values that a script saves", "values right")
def test_values_that_the_script_names_become_outputs_of_the_step(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=False, save_config=td.SaveConfig(save_interval=2))

    @hook.capture_step
    def step(x: Any) -> Any:
        hook.save_tensor("mine", 2 * x, "own")
        hook.record_tensor_value("other_loss", tf.reduce_sum(x))
        hook.save_scalar("first", x[0])
        return x

    for number in range(3):
        step(tf.constant([float(number), 1.0]))
    hook.save_tensor("outside", tf.constant([5.0]))
    run = run_of(hook)
    np.testing.assert_array_equal(run.tensor("mine").value(2), [4.0, 2.0])
    assert run.tensor("mine").steps() == [0, 2]
    assert run.collection("own").tensor_names == {"mine"}
    assert float(run.tensor("other_loss_output_0").value(2)) == 3.0
    assert float(run.tensor("scalar/first").value(2)) == 2.0
    assert "outside" in run.tensor_names()


@pytest.mark.shows("TensorFlow: random numbers and other effects", "same training")
@pytest.mark.parametrize("what", ["iterator", "print", "python"])
def test_a_function_with_other_effects_than_on_variables_runs_once(what: str, make_hook: MakeHook) -> None:
    seen: list[float] = []

    def train(hook: Any) -> list[float]:
        weight = tf.Variable([1.0], name="w")

        def step(iterator: Any, x: Any) -> Any:
            x = next(iterator) if what == "iterator" else x
            if what == "print":
                tf.print("a step", output_stream="file:///dev/null")
            if what == "python":
                tf.numpy_function(lambda value: seen.append(float(value[0])), [x], [])
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * x)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
            return loss

        run = tf.function(step) if hook is None else hook.capture_step(step)
        iterator, found = iter(tf.data.Dataset.from_tensor_slices([[1.0], [2.0], [3.0]])), []
        try:
            for number in range(5):
                loss = run(iterator, tf.constant([float(number)]))
                found.append(float(loss))
        except tf.errors.OutOfRangeError:
            assert what == "iterator"
        return found

    plain, hook = train(None), make_hook()
    seen.clear()
    assert train(hook) == plain
    assert len(seen) == (5 if what == "python" else 0)
    assert "cannot run a second time" in noted(hook)
    assert hook.mode_steps[ModeKeys.TRAIN] == len(plain) - 1
    assert run_of(hook).tensor("w").steps() == list(range(len(plain)))


def test_functions_that_tensorflow_runs_eagerly_are_captured(make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0], name="w"), make_hook()

    @hook.capture_step
    def step(x: Any) -> float:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight * x)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return float(loss)

    tf.config.run_functions_eagerly(True)
    try:
        assert [step(tf.constant([2.0])) for _ in range(2)] == pytest.approx([2.0, 1.6])
    finally:
        tf.config.run_functions_eagerly(False)
    run = run_of(hook)
    assert [float(run.tensor("gradient/w").value(step)[0]) for step in (0, 1)] == [2.0, 2.0]
    assert hook.mode_steps[ModeKeys.TRAIN] == 1


def test_wrong_arguments_are_refused(make_hook: MakeHook) -> None:
    hook = make_hook()
    with pytest.raises(ConfigError, match="capture_step takes a function; got int"):
        hook.capture_step(3)
    with pytest.raises(ConfigError, match="mode must be one of"):
        hook.capture_step(mode="train")
    with pytest.raises(ConfigError, match="has its options already"):
        hook.capture_step(jit_compile=True)(tf.function(abs))
