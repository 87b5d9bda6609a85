"""Recorded values are equal to an independent computation of the same step."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax", reason="stage keras of .ci/run has JAX")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import tdcore as td
from tdcore.modes import ModeKeys
from tests.jax.cases import (
    BATCH,
    batch_of,
    cross_entropy,
    linen_state,
    linen_step,
    plain_loss,
    plain_step,
    plain_weights,
    trained,
)
from tests.jax.linen_programs import Deep

CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 1e-6}
MakeHook = Callable[..., Any]


def reference_of_plain(weights: Any, batch: Any) -> tuple[float, dict[str, Any], Any]:
    """Loss, gradients and hidden layer of plain_loss() in float64, written out by hand."""
    w1, b1 = (np.float64(weights["first"][each]) for each in "wb")
    w2, b2 = (np.float64(weights["second"][each]) for each in "wb")
    x = np.float64(batch["x"])
    hidden = np.tanh(x @ w1 + b1)
    scores = hidden @ w2 + b2
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    rows = np.arange(len(x))
    loss = -np.log(shares[rows, batch["y"]]).mean()
    by_scores = shares.copy()
    by_scores[rows, batch["y"]] -= 1
    by_scores /= len(x)
    by_hidden = by_scores @ w2.T * (1 - hidden**2)
    gradients = {
        "first/w": x.T @ by_hidden,
        "first/b": by_hidden.sum(0),
        "second/w": hidden.T @ by_scores,
        "second/b": by_scores.sum(0),
    }
    return float(loss), gradients, hidden


@pytest.mark.shows("JAX: weights", "values right")
@pytest.mark.shows("JAX: gradients", "values right")
@pytest.mark.shows("JAX: losses", "values right")
@pytest.mark.parametrize("compiled", [jax.jit, lambda step: step], ids=["compiled", "not_compiled"])
def test_a_plain_step_records_its_weights_loss_and_gradients(compiled: Any, make_hook: MakeHook) -> None:
    hook = make_hook()
    step = hook.capture_step(compiled(plain_step))
    weights = plain_weights()
    expected = []
    for number in range(4):
        expected.append((weights, reference_of_plain(weights, batch_of(number))))
        weights, _ = step(weights, batch_of(number))
        weights = jax.tree.map(np.asarray, weights)
    hook.close()
    run = td.create_trial(hook.out_dir)
    for number, (before, (loss, gradients, _)) in enumerate(expected[1:], 1):
        assert run.tensor("loss").value(number) == pytest.approx(loss, rel=1e-5)
        for name, gradient in gradients.items():
            outer, inner = name.split("/")
            value = run.tensor(f"gradient/weights/{name}").value(number)
            np.testing.assert_allclose(value, gradient, **CLOSE)
            np.testing.assert_array_equal(run.tensor(f"weights/{name}").value(number), before[outer][inner])


@pytest.mark.shows("JAX: outputs of linen modules", "values right")
def test_layers_of_linen_have_the_values_of_capture_intermediates(make_hook: MakeHook) -> None:
    hook = make_hook()
    state, batch, key = linen_state(optax.sgd(0.1)), batch_of(0), jax.random.key(0)
    network = state.apply_fn.__self__
    _, found = network.apply(
        {"params": state.params, "batch_stats": state.batch_stats},
        batch["x"],
        rngs={"dropout": key},
        mutable=["intermediates", "batch_stats"],
        capture_intermediates=True,
    )
    hook.capture_step(jax.jit(linen_step, donate_argnums=0))(state, batch, key)
    hook.close()
    run = td.create_trial(hook.out_dir)
    for layer in ("hidden", "normal", "dropped", "scores"):
        expected = found["intermediates"][layer]["__call__"][0]
        np.testing.assert_allclose(run.tensor(f"{layer}_output_0").value(0), expected, **CLOSE)
    np.testing.assert_array_equal(run.tensor("Network_input_0").value(0), batch["x"])


@pytest.mark.shows("JAX: gradients", "values right")
def test_gradients_are_those_that_the_optimizer_receives_before_it_clips_them(make_hook: MakeHook) -> None:
    hook = make_hook(include_collections=["gradients", "weight_updates"], save_all=False)
    transformation = optax.chain(optax.clip(0.01), optax.sgd(0.5))
    weights = jax.tree.map(jnp.asarray, plain_weights())

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        gradients = jax.grad(lambda each: 3.0 * plain_loss(each, batch))(params)
        gradients = jax.tree.map(lambda each: each / 3.0, gradients)
        changes, state = transformation.update(gradients, state)
        return optax.apply_updates(params, changes), state

    hook.capture_step(step)(weights, transformation.init(weights), batch_of(0))
    hook.close()
    run = td.create_trial(hook.out_dir)
    _, gradients, _ = reference_of_plain(plain_weights(), batch_of(0))
    for name, gradient in gradients.items():
        np.testing.assert_allclose(run.tensor(f"gradient/params/{name}").value(0), gradient, **CLOSE)
        change = run.tensor(f"weight_update/params/{name}").value(0)
        np.testing.assert_allclose(change, -0.5 * np.clip(gradient, -0.01, 0.01), **CLOSE)


@pytest.mark.shows("JAX: optimizer state and hyper-parameters", "values right")
def test_the_state_of_the_optimizer_has_the_names_of_its_parameters(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained("linen_adam_with_clipping", hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    moment = run.tensor("optimizer/1/0/mu/hidden/kernel")
    assert not moment.value(0).any()
    assert moment.value(1).any()
    assert int(run.tensor("optimizer/1/0/count").value(3)) == 3


@pytest.mark.shows("JAX: optimizer state and hyper-parameters", "values right")
def test_an_injected_learning_rate_is_a_hyperparameter(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained("linen_injected_rate", hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    rates = [float(run.tensor("optimizer/group_0/lr").value(step)) for step in (1, 2, 3)]
    assert rates == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.shows("JAX: layers in a scan", "values right")
def test_layers_in_a_scan_have_an_axis_of_layers_or_a_name_each(make_hook: MakeHook) -> None:
    whole, each = make_hook("whole"), make_hook("each", per_layer=True)
    for hook in (whole, each):
        trained("linen_scan_with_remat", hook)
        hook.close()
    stacked = td.create_trial(whole.out_dir).tensor("blocks/inner_output_0").value(2)
    assert stacked.shape == (4, BATCH, 5)
    for layer in range(4):
        name = f"blocks/inner_output_0/layer_{layer}"
        np.testing.assert_array_equal(td.create_trial(each.out_dir).tensor(name).value(2), stacked[layer])


def test_a_layer_that_is_called_twice_has_two_calls(make_hook: MakeHook) -> None:
    class Twice(nn.Module):  # type: ignore[misc]  # flax may not be installed
        @nn.compact
        def __call__(self, x: Any) -> Any:
            shared = nn.Dense(5, name="shared")
            return shared(shared(x)).sum()

    network = Twice()
    params = network.init(jax.random.key(0), jnp.ones((2, 5)))["params"]

    @jax.jit
    def step(params: Any, x: Any) -> Any:
        return jax.grad(lambda params: network.apply({"params": params}, x))(params)

    hook = make_hook()
    hook.capture_step(step)(params, batch_of(0)["x"])
    hook.close()
    output = td.create_trial(hook.out_dir).tensor("shared_output_0")
    kernel, bias = params["shared"]["kernel"], params["shared"]["bias"]
    first = batch_of(0)["x"] @ kernel + bias
    np.testing.assert_allclose(output.value(0, call=0), first, **CLOSE)
    np.testing.assert_allclose(output.value(0, call=1), first @ kernel + bias, **CLOSE)


@pytest.mark.shows("JAX: outputs of nnx modules", "values right")
def test_nnx_modules_are_named_by_their_paths(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained("nnx_compiled", hook)
    hook.close()
    names = set(td.create_trial(hook.out_dir).tensor_names())
    assert {"model/hidden/kernel", "gradient/model/hidden/kernel", "model/normal/mean"} <= names
    assert {"hidden_output_0", "NnxNetwork_output_0", "loss", "optimizer/0/mu/hidden/kernel"} <= names
    assert not any("rngs" in each for each in names)
    parameters = {f"model/{layer}" for layer in ("hidden", "normal", "scores")}
    assert {each.rsplit("/", 1)[0] for each in names if each.startswith("gradient/")} == {
        f"gradient/{each}" for each in parameters
    }


@pytest.mark.shows("JAX: train steps", "values right")
def test_steps_of_several_functions_have_their_modes(make_hook: MakeHook) -> None:
    hook = make_hook()
    trained("linen_evaluation", hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert run.tensor("loss").steps(mode=ModeKeys.EVAL) == list(range(7))
    assert run.tensor("gradient/params/hidden/kernel").steps(mode=ModeKeys.EVAL) == []
    assert run.tensor("scores_output_0").value(3, mode=ModeKeys.EVAL).shape == (BATCH, 3)


@pytest.mark.shows("JAX: losses", "values right")
def test_the_user_names_the_loss(make_hook: MakeHook) -> None:
    hook = make_hook()

    @hook.capture_step(loss=lambda result: result[1][0])
    @jax.jit
    def step(weights: Any, batch: Any) -> Any:
        weights, loss = plain_step(weights, batch)
        return weights, (2 * loss, loss)

    _, (expected, _) = step(plain_weights(), batch_of(0))
    hook.close()
    assert td.create_trial(hook.out_dir).tensor("loss").value(0) == expected


@pytest.mark.shows("JAX: values that a step saves", "values right")
def test_values_that_a_step_saves_itself_are_recorded(make_hook: MakeHook) -> None:
    hook = make_hook()

    @hook.capture_step
    @jax.jit
    def step(x: Any) -> Any:
        hook.save_scalar("mean", x.mean())
        hook.save_tensor("doubled", 2 * x)
        return hook.tap("gradient/by_hand", x + 1)

    x = batch_of(0)["x"]
    for _ in range(2):
        np.testing.assert_array_equal(step(x), x + 1)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert run.tensor("scalar/mean").value(0) == pytest.approx(x.mean(), abs=1e-6)
    np.testing.assert_array_equal(run.tensor("doubled").value(1), 2 * x)
    np.testing.assert_array_equal(run.tensor("gradient/by_hand").value(0), x + 1)


def test_numbers_of_the_next_state_are_no_metrics(make_hook: MakeHook) -> None:
    hook = make_hook()

    @hook.capture_step
    @jax.jit
    def step(params: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda each: each["w"].sum() * each["scale"])(params)
        return jax.tree.map(jnp.subtract, params, gradients), {"norm": loss + 1}

    step({"w": jnp.ones(3), "scale": jnp.float32(2)})
    hook.close()
    assert set(td.create_trial(hook.out_dir).tensor_names()) == {
        "loss", "norm", "params/w", "params/scale", "gradient/params/w", "gradient/params/scale"
    }  # fmt: skip


@pytest.mark.shows("JAX: losses", "values right")
def test_a_loss_that_the_optimizer_computes_itself_is_not_one_of_the_step(make_hook: MakeHook) -> None:
    hook = make_hook()

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        again = jax.value_and_grad(lambda each: (each**4).sum())(params)[1]
        return jax.tree.map(lambda each, further: -0.1 * each - 0.0 * further, updates, again), state

    transformation = optax.GradientTransformation(lambda params: (), update)

    @hook.capture_step
    @jax.jit
    def step(params: Any) -> Any:
        gradients = jax.grad(lambda each: (each**2).sum())(params)
        changes, _ = transformation.update(gradients, (), params)
        return params + changes

    step(jnp.ones(3))
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert [row["call"] for row in run.rows().to_pylist() if row["name"] == "loss"] == [0]
    assert run.tensor("loss").value(0) == 3.0
    np.testing.assert_array_equal(run.tensor("gradient/params").value(0), 2 * np.ones(3))


# Several devices --------------------------------------------------------------------------------------------


def assert_shards_are_in_their_places(run: Any, step: int) -> None:
    """Each shard with an offset is that part of the recorded whole."""
    places = {name: place for name, place in run.notes()["shards"].items() if "offset" in place}
    assert places
    for name, place in places.items():
        whole, part = run.tensor(re.sub(r"/shard_\d+", "", name)), run.tensor(name)
        box = tuple(
            slice(low, low + size) for low, size in zip(place["offset"], part.shape(step), strict=True)
        )
        assert place["global_shape"] == list(whole.shape(step))
        np.testing.assert_array_equal(part.value(step), whole.value(step)[box])


@pytest.mark.shows("JAX: shards of several devices", "values right")
@pytest.mark.parametrize(("name", "count"), [("pmap_of_two", 2), ("shard_map_of_four_checked", 4)])
def test_outputs_of_devices_are_the_batch_with_the_place_of_each_part(
    name: str, count: int, make_hook: MakeHook
) -> None:
    hook = make_hook()
    trained(name, hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    np.testing.assert_array_equal(run.tensor("Sequential_input_0").value(2), batch_of(2)["x"])
    output = run.tensor("layers_0_output_0").value(2)
    parts = [run.tensor(f"layers_0_output_0/shard_{each}").value(2) for each in range(count)]
    np.testing.assert_array_equal(np.concatenate(parts), output)
    assert run.notes()["shards"]["layers_0_output_0/shard_1"] == {
        "mesh": {"data": 1}, "offset": [BATCH // count, 0], "global_shape": [BATCH, 8]
    }  # fmt: skip
    assert_shards_are_in_their_places(run, 2)
    gradient = run.tensor("gradient/params/layers_0/kernel").value(2)
    assert gradient.shape == (5, 8)  # the mean is equal on all devices


@pytest.mark.shows("JAX: shards of several devices", "values right")
def test_a_sharded_parameter_is_recorded_whole_and_per_shard_where_requested(make_hook: MakeHook) -> None:
    hook = make_hook(per_shard=True)
    trained("sharded_arrays", hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert_shards_are_in_their_places(run, 3)
    places = [run.notes()["shards"][f"params/layers_0/kernel/shard_{each}"] for each in range(2)]
    assert sorted(each["offset"] for each in places) == [[0, 0], [0, 4]]
    assert [each["global_shape"] for each in places] == [[5, 8], [5, 8]]
    assert "params/layers_0/bias/shard_0" not in run.tensor_names()  # replicated


@pytest.mark.shows("JAX: shards of several devices", "values right")
def test_a_reader_takes_a_shard_for_a_tensor_of_its_own(make_hook: MakeHook) -> None:
    hook = make_hook(per_shard=True)
    trained("sharded_arrays", hook)
    hook.close()
    run = td.create_trial(hook.out_dir)
    name = "params/layers_0/kernel/shard_1"
    shard = run.tensor(name)
    assert shard.shape(3) == (5, 4)
    assert shard.shards(3) == []  # nothing for global_value() to assemble
    np.testing.assert_array_equal(shard.global_value(3), shard.value(3))
    (merged,) = (row for row in run.stats([name], merged=True).to_pylist() if row["step"] == 3)
    assert merged["l2"] == pytest.approx(np.linalg.norm(np.float64(shard.value(3))), rel=1e-12)


@pytest.mark.shows("JAX: shards of several devices", "values right")
@pytest.mark.parametrize("per_layer", [False, True])
def test_outputs_of_layers_in_a_scan_on_devices_have_their_places(
    per_layer: bool, make_hook: MakeHook
) -> None:
    hook = make_hook(per_layer=per_layer)
    network, x = Deep(), batch_of(0)["x"]
    params = network.init(jax.random.key(0), x)["params"]
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))

    def apply(params: Any, x: Any) -> Any:
        return network.apply({"params": params}, x)

    step = jax.shard_map(apply, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    hook.capture_step(jax.jit(step))(params, x)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert_shards_are_in_their_places(run, 0)
    name, place = "blocks/inner_output_0/shard_1", {"mesh": {"data": 1}}
    half = BATCH // 2
    if per_layer:
        expected = {"offset": [half, 0], "global_shape": [BATCH, 5]}
        assert run.notes()["shards"][f"{name}/layer_2"] == place | expected
    else:
        expected = {"offset": [0, half, 0], "global_shape": [4, BATCH, 5]}
        assert run.notes()["shards"][name] == place | expected


@pytest.mark.shows("JAX: losses", "values right")
def test_a_loss_that_differs_between_devices_is_recorded_per_device(make_hook: MakeHook) -> None:
    hook = make_hook()
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))

    def loss_of(weight: Any, x: Any) -> Any:
        return jax.lax.pmean(jax.value_and_grad(lambda weight: (x @ weight).sum())(weight)[1], "data")

    step = jax.shard_map(loss_of, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    x = batch_of(0)["x"]
    hook.capture_step(jax.jit(step))(jnp.ones(5), x)
    hook.close()
    run = td.create_trial(hook.out_dir)
    assert "loss" not in run.tensor_names()
    for number, part in enumerate(np.split(x, 2)):
        assert run.tensor(f"loss/shard_{number}").value(0) == pytest.approx(part.sum(), rel=1e-5)


# Generated architectures ------------------------------------------------------------------------------------


class Generated(nn.Module):  # type: ignore[misc]
    """A chain of layers."""

    widths: tuple[int, ...]
    kinds: tuple[str, ...]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for number, (width, kind) in enumerate(zip(self.widths, self.kinds, strict=True)):
            layer = nn.remat(nn.Dense) if kind == "remat" else nn.Dense
            x = layer(width, name=f"layer_{number}")(x)
            if kind == "norm":
                x = nn.LayerNorm(name=f"norm_{number}")(x)
            x = nn.relu(x)
        return nn.Dense(3, name="scores")(x)


@pytest.mark.shows("JAX: generated networks", "values right")
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    layers=st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["plain", "norm", "remat"])), min_size=1, max_size=4
    ),
    donate=st.booleans(),
)
def test_generated_networks_record_the_gradients_of_jax(
    layers: list[tuple[int, str]], donate: bool, make_hook: MakeHook
) -> None:
    widths, kinds = zip(*layers, strict=True)
    network = Generated(widths, kinds)
    params = jax.jit(network.init)(jax.random.key(0), jnp.ones((1, 5)))["params"]

    def loss_of(params: Any, batch: Any) -> Any:
        return cross_entropy(network.apply({"params": params}, batch["x"]), batch["y"])

    def step(params: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        return jax.tree.map(lambda weight, each: weight - 0.1 * each, params, gradients), loss

    expected = jax.jit(jax.grad(loss_of))(params, batch_of(0))
    plain, _ = jax.jit(step)(params, batch_of(0))
    hook = make_hook()
    changed, _ = hook.capture_step(jax.jit(step, donate_argnums=0 if donate else ()))(params, batch_of(0))
    jax.tree.map(np.testing.assert_array_equal, changed, plain)
    with contextlib.closing(hook):
        assert not hook._faults
    run = td.create_trial(hook.out_dir)
    for layer, tensors in expected.items():
        for name, gradient in tensors.items():
            value = run.tensor(f"gradient/params/{layer}/{name}").value(0)
            np.testing.assert_allclose(value, gradient, **CLOSE)
