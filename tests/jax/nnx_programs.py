"""Programs with Flax nnx, as a script would write them."""

from __future__ import annotations

from typing import Any

import jax
import optax
from flax import nnx

from tests.jax.program import STEPS, Capture, batch_of, cross_entropy, program


class NnxNetwork(nnx.Module):  # type: ignore[misc]
    """As Network."""

    def __init__(self, rngs: Any) -> None:
        self.hidden = nnx.Linear(5, 8, rngs=rngs)
        self.normal = nnx.BatchNorm(8, rngs=rngs)
        self.dropped = nnx.Dropout(0.3, rngs=rngs)
        self.scores = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.scores(self.dropped(nnx.relu(self.normal(self.hidden(x)))))


def nnx_step(model: Any, optimizer: Any, batch: Any) -> Any:
    def loss_of(model: Any) -> Any:
        return cross_entropy(model(batch["x"]), batch["y"])

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def nnx_training(capture: Capture, compiled: Any) -> Any:
    model = NnxNetwork(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    step = capture(compiled(nnx_step))
    losses = [step(model, optimizer, batch_of(number)) for number in range(STEPS)]
    return (
        nnx.to_pure_dict(nnx.state(model, nnx.Param)),
        nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)),
        losses,
    )


@program
def nnx_compiled(capture: Capture) -> Any:
    return nnx_training(capture, nnx.jit)


@program
def nnx_not_compiled(capture: Capture) -> Any:
    return nnx_training(capture, lambda step: step)


class WithKeys(nnx.Module):  # type: ignore[misc]
    """A network that gets its random numbers as an argument, which each call changes."""

    def __init__(self, rngs: Any) -> None:
        self.hidden = nnx.Linear(5, 8, rngs=rngs)
        self.dropped = nnx.Dropout(0.5)
        self.scores = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: Any, rngs: Any) -> Any:
        return self.scores(self.dropped(self.hidden(x), rngs=rngs))


@program
def nnx_changed_argument(capture: Capture) -> Any:
    model, rngs = WithKeys(nnx.Rngs(0)), nnx.Rngs(1)

    @capture
    def step(model: Any, rngs: Any, batch: Any) -> Any:
        return cross_entropy(model(batch["x"], rngs), batch["y"])

    return [step(model, rngs, batch_of(number)) for number in range(STEPS)], rngs.default.count[...]


@program
def nnx_functional(capture: Capture) -> Any:
    graph, params, rest = nnx.split(NnxNetwork(nnx.Rngs(0)), nnx.Param, ...)
    transformation = optax.sgd(0.1)

    @jax.jit
    def step(params: Any, rest: Any, opt_state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            model = nnx.merge(graph, params, rest, copy=True)
            return cross_entropy(model(batch["x"]), batch["y"]), nnx.state(model, nnx.Not(nnx.Param))

        (loss, rest), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        changes, opt_state = transformation.update(gradients, opt_state, params)
        return optax.apply_updates(params, changes), rest, opt_state, loss

    step = capture(step)
    opt_state = transformation.init(params)
    for number in range(STEPS):
        params, rest, opt_state, loss = step(params, rest, opt_state, batch_of(number))
    return nnx.to_pure_dict(params), loss
