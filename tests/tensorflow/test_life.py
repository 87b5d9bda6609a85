"""Errors, rules, stop requests, and the end of a hook: nothing of it remains."""

# mypy: disable-error-code="untyped-decorator"
# TensorFlow may not be installed: its decorators have no types.

from __future__ import annotations

import gc
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="stage keras of .ci/run has TensorFlow")

import keras
import numpy as np
import tensorflow as tf

import tdcore as td
from tdcore.errors import StopTraining
from tdcore.format.layout import stop_key
from tdcore.hooks.tensorflow.captured_step import CapturedStep
from tdcore.hooks.tensorflow.collector import TapeCollector
from tdcore.hooks.tensorflow.driver import TapeDriver
from tdcore.modes import ModeKeys
from tests.tensorflow.loops import Perceptron, compiled, train
from tests.waiting import wait_until

MakeHook = Callable[..., Any]
WAYS = ("eager", "function")


def functions_of_tensorflow() -> list[Any]:
    classes = (
        tf.GradientTape,
        type(tf.function(lambda: None)),
        tf.distribute.Strategy,
        keras.layers.Layer,
        keras.losses.Loss,
        keras.metrics.Mean,
        keras.optimizers.Optimizer,
        keras.optimizers.LossScaleOptimizer,
        Perceptron,
    )
    names = ("__call__", "__enter__", "gradient", "jacobian", "run", "apply", "update_state", "scale_loss")
    return [getattr(each, name) for each in classes for name in names if hasattr(each, name)]


def registered(hook: Any) -> weakref.ref[Any]:
    """A reference to a model that only the hook may keep alive."""
    model = Perceptron()
    hook.register_model(model)
    return weakref.ref(model)


@pytest.mark.shows("TensorFlow: loops and captured functions", "nothing left behind")
@pytest.mark.parametrize("way", WAYS)
def test_nothing_remains_after_close(way: str, make_hook: MakeHook) -> None:
    before = functions_of_tensorflow()
    hook = make_hook()
    reference = registered(hook)
    train("module", "Adam", way, hook=hook)
    hook.close()
    assert functions_of_tensorflow() == before
    gc.collect()
    assert reference() is None
    assert train("module", "Adam", way, hook=hook) == train("module", "Adam", way)


@pytest.mark.shows("TensorFlow: errors in the hook", "same training")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", ["begin", "collect", "tap", "gradient", "weights", "record", "trace"])
def test_an_error_in_the_hook_does_not_reach_the_training(
    part: str, way: str, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train("keras", "Adam", way)

    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("planted")

    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    target, name = {
        "begin": (type(hook._clock), "begin"),
        "collect": (TapeDriver, "new_collector"),
        "tap": (TapeCollector, "add"),
        "gradient": (TapeCollector, "tape_gradient"),
        "weights": (TapeDriver, "weight_values"),
        "record": (type(hook._recorder), "capture"),
        "trace": (CapturedStep, "capturing") if way == "function" else (TapeDriver, "intercepted"),
    }[part]
    monkeypatch.setattr(target, name, fails)
    assert train("keras", "Adam", way, hook=hook) == plain
    assert any("planted" in each for each in hook._faults.values())
    monkeypatch.undo()


@pytest.mark.parametrize("way", ["eager", "function", "XLA"])
def test_an_error_of_the_training_reaches_the_script(way: str, make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0]), make_hook()

    def step(x: Any) -> Any:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight * x)
            tf.debugging.assert_less(loss, 3.0, "planted") if way != "XLA" else loss.no_such_attribute
        return tape.gradient(loss, weight)

    run = compiled(step, way, hook)
    if way == "XLA":
        with pytest.raises(AttributeError, match="no_such_attribute"):
            run(tf.constant([2.0]))
    else:
        run(tf.constant([2.0]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="planted"):
            run(tf.constant([4.0]))
        assert float(run(tf.constant([1.0]))[0]) == 1.0
    assert not hook._faults


@pytest.mark.shows("TensorFlow: steps that save nothing", "cost")
@pytest.mark.parametrize(("way", "most"), [("eager", 34), ("function", 9)])
def test_an_unsaved_step_adds_a_bounded_number_of_python_calls(
    way: str, most: int, make_hook: MakeHook
) -> None:
    model, optimizer = Perceptron(), keras.optimizers.SGD(0.1)

    def calls(hook: Any) -> int:
        def step() -> None:
            tape = tf.GradientTape()
            with tape if hook is None else hook.wrap_tape(tape):
                loss = tf.reduce_sum(model(tf.ones((2, 4))))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        run, count = compiled(step, way, hook), 0
        for _ in range(3):
            run()

        def trace(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            name = frame.f_code.co_filename
            count += event == "call" and ("/hooks/" in name or "/tdcore/" in name)

        sys.setprofile(trace)
        try:
            for _ in range(10):
                run()
        finally:
            sys.setprofile(None)
        return count

    assert calls(None) == 0
    found = calls(make_hook(save_config=td.SaveConfig(start_step=10**6)))
    assert 0 < found / 10 <= most


@pytest.mark.shows("TensorFlow: stop request", "values right")
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_request_raises_where_the_next_step_would_begin(way: str, make_hook: MakeHook) -> None:
    weight, hook = tf.Variable([1.0]), make_hook()

    def step() -> Any:
        with hook.wrap_tape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(weight)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    run = compiled(step, way, hook)
    run()
    path = Path(hook.out_dir) / stop_key(0)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"reason": "enough", "rule": "TDC102", "step": 1, "by": "a test"}))
    wait_until(hook._session.stop_request, "the request arrived")
    with pytest.raises(StopTraining, match="enough"):
        run()
    assert hook.mode_steps[ModeKeys.TRAIN] == 0
    run()


