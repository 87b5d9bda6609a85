"""Programs on several devices, as a script would write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.jax.program import STEPS, Capture, batch_of, cross_entropy, program


def mean_step(axis: str, state: Any, batch: Any) -> Any:
    def loss_of(params: Any) -> Any:
        return cross_entropy(state.apply_fn({"params": params}, batch["x"]), batch["y"])

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    gradients = jax.lax.pmean(gradients, axis)
    return state.apply_gradients(grads=gradients), jax.lax.pmean(loss, axis)


def small_state() -> Any:
    network = nn.Sequential([nn.Dense(8), nn.tanh, nn.Dense(4)])
    params = network.init(jax.random.key(0), jnp.ones((2, 5)))["params"]
    return TrainState.create(apply_fn=network.apply, params=params, tx=optax.adam(1e-2))


def pmap_training(capture: Capture, count: int) -> Any:
    devices = jax.devices()[:count]
    state = small_state()
    state = jax.tree.map(lambda each: jnp.stack([each] * count), state)
    step = capture(jax.pmap(partial(mean_step, "data"), axis_name="data", devices=devices, donate_argnums=0))
    losses = []
    for number in range(STEPS):
        batch = jax.tree.map(lambda each: each.reshape(count, -1, *each.shape[1:]), batch_of(number))
        state, loss = step(state, batch)
        losses.append(loss)
    return state.params, losses


@program
def pmap_of_two(capture: Capture) -> Any:
    return pmap_training(capture, 2)


@program
def pmap_of_four(capture: Capture) -> Any:
    return pmap_training(capture, 4)


def shard_map_training(capture: Capture, count: int, check: bool) -> Any:
    mesh = Mesh(np.array(jax.devices()[:count]), ("data",))
    state = small_state()
    mapped = jax.shard_map(
        partial(mean_step, "data"),
        mesh=mesh,
        in_specs=(P(), P("data")),
        out_specs=(P(), P()),
        check_vma=check,
    )
    step = capture(jax.jit(mapped, donate_argnums=0))
    losses = []
    for number in range(STEPS):
        state, loss = step(state, batch_of(number))
        losses.append(loss)
    return state.params, losses


@program
def shard_map_of_two(capture: Capture) -> Any:
    return shard_map_training(capture, 2, check=False)


@program
def shard_map_of_four_checked(capture: Capture) -> Any:
    return shard_map_training(capture, 4, check=True)


@program
def sharded_arrays(capture: Capture) -> Any:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))

    def place(path: Any, leaf: Any) -> Any:
        wide = getattr(leaf, "ndim", 0) == 2
        return NamedSharding(mesh, P(None, "model") if wide else P())

    state = small_state()
    places = jax.tree_util.tree_map_with_path(place, state)
    state = jax.device_put(state, places)
    data = NamedSharding(mesh, P("data"))

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return cross_entropy(state.apply_fn({"params": params}, batch["x"]), batch["y"])

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=gradients), loss

    compiled = capture(
        jax.jit(
            step,
            in_shardings=(places, data),
            out_shardings=(places, NamedSharding(mesh, P())),
            donate_argnums=0,
        )
    )
    losses = []
    for number in range(STEPS):
        state, loss = compiled(state, batch_of(number))
        losses.append(loss)
    return state.params, state.opt_state, losses
