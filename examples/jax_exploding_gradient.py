"""Trains a JAX network with a learning rate that is far too high, and one with a good rate.

    python examples/jax_exploding_gradient.py runs/jax

Prints what the rules find. The faulty network has a rate of 50 and no bound for its gradients, so its weights
grow without end. The repaired one has a rate of 0.1 and clips its gradients. docs/jax.md explains the hook.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.training.train_state import TrainState

import tdcore as td
from tdcore.hooks.jax import Hook
from tdcore.rules import run

RULES = ["first_non_finite", "loss_not_decreasing"]
STEPS = 60


class Network(nn.Module):  # type: ignore[misc]  # flax may not be installed
    """A regression of one number."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """The predictions for points in a plane."""
        return nn.Dense(1, name="result")(nn.relu(nn.Dense(32, name="hidden")(x)))[..., 0]


@jax.jit
def train_step(state: Any, x: Any, y: Any) -> Any:
    """One update. Returns the new state and the loss."""

    def loss_of(params: Any) -> Any:
        return ((state.apply_fn({"params": params}, x) - y) ** 2).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def main(place: str) -> None:
    """Train both networks and judge their runs."""
    x = np.random.default_rng(0).uniform(-1, 1, (256, 2)).astype(np.float32)
    y = np.sin(3 * x[:, 0]) + x[:, 1]
    network = Network()
    params = network.init(jax.random.key(0), x)["params"]
    optimizers = {
        "faulty": optax.sgd(50.0),
        "repaired": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    }
    for name, optimizer in optimizers.items():
        state = TrainState.create(apply_fn=network.apply, params=params, tx=optimizer)
        folder = str(Path(place) / name)
        with Hook(folder, save_config=td.SaveConfig(save_interval=2), rules=RULES) as hook:
            step = hook.capture_step(train_step)
            for _ in range(STEPS):
                state, _ = step(state, x, y)
        report = run(folder, RULES)
        print(f"{name}:")
        for verdict in report.verdicts:
            print(f"  {verdict.rule}: {verdict.text}")
        for finding in report.findings:
            print(f"    {finding.at} {finding.tensor}: {finding.why}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/jax")
