"""Programs with Flax linen, as a script would write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from tdcore.modes import ModeKeys
from tests.jax.program import STEPS, Capture, batch_of, cross_entropy, program


class Network(nn.Module):  # type: ignore[misc]  # flax may not be installed
    """Dense layers with batch normalization and dropout."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.Dense(8, name="hidden", dtype=self.dtype)(x)
        x = nn.BatchNorm(use_running_average=not train, name="normal")(x)
        x = nn.Dropout(0.3, deterministic=not train, name="dropped")(nn.relu(x))
        return nn.Dense(3, name="scores", dtype=self.dtype)(x)


class State(TrainState):  # type: ignore[misc]
    """With moving statistics."""

    batch_stats: Any


def linen_state(optimizer: Any, dtype: Any = jnp.float32) -> Any:
    network = Network(dtype)
    variables = network.init(jax.random.key(0), jnp.ones((1, 5)), train=False)
    return State.create(
        apply_fn=network.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optimizer,
    )


def linen_step(state: Any, batch: Any, key: Any, scale: float = 1.0) -> Any:
    def loss_of(params: Any) -> Any:
        scores, changed = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            batch["x"],
            rngs={"dropout": key},
            mutable=["batch_stats"],
        )
        return cross_entropy(scores.astype(jnp.float32), batch["y"]) * scale, (scores, changed)

    (loss, (scores, changed)), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    gradients = jax.tree.map(lambda each: each / scale, gradients)
    state = state.apply_gradients(grads=gradients).replace(batch_stats=changed["batch_stats"])
    return state, {"loss": loss / scale, "accuracy": jnp.mean(jnp.argmax(scores, -1) == batch["y"])}


def linen_evaluate(state: Any, batch: Any) -> Any:
    scores = state.apply_fn(
        {"params": state.params, "batch_stats": state.batch_stats}, batch["x"], train=False
    )
    return {"loss": cross_entropy(scores, batch["y"])}


def linen_training(capture: Capture, optimizer: Any, **options: Any) -> Any:
    state = linen_state(optimizer, **options)
    step = capture(jax.jit(linen_step, donate_argnums=0))
    logs = []
    for number in range(STEPS):
        state, log = step(state, batch_of(number), jax.random.key(number))
        logs.append(log)
    return state.params, state.opt_state, state.batch_stats, logs


@program
def linen_sgd(capture: Capture) -> Any:
    return linen_training(capture, optax.sgd(0.1, momentum=0.9))


@program
def linen_adam_with_clipping(capture: Capture) -> Any:
    return linen_training(capture, optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)))


@program
def linen_accumulation(capture: Capture) -> Any:
    return linen_training(capture, optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2))


@program
def linen_bfloat16(capture: Capture) -> Any:
    return linen_training(capture, optax.sgd(0.1), dtype=jnp.bfloat16)


@program
def linen_injected_rate(capture: Capture) -> Any:
    schedule = optax.exponential_decay(0.1, 1, 0.5)
    return linen_training(capture, optax.inject_hyperparams(optax.sgd)(learning_rate=schedule))


@program
def linen_loss_scale(capture: Capture) -> Any:
    state = linen_state(optax.adamw(1e-2))
    step = capture(jax.jit(linen_step))
    for number in range(STEPS):
        state, log = step(state, batch_of(number), jax.random.key(number), scale=2.0**number)
    return state.params, log


@program
def linen_evaluation(capture: Capture) -> Any:
    state = linen_state(optax.sgd(0.1))
    step = capture(jax.jit(linen_step, donate_argnums=(0,)))
    evaluate = capture(jax.jit(linen_evaluate), mode=ModeKeys.EVAL)
    logs = []
    for number in range(STEPS):
        state, log = step(state, batch_of(number), jax.random.key(number))
        logs += [log, evaluate(state, batch_of(100))]
    return state.params, logs


class Block(nn.Module):  # type: ignore[misc]
    """One layer of a deep network, in the form of nn.scan."""

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return x + nn.tanh(nn.Dense(5, name="inner")(x)), None


class Deep(nn.Module):  # type: ignore[misc]
    """Four blocks in a scan."""

    remat: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        block = nn.remat(Block, prevent_cse=False) if self.remat else Block
        scanned = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
        x, _ = scanned(name="blocks")(x, None)
        return nn.Dense(3, name="scores")(x)


class Recurrent(nn.Module):  # type: ignore[misc]
    """An LSTM and attention over a sequence."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.RNN(nn.OptimizedLSTMCell(6), name="recurrent")(x[..., None])
        x = nn.MultiHeadDotProductAttention(num_heads=2, name="attention")(x, x)
        return nn.Dense(3, name="scores")(x.mean(1))


def simple_training(capture: Capture, network: Any, optimizer: Any) -> Any:
    params = network.init(jax.random.key(0), jnp.ones((2, 5)))["params"]
    state = TrainState.create(apply_fn=network.apply, params=params, tx=optimizer)

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return cross_entropy(state.apply_fn({"params": params}, batch["x"]), batch["y"])

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=gradients), loss

    step = capture(step)
    losses = []
    for number in range(STEPS):
        state, loss = step(state, batch_of(number))
        losses.append(loss)
    return state.params, losses


@program
def linen_scan(capture: Capture) -> Any:
    return simple_training(capture, Deep(), optax.adam(1e-2))


@program
def linen_scan_with_remat(capture: Capture) -> Any:
    return simple_training(capture, Deep(remat=True), optax.adam(1e-2))


@program
def linen_recurrent(capture: Capture) -> Any:
    return simple_training(capture, Recurrent(), optax.adagrad(1e-2))


@program
def linen_adversarial(capture: Capture) -> Any:
    generator, judge = Deep(), nn.Dense(1)
    first = TrainState.create(
        apply_fn=generator.apply,
        params=generator.init(jax.random.key(0), jnp.ones((2, 5)))["params"],
        tx=optax.adam(1e-2),
    )
    second = TrainState.create(
        apply_fn=judge.apply,
        params=judge.init(jax.random.key(1), jnp.ones((2, 3)))["params"],
        tx=optax.sgd(0.1),
    )

    def step(generator: Any, judge: Any, batch: Any) -> Any:
        def of_judge(params: Any) -> Any:
            made = generator.apply_fn({"params": generator.params}, batch["x"])
            return judge.apply_fn({"params": params}, made).mean()

        def of_generator(params: Any) -> Any:
            return -judge.apply_fn(
                {"params": judge.params}, generator.apply_fn({"params": params}, batch["x"])
            ).mean()

        one, gradients = jax.value_and_grad(of_judge)(judge.params)
        judge = judge.apply_gradients(grads=gradients)
        two, gradients = jax.value_and_grad(of_generator)(generator.params)
        return generator.apply_gradients(grads=gradients), judge, {"judge_loss": one, "generator_loss": two}

    step = capture(jax.jit(step, donate_argnums=(0, 1)))
    for number in range(STEPS):
        first, second, log = step(first, second, batch_of(number))
    return first.params, second.params, log
