"""Update ratios are equal to a computation in float64, and change nothing in a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax", reason="stage keras of .ci/run has JAX")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tdcore as td
from tdcore.modes import ModeKeys
from tests.jax.cases import (
    PROGRAMS,
    batch_of,
    linen_state,
    linen_step,
    plain_loss,
    plain_step,
    plain_weights,
    same,
    trained,
)

MakeHook = Callable[..., Any]

RATIO = "update_ratio/"
# One for each way in which a step gets and returns its parameters, and for each kind of loop and of devices.
KINDS = (
    "plain", "plain_optax", "plain_microbatches", "plain_static_arguments", "plain_method", "plain_ensemble",
    "linen_adam_with_clipping", "linen_accumulation", "linen_adversarial", "linen_scan_with_remat",
    "nnx_compiled", "nnx_not_compiled", "nnx_functional",
    "pmap_of_two", "shard_map_of_four_checked", "sharded_arrays",
)  # fmt: skip


def make_ratio_hook(make_hook: MakeHook, *collections: str, **options: Any) -> Any:
    return make_hook(save_all=False, include_collections=["update_ratios", *collections], **options)


def in_float64(before: Any, after: Any) -> float:
    before, after = np.float64(before), np.float64(after)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.linalg.norm(after - before) / np.linalg.norm(before))


def ratios_of(hook: Any) -> dict[str, float]:
    """The ratios of the first step."""
    hook.close()
    run = td.create_trial(hook.out_dir)
    return {name: float(run.tensor(name).value(0)) for name in run.tensor_names(regex=RATIO)}


@pytest.mark.shows("JAX: update ratios", "values right")
@pytest.mark.parametrize("name", KINDS)
def test_the_ratio_is_that_of_numpy_in_float64(name: str, make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook, "weights", "biases")
    trained(name, hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert not hook._faults
    assert "not_captured" not in run.notes()
    parameters = run.tensor_names(collection="weights") + run.tensor_names(collection="biases")
    assert parameters
    assert {RATIO + each for each in parameters} == set(run.tensor_names(regex=RATIO))
    for parameter in parameters:
        weights, ratios = run.tensor(parameter).values(), run.tensor(RATIO + parameter).values()
        assert list(weights) == list(ratios)
        for step in range(len(weights) - 1):
            # The difference is rounded to float32; the ratio averages this error over the elements.
            expected = in_float64(weights[step], weights[step + 1])
            np.testing.assert_allclose(ratios[step], expected, rtol=1e-6)
            assert ratios[step].dtype == np.float64


@pytest.mark.shows("JAX: update ratios", "same training")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_training_with_ratios_has_the_same_bits(name: str, make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook, save_config=td.SaveConfig(save_interval=2))
    assert same(trained(name, hook), trained(name))
    assert not hook._faults


@pytest.mark.shows("JAX: update ratios", "values right")
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64", "complex64"])
def test_updates_of_half_precision_are_not_rounded_to_it(name: str, make_hook: MakeHook) -> None:
    random = np.random.default_rng(0)
    with jax.enable_x64(name == "float64"):
        weight, change = (jnp.asarray(random.normal(size=100), name) for _ in range(2))
        step = jax.jit(lambda params, change: params + change / 1000)
        hook = make_ratio_hook(make_hook)

        @hook.capture_step
        @jax.jit
        def captured(params: Any, change: Any) -> Any:
            jax.grad(lambda each: abs(each).sum().astype(np.float32))(params)
            return step(params, change)

        after = captured(weight, change)
    wide = np.complex128 if name == "complex64" else np.float64
    before, after = np.asarray(weight).astype(wide), np.asarray(after).astype(wide)
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    np.testing.assert_allclose(ratios_of(hook)["update_ratio/params"], expected, rtol=1e-6)


@pytest.mark.shows("JAX: update ratios", "values right")
def test_zeros_have_an_infinite_ratio_and_nan_or_inf_have_nan(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)
    weights = {
        "zeros": jnp.zeros(3),
        "still": jnp.zeros(3),
        "nan": jnp.array([1.0, jnp.nan]),
        "inf": jnp.array([1.0, jnp.inf]),
        "kept": jnp.ones(3),
    }

    @hook.capture_step
    @jax.jit
    def step(params: Any) -> Any:
        gradients = jax.grad(lambda each: sum(one.sum() for one in each.values()))(params)
        return {
            name: weight if name in ("still", "kept") else weight - 0.5 * gradients[name]
            for name, weight in params.items()
        }

    step(weights)
    assert ratios_of(hook) == pytest.approx(
        {
            "update_ratio/params/zeros": np.inf,
            "update_ratio/params/still": np.nan,
            "update_ratio/params/nan": np.nan,
            "update_ratio/params/inf": np.nan,
            "update_ratio/params/kept": 0.0,
        },
        nan_ok=True,
    )


@pytest.mark.shows("JAX: update ratios", "values right")
def test_gradients_and_averages_that_a_step_returns_are_not_its_parameters(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)
    transformation = optax.adamw(1e-2, weight_decay=0.1)

    @hook.capture_step
    @jax.jit
    def step(average: Any, params: Any, opt_state: Any, batch: Any) -> Any:
        gradients = jax.grad(plain_loss)(params, batch)
        changes, opt_state = transformation.update(gradients, opt_state, params)
        params = optax.apply_updates(params, changes)
        return gradients, optax.incremental_update(params, average, 0.1), changes, params, opt_state

    weights = jax.tree.map(jnp.asarray, plain_weights())
    *_, after, _ = step(weights, weights, transformation.init(weights), batch_of(0))
    found = ratios_of(hook)
    assert "not_captured" not in hook._notes
    for name in ("first/w", "second/w"):
        outer, inner = name.split("/")
        expected = in_float64(weights[outer][inner], after[outer][inner])
        assert found[f"update_ratio/params/{name}"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.shows("JAX: update ratios", "values right")
def test_updates_in_loops_conditions_and_custom_derivatives_are_followed(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)
    projected = jax.custom_jvp(lambda weight: jnp.clip(weight, -1, 1))
    projected.defjvp(lambda primals, tangents: (projected(*primals), *tangents))

    def improved(weight: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda each: jnp.tanh(batch @ each).sum())(weight)
        changed = jnp.where(jnp.isfinite(gradient), weight - 0.01 * gradient, weight)
        return jax.lax.cond(gradient.sum() > 100, lambda: weight, lambda: projected(changed))

    @hook.capture_step
    @jax.jit
    def step(params: Any, batch: Any) -> Any:
        jax.grad(lambda each: (batch @ each).sum())(params)
        params, _ = jax.lax.scan(lambda weight, row: (improved(weight, row), row.sum()), params, batch)
        return jax.lax.fori_loop(0, 3, lambda _, weight: improved(weight, batch[0]), params)

    before = jnp.linspace(-0.5, 0.5, 5)
    after = step(before, jnp.asarray(batch_of(0)["x"]))
    assert ratios_of(hook) == pytest.approx({"update_ratio/params": in_float64(before, after)}, rel=1e-6)


@pytest.mark.shows("JAX: update ratios", "values right")
def test_former_parameters_that_a_step_returns_too_are_not_the_new_ones(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)
    transformation = optax.lbfgs()  # its state has the parameters before the step

    @hook.capture_step
    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(plain_loss)(params, batch)
        changes, state = transformation.update(
            gradients,
            state,
            params,
            value=value,
            grad=gradients,
            value_fn=lambda each: plain_loss(each, batch),
        )
        return params, state, optax.apply_updates(params, changes)

    weights = jax.tree.map(jnp.asarray, plain_weights())
    *_, after = step(weights, transformation.init(weights), batch_of(0))
    expected = in_float64(weights["first"]["w"], after["first"]["w"])
    assert ratios_of(hook)["update_ratio/params/first/w"] == pytest.approx(expected, rel=1e-6)


def test_a_step_that_returns_no_new_parameters_has_a_note_instead_of_ratios(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)
    hook.capture_step(jax.jit(jax.value_and_grad(plain_loss)))(plain_weights(), batch_of(0))
    assert ratios_of(hook) == {}
    (note,) = td.create_trial(hook.out_dir).notes()["not_captured"]
    assert note.startswith("update_ratio/weights/first/b and 3 more: no result of the step is the parameter")


def test_a_parameter_that_is_returned_in_two_versions_has_a_note_instead_of_a_ratio(
    make_hook: MakeHook,
) -> None:
    hook = make_ratio_hook(make_hook)

    @hook.capture_step
    @jax.jit
    def step(params: Any) -> Any:
        gradient = jax.grad(lambda each: (each**2).sum())(params)
        return params - gradient, params - 2 * gradient

    step(jnp.ones(3))
    assert ratios_of(hook) == {}
    (note,) = td.create_trial(hook.out_dir).notes()["not_captured"]
    assert note == "update_ratio/params: several results of the step are the parameter plus an update"


def test_a_parameter_that_the_step_multiplies_has_a_note_instead_of_a_ratio(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)

    @hook.capture_step
    @jax.jit
    def step(params: Any) -> Any:
        return params * 0.99 - 0.1 * jax.grad(lambda each: jnp.tanh(each).sum())(params)

    step(jnp.ones(3))
    assert ratios_of(hook) == {}
    (note,) = td.create_trial(hook.out_dir).notes()["not_captured"]
    assert note.startswith("update_ratio/params: no result of the step is the parameter plus an update")


def test_a_function_that_is_not_compiled_and_returns_parameters_has_a_note(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)
    step, weights = hook.capture_step(plain_step), plain_weights()
    for number in range(2):
        weights, _ = step(weights, batch_of(number))
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert not run.tensor_names(regex=RATIO)
    (note,) = run.notes()["not_captured"]
    assert note.endswith("capture the compiled function that returns the new parameters")


def test_steps_of_evaluation_have_no_ratios(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook)
    trained("linen_evaluation", hook)
    hook.close()
    ratio = td.create_trial(hook.out_dir).tensor("update_ratio/params/hidden/kernel")
    assert ratio.steps(mode=ModeKeys.TRAIN) == list(range(7))
    assert ratio.steps(mode=ModeKeys.EVAL) == []


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"save_all": True}, set()),
        ({"include_regex": "kernel"}, set()),
        ({"include_regex": "^update_ratio/.*hidden"}, {"hidden/bias", "hidden/kernel"}),
    ],
)
def test_ratios_are_recorded_only_if_a_collection_or_a_pattern_names_them(
    options: dict[str, Any], recorded: set[str], make_hook: MakeHook
) -> None:
    hook = make_hook(**{"save_all": False} | options)
    hook.capture_step(jax.jit(linen_step))(linen_state(optax.sgd(0.1)), batch_of(0), jax.random.key(0))
    assert set(ratios_of(hook)) == {f"update_ratio/params/{each}" for each in recorded}


def test_statistics_alone_still_give_the_value_of_the_ratio(make_hook: MakeHook) -> None:
    hook = make_ratio_hook(make_hook, reduction_config=td.ReductionConfig(norms=["l2"]))
    weights = plain_weights()
    after, _ = hook.capture_step(jax.jit(plain_step))(weights, batch_of(0))
    expected = in_float64(weights["first"]["w"], after["first"]["w"])
    assert ratios_of(hook)["update_ratio/weights/first/w"] == pytest.approx(expected, rel=1e-6)
