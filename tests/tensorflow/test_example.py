"""The example of exploding gradients runs, and its rules find the fault only where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="stage keras of .ci/run has TensorFlow")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.shows("TensorFlow: rules on real models", "values right")
def test_the_example_finds_the_fault_of_the_faulty_network_only(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "tensorflow_exploding_gradient.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    faulty, _, repaired = done.stdout.partition("repaired:")
    assert "ExplodingTensor: issue" in faulty
    assert "NaN among" in faulty
    assert "ExplodingTensor: no issue" in repaired
    assert "LossNotDecreasing: no issue" in repaired


def test_a_disabled_hook_compiles_functions_and_does_nothing_else(tmp_path: Path) -> None:
    script = """
import tensorflow as tf
from tdcore.hooks.tensorflow import Hook, get_hook
hook = get_hook(create_if_not_exists=True)
assert type(hook).__module__ == "tdcore.hooks.tensorflow.inert", type(hook)
tape = tf.GradientTape()
assert hook.wrap_tape(tape) is tape
assert hook.wrap_optimizer(3) == 3
hook.register_model(None)

@hook.capture_step(jit_compile=True)
def step(x):
    hook.save_tensor("mine", x)
    return x + 1

@hook.capture_step
def other(x):
    return x + 1

assert type(step) is type(other) is type(tf.function(other))
assert float(step(tf.constant(1.0))) == float(other(tf.constant(1.0))) == 2.0
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TDCORE_DISABLED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
