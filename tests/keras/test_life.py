"""Steps, modes and the end of a hook: what it counts, what it adds, and that nothing of it remains."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras", reason="stage keras of .ci/run has Keras")

import keras
import numpy as np

import tdcore as td
from tdcore.errors import ConfigError, StopTraining, UnsupportedFeature
from tdcore.format.layout import stop_key
from tdcore.hooks.keras.collector import Collector
from tdcore.hooks.keras.step_functions import CapturingFunctions
from tdcore.modes import ModeKeys
from tests.keras.cases import BACKEND, BATCH, built, data_of, shows, train
from tests.waiting import wait_until

MakeHook = Callable[..., Any]
APPLY = "stateless_apply" if BACKEND == "jax" else "apply"


def fit(model: Any, *callbacks: Any, epochs: int = 2, **settings: Any) -> None:
    x, y = data_of()
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=list(callbacks), **settings)


def functions_of_keras() -> list[Any]:
    classes = (keras.layers.Layer, keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
    found = [getattr(each, name) for each in classes for name in ("__call__", APPLY) if hasattr(each, name)]
    if BACKEND == "jax":
        import jax

        found += [jax.grad, jax.value_and_grad]
    return found


@shows("fit(), evaluate(), predict()", "nothing left behind")
def test_nothing_remains_after_the_training(make_hook: MakeHook) -> None:
    model, other = built("functional"), built("functional")
    fit(other)
    classes = functions_of_keras()
    fit(model, hook := make_hook())
    assert set(vars(model)) == set(vars(other))
    assert functions_of_keras() == classes
    assert model.train_function.__module__.startswith("keras.")
    hook.close()
    assert hook._model is None


@shows("errors in the hook", "nothing left behind")
def test_an_interrupted_training_leaves_nothing_after_close(make_hook: MakeHook) -> None:
    class Interrupts(keras.callbacks.Callback):  # type: ignore[misc]  # keras may not be installed
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    model, hook = built("functional"), make_hook()
    with pytest.raises(KeyboardInterrupt):
        fit(model, hook, Interrupts())
    hook.close()
    assert model.train_function.__module__.startswith("keras.")


@shows("saved models", "nothing left behind")
def test_a_saved_model_contains_nothing_of_tdcore_and_can_be_loaded(
    make_hook: MakeHook, tmp_path: Path
) -> None:
    model, hook = built("functional"), make_hook()
    hook.watch(model)
    fit(model)
    path = tmp_path / "model.keras"
    model.save(path)
    assert b"tdcore" not in path.read_bytes()
    loaded = keras.models.load_model(path)
    x, _ = data_of()
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    fit(loaded, make_hook("again"))


@shows("errors in the hook", "same training")
@pytest.mark.parametrize("part", ["make", "trace", "tap", "record"])
def test_an_error_in_the_hook_does_not_reach_the_training(
    part: str, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(built("sequential"))

    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("planted")

    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    target: Any = {
        "make": CapturingFunctions,
        "trace": type(hook._backend),
        "tap": Collector,
        "record": type(hook._recorder),
    }[part]
    name = {"make": "_make", "trace": "check_step", "tap": "add", "record": "capture"}[part]
    monkeypatch.setattr(target, name, fails)
    assert train(built("sequential"), hook) == plain
    assert any("planted" in each for each in hook._faults.values())


@shows("errors in the hook", "same training")
@pytest.mark.skipif(BACKEND != "tensorflow", reason="an operation of TensorFlow that fails")
def test_an_error_of_the_training_reaches_the_script(make_hook: MakeHook) -> None:
    import tensorflow as tf

    inputs = keras.Input((4,))
    checked = keras.layers.Lambda(lambda x: tf.debugging.check_numerics(x, "planted"))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(checked))
    model.compile("sgd", "mse", jit_compile=False)
    x = np.ones((16, 4), np.float32)
    x[12] = np.nan
    hook = make_hook()
    with pytest.raises(tf.errors.InvalidArgumentError, match="planted"):
        model.fit(x, x[:, 0], batch_size=8, shuffle=False, verbose=0, callbacks=[hook])
    assert not hook._faults


@shows("steps that save nothing", "cost")
def test_an_unsaved_step_adds_a_bounded_number_of_python_calls(make_hook: MakeHook) -> None:
    def calls(*callbacks: Any) -> int:
        model = built("sequential")
        fit(model, epochs=1)
        count = 0

        def trace(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call" and "tdcore" in frame.f_code.co_filename

        gc.disable()  # the function of gc.callbacks would be counted too
        sys.setprofile(trace)
        try:
            x, y = data_of(160)
            model.fit(x, y, batch_size=BATCH, epochs=5, verbose=0, callbacks=list(callbacks))
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    never = td.SaveConfig(start_step=10**6)
    assert calls() == 0
    hook = make_hook(save_config=never)
    # Iterators of Keras and PyTorch report the wait for data. On TensorFlow rows begin when there is a batch.
    stopwatch = {"torch": 3, "tensorflow": 3}.get(BACKEND, 0)
    assert calls(hook) / 100 < 5 + stopwatch


@shows("fit(), evaluate(), predict()", "values right")
def test_steps_have_the_modes_of_keras(make_hook: MakeHook) -> None:
    hook = make_hook()
    train(built("functional"), hook, epochs=2)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert run.tensor("loss").steps(ModeKeys.TRAIN) == [0, 1, 2, 3]
    assert run.tensor("loss").steps(ModeKeys.EVAL) == [0, 1]
    assert run.tensor("predictions").steps(ModeKeys.PREDICT) == [0, 1]
    assert [float(run.tensor("epoch").value(step)) for step in run.tensor("epoch").steps()] == [0, 1]


@pytest.mark.skipif(BACKEND != "torch", reason="XLA steps are captured on the other backends")
def test_a_step_that_pytorch_compiles_has_no_second_function(make_hook: MakeHook) -> None:
    model = built("with XLA")
    own: list[object] = []

    def function(batch: object) -> dict[str, float]:
        own.append(batch)
        return {"loss": 0.0}

    model.make_train_function = lambda force=False: setattr(model, "train_function", function)
    hook = make_hook()
    fit(model, hook)  # with a function in the place of the compiled one, which takes two minutes
    assert len(own) == 4
    assert "jit_compile=True" in hook._notes["not_captured"][0]


@shows("steps_per_execution", "values right")
@pytest.mark.skipif(BACKEND == "torch", reason="Keras refuses steps_per_execution on torch")
def test_an_execution_of_several_batches_has_a_step_for_each(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    x, y = data_of(40)
    model = built("steps_per_execution")
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[hook])
    hook.close()
    assert td.create_trial(hook.out_dir).tensor("loss").steps() == [0, 3, 6, 9]
    assert hook.mode_steps[ModeKeys.TRAIN] == 9


@shows("data of unknown length", "values right")
def test_a_data_set_of_unknown_length_adds_no_step(make_hook: MakeHook) -> None:
    tf = pytest.importorskip("tensorflow")
    x, y = data_of()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).filter(lambda *_: True)
    hook = make_hook()
    model = built("functional")
    model.fit(data, epochs=2, verbose=0, callbacks=[hook], validation_data=data)
    hook.close()
    assert hook.mode_steps[ModeKeys.TRAIN] == 3
    assert hook.mode_steps[ModeKeys.EVAL] == 3
    assert td.create_trial(hook.out_dir).tensor("loss").steps(ModeKeys.TRAIN) == [0, 1, 2, 3]


@shows("methods for one batch", "values right")
@shows("methods for one batch", "nothing left behind")
def test_watch_captures_without_a_callback_until_close(make_hook: MakeHook) -> None:
    model, hook = built("functional"), make_hook()
    own = set(vars(model))
    hook.watch(model)
    fit(model, epochs=1)
    x, y = data_of(BATCH)
    model.train_on_batch(x, y)
    model.test_on_batch(x, y)
    model.predict_on_batch(x)
    model.evaluate(x, y, verbose=0)
    hook.close()
    assert "fit" not in set(vars(model)) - own
    fit(model)
    assert hook.mode_steps == {ModeKeys.TRAIN: 2, ModeKeys.EVAL: 1, ModeKeys.PREDICT: 0, ModeKeys.GLOBAL: -1}
    with pytest.raises(ConfigError, match=r"needs a keras\.Model, got int"):
        make_hook("other").watch(3)


@shows("stop request", "values right")
def test_a_stop_request_raises_in_the_training_or_calls_on_stop(make_hook: MakeHook) -> None:
    class Requests(keras.callbacks.Callback):  # type: ignore[misc]  # keras may not be installed
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                path = Path(hook.out_dir) / stop_key(0)
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps({"reason": "enough", "rule": "TDC102", "step": 1, "by": "a test"}))
                wait_until(hook._session.stop_request, "the request arrived")

    hook = make_hook()
    with pytest.raises(StopTraining, match="enough"):
        fit(built("functional"), hook, Requests())
    stopped: list[Any] = []
    hook = make_hook("second", on_stop=stopped.append)
    fit(built("functional"), hook, Requests())
    assert [each.reason for each in stopped] == ["enough"]


@shows("several hooks", "nothing left behind")
def test_a_second_hook_closes_the_first(make_hook: MakeHook) -> None:
    model = built("functional")
    first, second = make_hook(), make_hook("second")
    fit(model, first, second)
    assert first._off
    assert not second._off
    assert second.mode_steps[ModeKeys.TRAIN] == 3
    assert model.train_function.__module__.startswith("keras.")


@shows("several hooks", "values right")
@shows("several hooks", "same training")
def test_with_two_hooks_in_one_fit_the_second_records_and_the_training_is_the_same(
    make_hook: MakeHook,
) -> None:
    plain = train(built("functional"), epochs=2)
    first, second = make_hook(), make_hook("second", save_config=td.SaveConfig(save_interval=3))
    assert train(built("functional"), first, second, epochs=2) == plain
    for hook in (first, second):
        hook.close()
        assert not hook._faults
    assert td.create_trial(second.out_dir).tensor("loss").steps(ModeKeys.TRAIN) == [0, 3]
    notes = td.create_trial(first.out_dir).notes()
    assert notes["taken_over_by"] == second.out_dir
    assert "not_recorded" not in notes


def test_scalars_and_tensors_of_the_script_belong_to_the_current_step(make_hook: MakeHook) -> None:
    class Saves(keras.callbacks.Callback):  # type: ignore[misc]  # keras may not be installed
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            hook.save_scalar("mine", batch)

    hook = make_hook()
    fit(built("functional"), hook, Saves(), epochs=1)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert [float(run.tensor("scalar/mine").value(step)) for step in (0, 1)] == [0.0, 1.0]


def test_reductions_and_collections_work_as_elsewhere(make_hook: MakeHook) -> None:
    hook = make_hook(
        save_all=False,
        include_collections=["gradients"],
        reduction_config=td.ReductionConfig(reductions=["mean"]),
    )
    fit(built("functional"), hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    gradients = [name for name in run.tensor_names() if name.startswith("gradient/")]
    assert len(gradients) == 6
    assert run.tensor(gradients[0]).reduction_value(1, "mean") is not None


@shows("rules on real models", "values right")
def test_rules_get_the_tensors_that_they_need(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=False, rules=["vanishing_gradient", "class_imbalance"])
    fit(built("functional"), hook)
    hook.close()
    names = td.create_trial(hook.out_dir).tensor_names()
    assert {"labels", "predictions", "gradient/hidden/kernel"} <= set(names)


def test_what_was_asked_for_and_is_missing_is_reported(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=False, include_regex="no_such_layer")
    fit(built("functional"), hook)
    hook.close()
    assert any("no_such_layer" in each for each in hook._notes["not_recorded"])
    unused = make_hook("unused", include_collections=["gradients"], save_all=False)
    unused.close()
    assert any("fit(callbacks=[hook])" in each for each in unused._notes["not_recorded"])


@shows("own train_step", "same training")
def test_a_model_that_builds_its_function_without_its_step_is_recorded_as_far_as_possible(
    make_hook: MakeHook,
) -> None:
    class Own(keras.Sequential):  # type: ignore[misc]  # keras may not be installed
        def make_train_function(self, force: bool = False) -> Any:
            if force or getattr(self, "train_function", None) is None:
                self.train_function = lambda *args: super(Own, self).train_step(
                    *args[:-1], next(iter(args[-1]))
                )

    def made() -> Any:
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((4,)), keras.layers.Dense(1, name="only")])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    x, _ = data_of()
    plain, model, hook = made(), made(), make_hook()
    plain.fit(x, x[:, 0], batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    model.fit(x, x[:, 0], batch_size=BATCH, epochs=2, verbose=0, shuffle=False, callbacks=[hook])
    hook.close()
    np.testing.assert_array_equal(plain.get_weights()[0], model.get_weights()[0])
    assert any("does not call train_step" in each for each in hook._notes["not_captured"])
    assert "only/kernel" in " ".join(td.create_trial(hook.out_dir).tensor_names())


def test_another_backend_is_refused(make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "openvino")
    with pytest.raises(UnsupportedFeature, match="tensorflow, jax and torch; Keras uses 'openvino'"):
        make_hook()
