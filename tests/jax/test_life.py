"""Steps, errors and the end of a hook: what it counts, what it adds, and that nothing of it remains."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="stage keras of .ci/run has JAX")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import tdcore as td
from tdcore.errors import ConfigError, StopTraining
from tdcore.format.layout import stop_key
from tdcore.hooks.jax.collector import Collector
from tdcore.hooks.jax.step_functions import CapturingFunctions
from tdcore.hooks.jax.step_values import StepInputs
from tests.jax.cases import batch_of, plain_step, plain_weights, same, trained
from tests.waiting import wait_until

MakeHook = Callable[..., Any]


def replaced_functions() -> list[Any]:
    names = sys.modules["jax._src.api"].__dict__
    return [
        names["vjp"],
        jax.grad,
        jax.value_and_grad,
        vars(optax.GradientTransformation)["update"],
        vars(optax.MultiSteps)["update"],
        vars(nnx.Linear)["__call__"],
    ]


@pytest.mark.shows("JAX: train steps", "nothing left behind")
@pytest.mark.parametrize("name", ["nnx_compiled", "plain_not_compiled"])
def test_nothing_remains_between_steps_and_after_close(name: str, make_hook: MakeHook) -> None:
    before = replaced_functions()
    hook = make_hook()
    trained(name, hook)
    assert replaced_functions() == before
    hook.close()
    assert replaced_functions() == before


@pytest.mark.shows("JAX: train steps", "nothing left behind")
def test_the_cache_of_a_compiled_step_contains_nothing_of_the_hook(make_hook: MakeHook) -> None:
    inner = jax.jit(lambda weights, x: jnp.tanh(x @ weights["first"]["w"]))

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        return jax.grad(lambda weights: inner(weights, x).sum())(weights)

    hook = make_hook()
    captured = hook.capture_step(step)
    x = batch_of(0)["x"]
    captured(plain_weights(), x)
    assert "tdcore" not in str(jax.make_jaxpr(step)(plain_weights(), x))
    assert "tdcore" not in str(jax.make_jaxpr(inner)(plain_weights(), x))


@pytest.mark.shows("JAX: errors in the hook", "same training")
@pytest.mark.parametrize("name", ["plain", "nnx_not_compiled"])
@pytest.mark.parametrize("part", ["arguments", "make", "tap", "record", "copy", "ratio"])
def test_an_error_in_the_hook_does_not_reach_the_training(
    name: str, part: str, make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("planted")

    if (name, part) == ("nnx_not_compiled", "make"):
        pytest.skip("a step that is not compiled has no second function")
    plain = trained(name)
    hook = make_hook(include_collections=["update_ratios"], save_config=td.SaveConfig(save_interval=3))
    driver = sys.modules["tdcore.hooks.jax.driver"]
    targets: dict[str, tuple[Any, str]] = {
        "arguments": (StepInputs, "_renamed"),
        "make": (CapturingFunctions, "_trace"),
        "tap": (Collector, "add"),
        "record": (type(hook._recorder), "capture"),
        "copy": (driver, "copied_parameters"),
        "ratio": (driver, "ratio_of"),
    }
    monkeypatch.setattr(*targets[part], fails)
    assert same(trained(name, hook), plain)
    assert any("planted" in each for each in hook._faults.values())


@pytest.mark.parametrize("compiled", [jax.jit, lambda step: step], ids=["compiled", "not_compiled"])
def test_an_error_of_the_training_reaches_the_script(compiled: Any, make_hook: MakeHook) -> None:
    def step(weights: Any, x: Any) -> Any:
        if x.shape[0] == 3:
            raise ValueError("of the script")
        return x @ weights

    hook = make_hook()
    captured = hook.capture_step(compiled(step))
    captured(jnp.ones(5), jnp.ones((2, 5)))
    with pytest.raises(ValueError, match="of the script"):
        captured(jnp.ones(5), jnp.ones((3, 5)))
    with pytest.raises(TypeError, match="dot_general"):
        captured(jnp.ones(5), jnp.ones((2, 4)))
    captured(jnp.ones(5), jnp.ones((2, 5)))
    assert not hook._faults


@pytest.mark.shows("JAX: steps that save nothing", "cost")
def test_an_unsaved_step_calls_the_function_of_the_script_and_little_else(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=td.SaveConfig(save_interval=1000))
    step = jax.jit(plain_step)
    captured = hook.capture_step(step)
    weights, batch = jax.tree.map(jnp.asarray, (plain_weights(), batch_of(0)))
    for _ in range(3):
        captured(weights, batch)
    counts = {"plain": 0, "captured": 0}

    def count(which: str, function: Any) -> None:
        def profile(frame: Any, event: str, arg: Any) -> None:
            counts[which] += event == "call"

        sys.setprofile(profile)
        try:
            function(weights, batch)
        finally:
            sys.setprofile(None)

    count("plain", step)
    count("captured", captured)
    assert counts["captured"] - counts["plain"] <= 10


@pytest.mark.shows("JAX: steps that save nothing", "cost")
def test_a_new_shape_is_traced_again_and_unsaved_steps_are_not(make_hook: MakeHook) -> None:
    traces = []

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        traces.append(x.shape)
        return (x @ weights).sum()

    hook = make_hook(save_config=td.SaveConfig(save_interval=4))
    captured = hook.capture_step(step)
    for number in range(12):
        captured(jnp.ones(5), jnp.ones((2 if number < 8 else 3, 5)))
    assert traces == [(2, 5), (2, 5), (3, 5), (3, 5)]


@pytest.mark.shows("JAX: train steps", "same training")
def test_debug_callbacks_of_a_step_run_once_and_other_effects_are_not_repeated(make_hook: MakeHook) -> None:
    printed, written = [], []

    @jax.jit
    def prints(x: Any) -> Any:
        jax.debug.callback(lambda value: printed.append(float(value)), x.sum())
        return hook.tap("loss_of_step", x.sum())

    @jax.jit
    def writes(x: Any) -> Any:
        def write(value: Any) -> Any:
            written.append(float(value))
            return value

        return jax.experimental.io_callback(write, jax.ShapeDtypeStruct((), x.dtype), x.sum())

    hook = make_hook()
    hook.capture_step(prints)(jnp.ones(3))
    hook.capture_step(writes)(jnp.ones(3)).block_until_ready()
    jax.effects_barrier()
    assert printed == [3.0]
    assert written == [3.0]
    assert any("effects" in each for each in hook._notes["not_captured"])
    hook.close()
    assert td.create_trial(hook.out_dir).tensor("loss_of_step").value(0) == 3.0


def test_values_in_loops_and_conditions_are_noted(make_hook: MakeHook) -> None:
    @jax.jit
    def step(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() < 50, lambda x: hook.tap("doubled", 2 * x), x)

    hook = make_hook()
    hook.capture_step(step)(jnp.ones(3))
    assert any(each.startswith("doubled: ") for each in hook._notes["not_captured"])
    assert not hook._faults


@pytest.mark.shows("JAX: steps that are not compiled", "same training")
def test_a_step_that_is_not_compiled_keeps_its_own_objects(make_hook: MakeHook) -> None:
    class Remembers(nnx.Module):  # type: ignore[misc]  # flax may not be installed
        def __call__(self, x: Any, seen: list[Any]) -> Any:
            seen.append(x)
            return {"result": x}

    hook, x = make_hook(), jnp.ones(3)
    seen: list[Any] = []
    returned = hook.capture_step(Remembers())(x, seen)
    assert returned["result"] is x
    assert len(seen) == 1
    assert not hook._faults


def test_a_captured_function_within_a_compiled_one_is_not_a_step(make_hook: MakeHook) -> None:
    hook = make_hook()
    captured = hook.capture_step(plain_step)
    jax.jit(lambda weights, batch: captured(weights, batch))(plain_weights(), batch_of(0))
    assert hook.global_step == -1


def test_attributes_of_a_compiled_step_are_those_of_the_captured_one(make_hook: MakeHook) -> None:
    hook = make_hook()
    captured = hook.capture_step(jax.jit(plain_step))
    assert captured.__name__ == "plain_step"
    assert "dot" in captured.lower(plain_weights(), batch_of(0)).as_text()


@pytest.mark.shows("JAX: stop request", "values right")
def test_a_stop_request_raises_before_the_next_step(make_hook: MakeHook) -> None:
    hook = make_hook()
    captured = hook.capture_step(jax.jit(plain_step))
    captured(plain_weights(), batch_of(0))
    path = Path(hook.out_dir) / stop_key(0)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"reason": "enough", "rule": "TDC102", "step": 1, "by": "a test"}))
    wait_until(hook._session.stop_request, "the request arrived")
    with pytest.raises(StopTraining, match="enough"):
        captured(plain_weights(), batch_of(0))


def test_a_closed_hook_runs_the_function_alone(make_hook: MakeHook) -> None:
    hook = make_hook()
    captured = hook.capture_step(jax.jit(plain_step))
    hook.close()
    captured(plain_weights(), batch_of(0))
    assert hook.global_step == -1


def test_wrong_arguments_are_refused(make_hook: MakeHook) -> None:
    hook = make_hook()
    with pytest.raises(ConfigError, match=r"function of a step; got int"):
        hook.capture_step(3)
    with pytest.raises(ConfigError, match=r"loss must be a function .* got str"):
        hook.capture_step(plain_step, loss="loss")
    with pytest.raises(ConfigError, match="mode must be one of"):
        hook.capture_step(plain_step, mode="train")


def test_a_hook_without_a_step_notes_what_is_missing(make_hook: MakeHook) -> None:
    hook = make_hook(include_collections=["gradients"], save_all=False)
    hook.close()
    (note,) = hook._notes["not_recorded"]
    assert "gradients: no step was detected; call the function that capture_step() returns" in note


@pytest.mark.shows("JAX: donated arguments", "values right")
def test_parameters_are_those_before_the_step_with_donation(make_hook: MakeHook) -> None:
    hook = make_hook()
    step = hook.capture_step(jax.jit(plain_step, donate_argnums=0))
    weights = jax.tree.map(jnp.asarray, plain_weights())
    before = []
    for number in range(3):
        before.append(np.array(weights["first"]["w"]))
        weights, _ = step(weights, batch_of(number))
    hook.close()
    run = td.create_trial(hook.out_dir)
    for number, value in enumerate(before):
        np.testing.assert_array_equal(run.tensor("weights/first/w").value(number), value)
