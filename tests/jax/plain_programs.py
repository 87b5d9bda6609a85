"""Programs with plain trees of arrays, as a script would write them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import grad, value_and_grad

from tests.jax.program import STEPS, Capture, batch_of, cross_entropy, program


def plain_weights(width: int = 8) -> Any:
    random = np.random.default_rng(0)
    return {
        "first": {"w": random.normal(size=(5, width)).astype(np.float32), "b": np.zeros(width, np.float32)},
        "second": {"w": random.normal(size=(width, 3)).astype(np.float32), "b": np.zeros(3, np.float32)},
    }


def plain_loss(weights: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ weights["first"]["w"] + weights["first"]["b"])
    return cross_entropy(hidden @ weights["second"]["w"] + weights["second"]["b"], batch["y"])


def plain_step(weights: Any, batch: Any) -> Any:
    loss, gradients = value_and_grad(plain_loss)(weights, batch)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients), loss


def plain_training(capture: Capture, compiled: Any) -> Any:
    weights = plain_weights()
    step = capture(compiled(plain_step))
    losses = []
    for number in range(STEPS):
        weights, loss = step(weights, batch_of(number))
        losses.append(loss)
    return weights, losses


@program
def plain(capture: Capture) -> Any:
    return plain_training(capture, jax.jit)


@program
def plain_not_compiled(capture: Capture) -> Any:
    return plain_training(capture, lambda step: step)


@program
def plain_optax(capture: Capture) -> Any:
    transformation = optax.adam(optax.cosine_decay_schedule(1e-2, STEPS))
    weights = plain_weights()
    state = transformation.init(weights)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(weights: Any, moments: Any, batch: Any) -> Any:
        gradients = grad(plain_loss)(weights, batch)
        changes, moments = transformation.update(gradients, moments)
        return optax.apply_updates(weights, changes), moments

    step = capture(step)
    weights = jax.tree.map(jnp.asarray, weights)
    for number in range(STEPS):
        weights, state = step(weights, state, batch_of(number))
    return weights, state


@program
def plain_microbatches(capture: Capture) -> Any:
    @jax.jit
    def step(weights: Any, batch: Any) -> Any:
        parts = jax.tree.map(lambda each: each.reshape(4, -1, *each.shape[1:]), batch)

        def of_part(total: Any, part: Any) -> Any:
            loss, gradients = value_and_grad(plain_loss)(weights, part)
            return jax.tree.map(jnp.add, total, gradients), loss

        zeros = jax.tree.map(jnp.zeros_like, weights)
        total, losses = jax.lax.scan(of_part, zeros, parts)
        return jax.tree.map(lambda weight, each: weight - 0.025 * each, weights, total), {
            "loss": losses.mean()
        }

    step = capture(step)
    weights = plain_weights()
    for number in range(STEPS):
        weights, log = step(weights, batch_of(number))
    return weights, log


@program
def plain_static_arguments(capture: Capture) -> Any:
    @partial(jax.jit, static_argnums=(2,), static_argnames=("kind",))
    def step(weights: Any, batch: Any, depth: int, rate: float, kind: str) -> Any:
        assert kind == "sgd"
        for _ in range(depth):
            gradients = grad(plain_loss)(weights, batch)
            weights = jax.tree.map(lambda weight, each: weight - rate * each, weights, gradients)
        return weights

    step = capture(step)
    weights = plain_weights()
    for number in range(STEPS):
        weights = step(weights, batch_of(number), 1 + number % 2, 0.1 / (number + 1), kind="sgd")
    return weights


@program
def plain_method(capture: Capture) -> Any:
    class Trainer:
        def __init__(self) -> None:
            self.rate = 0.1

        @capture
        @partial(jax.jit, static_argnums=0)
        def step(self, weights: Any, batch: Any) -> Any:
            loss, gradients = value_and_grad(plain_loss)(weights, batch)
            return jax.tree.map(lambda weight, each: weight - self.rate * each, weights, gradients), loss

    trainer, weights = Trainer(), plain_weights()
    for number in range(STEPS):
        weights, loss = trainer.step(weights, batch_of(number))
    return weights, loss


@program
def plain_remat_and_custom_derivatives(capture: Capture) -> Any:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, cotangent: (jnp.clip(cotangent, -0.1, 0.1),))

    @jax.jit
    def step(weights: Any, batch: Any) -> Any:
        @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
        def loss_of(weights: Any) -> Any:
            hidden = clipped(jax.nn.silu(batch["x"] @ weights["first"]["w"]))
            return cross_entropy(hidden @ weights["second"]["w"], batch["y"])

        loss, gradients = value_and_grad(loss_of)(weights)
        return jax.tree.map(lambda weight, each: weight - 0.1 * each, weights, gradients), loss

    step = capture(step)
    weights = plain_weights()
    for number in range(STEPS):
        weights, loss = step(weights, batch_of(number))
    return weights, loss


@program
def plain_ensemble(capture: Capture) -> Any:
    step = capture(jax.jit(jax.vmap(plain_step, in_axes=(0, None))))
    weights = jax.tree.map(lambda each: jnp.stack([each, each * 0.5]), plain_weights())
    for number in range(STEPS):
        weights, losses = step(weights, batch_of(number))
    return weights, losses
