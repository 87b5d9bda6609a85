"""What the programs of the tests share: a program, its data, and the comparison of its results.

A program is a function that takes a function `capture`, which it applies to its steps as a script applies
hook.capture_step, and returns everything that the training has computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

STEPS = 7
BATCH = 8
Capture = Callable[..., Any]
Program = Callable[[Capture], Any]

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def captured_by(hook: Any) -> Capture:
    """The capture of a hook; None: of a script without a hook."""
    return (lambda step, **options: step) if hook is None else hook.capture_step


def trained(name: str, hook: Any = None) -> Any:
    """The results of a program as NumPy arrays."""
    return jax.tree.map(np.asarray, PROGRAMS[name](captured_by(hook)))


def same(one: Any, other: Any) -> bool:
    """Whether two results have the same bits."""
    left, right = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True)
    )


def batch_of(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "x": random.normal(size=(BATCH, 5)).astype(np.float32),
        "y": random.integers(0, 3, BATCH).astype(np.int32),
    }


def cross_entropy(scores: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()
