"""All programs of the tests, by name."""

from __future__ import annotations

from tests.jax import device_programs, linen_programs, nnx_programs, plain_programs
from tests.jax.linen_programs import linen_state, linen_step
from tests.jax.plain_programs import plain_loss, plain_step, plain_weights
from tests.jax.program import BATCH, PROGRAMS, batch_of, cross_entropy, same, trained

__all__ = [
    "BATCH",
    "PROGRAMS",
    "batch_of",
    "cross_entropy",
    "device_programs",
    "linen_programs",
    "linen_state",
    "linen_step",
    "nnx_programs",
    "plain_loss",
    "plain_programs",
    "plain_step",
    "plain_weights",
    "same",
    "trained",
]