@pytest.mark.shows("TensorFlow: rules on real models", "values right")
@pytest.mark.parametrize("way", WAYS)
def test_reductions_and_rules_work_as_elsewhere(way: str, make_hook: MakeHook) -> None:
    hook = make_hook(
        save_all=False,
        rules=["vanishing_gradient"],
        reduction_config=td.ReductionConfig(reductions=["mean"]),
    )
    train("module", "SGD", way, hook=hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    gradients = [name for name in run.tensor_names() if name.startswith("gradient/")]
    assert len(gradients) == 4
    tensor = run.tensor(gradients[0])
    assert tensor.reduction_value(tensor.steps()[-1], "mean") is not None


def test_what_was_asked_for_and_is_missing_is_reported(make_hook: MakeHook) -> None:
    unused = make_hook("unused", include_collections=["gradients"], save_all=False)
    unused.close()
    assert any("hook.wrap_tape" in each for each in unused._notes["not_recorded"])
    hook = make_hook(save_all=False, include_regex="no_such_layer")
    train("module", "SGD", "eager", hook=hook)
    hook.close()
    assert any("no_such_layer" in each for each in hook._notes["not_recorded"])


@pytest.mark.shows("TensorFlow: errors in the hook", "nothing left behind")
def test_an_interrupted_tape_leaves_no_replaced_functions(make_hook: MakeHook) -> None:
    before, hook = functions_of_tensorflow(), make_hook()
    during = keras.layers.Layer.__call__
    with pytest.raises(KeyboardInterrupt), hook.wrap_tape(tf.GradientTape()):
        raise KeyboardInterrupt
    assert keras.layers.Layer.__call__ is during
    hook.close()
    assert functions_of_tensorflow() == before


def test_frozen_weights_are_noted(make_hook: MakeHook) -> None:
    layer, free, hook = keras.layers.Dense(2), keras.layers.Dense(1), make_hook()
    layer.trainable = False

    @hook.capture_step
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(free(layer(x)))
        tape.gradient(loss, free.trainable_variables)

    for _ in range(2):
        step(tf.ones((1, 3)))
    hook.close()
    assert hook._notes["frozen"] == [f"{layer.path}/kernel", f"{layer.path}/bias"]
    run = td.create_trial(hook.out_dir)
    np.testing.assert_array_equal(run.tensor(f"{layer.path}/bias").value(0), [0.0, 0.0])
