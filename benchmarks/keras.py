"""Slowdown of Keras's fit() with the hook, by backend and save interval.

A CNN with three convolutions (28 x 28 x 1 images, batches of 32, Adam) is trained by fit() in epochs of 100
batches, on one thread. Each backend has a process of its own. In it one model trains an epoch with the hook
and an epoch without, in turns, and the order within a pair changes. The ratio of a pair is the CPU time of
the process with the hook divided by the CPU time without it: other processes count little in it. `wall` is
the same ratio of the elapsed time. Each result is a median over pairs with a 95 % bootstrap interval.
The hook saves the statistics of weights, gradients, losses, inputs and outputs.

interval N      every Nth batch is saved. Both functions are compiled before the time starts
unsaved         a save_config that saves no batch of these epochs: the cost of the hook's calls
calls           Python functions of tdcore that run in a batch that is not saved
first batch     elapsed seconds of the first batch, which compiles; with the hook: of the first saved batch

With --smdebug, the hook of smdebug is measured too, in its own environment (`python3 scripts/make_peers.py
smdebug-keras`) with TensorFlow 2.12, the oldest version for Python 3.11. The result has the names of the
tensors that it records: there are no gradients, inputs and outputs among them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, add_out, save, version
from benchmarks.slowdown.costs import bootstrap

PEER = ROOT / ".venvs" / "smdebug-keras" / "bin" / "python"
BACKENDS = ("tensorflow", "jax", "torch")
INTERVALS = (1, 10, 100)
BATCHES, BATCH = 100, 32
NEVER = 1 << 30
COLLECTIONS = ["weights", "biases", "gradients", "losses", "inputs", "outputs"]
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


class Training:
    """One model, and epochs of it with and without a hook."""

    def __init__(self) -> None:
        import keras
        from keras import layers

        keras.utils.set_random_seed(0)
        self.model = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                layers.Conv2D(16, 3, activation="relu"),
                layers.Conv2D(32, 3, strides=2, activation="relu"),
                layers.Conv2D(32, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(10, activation="softmax"),
            ]
        )
        jit = keras.backend.backend() == "jax"
        self.model.compile("adam", "sparse_categorical_crossentropy", jit_compile=jit)
        numbers = np.random.default_rng(0)
        self._x = numbers.random((BATCHES * BATCH, 28, 28, 1), dtype=np.float32)
        self._y = numbers.integers(0, 10, BATCHES * BATCH)

    def epoch(self, callbacks: list[Any], batches: int = BATCHES) -> tuple[float, float]:
        """CPU seconds of this process and elapsed seconds for one epoch."""
        x, y = self._x[: batches * BATCH], self._y[: batches * BATCH]
        cpu, wall = time.process_time(), time.perf_counter()
        self.model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
        return time.process_time() - cpu, time.perf_counter() - wall


def make_hook(folder: str, interval: int) -> Any:
    """A hook that saves statistics; NEVER: of no batch."""
    import tdcore as td
    from tdcore.hooks.keras import Hook

    when = td.SaveConfig(start_step=NEVER) if interval == NEVER else td.SaveConfig(save_interval=interval)
    return Hook(
        folder, save_config=when, include_collections=COLLECTIONS, reduction_config=td.ReductionConfig()
    )


def paired(training: Training, hook: Any, pairs: int) -> tuple[list[float], list[float]]:
    """Ratios of CPU time and of elapsed time of epochs with and without a hook."""
    cpu, wall = [], []
    for pair in range(pairs):
        order = ([hook], []) if pair % 2 else ([], [hook])
        times = {len(callbacks): training.epoch(callbacks) for callbacks in order}
        cpu.append(times[1][0] / times[0][0])
        wall.append(times[1][1] / times[0][1])
    return cpu, wall


def ratios(training: Training, interval: int, pairs: int) -> dict[str, Any]:
    """Ratios of CPU time and elapsed time, and the seconds of the first batch with the hook."""
    with tempfile.TemporaryDirectory() as folder, make_hook(folder, interval) as hook:
        _, compiled = training.epoch([hook], batches=1)
        training.epoch([hook])
        cpu, wall = paired(training, hook, pairs)
        counters = hook.counters()
        inside = hook.time_spent().total_seconds()
    if counters.drops:
        raise RuntimeError(f"interval {interval}: {counters}")
    return {
        "cpu": asdict(bootstrap(cpu)),
        "wall": asdict(bootstrap(wall)),
        "first_batch_s": compiled,
        "tensors": counters.tensors,
        "inside_hook_s": inside,
    }


def calls_of(training: Training) -> float:
    """Python functions of tdcore that run in a batch that is not saved."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and "/hooks/" in frame.f_code.co_filename

    def counted(batches: int) -> int:
        nonlocal count
        count = 0
        sys.setprofile(profile)
        try:
            training.epoch([hook], batches)
        finally:
            sys.setprofile(None)
        return count

    with tempfile.TemporaryDirectory() as folder, make_hook(folder, NEVER) as hook:
        training.epoch([hook], batches=2)
        return (counted(20) - counted(10)) / 10


def measure(pairs: int) -> dict[str, Any]:
    """All results of the backend of this process."""
    one_thread: dict[str, Callable[[], None]] = {
        "tensorflow": one_thread_of_tensorflow,
        "torch": _one_thread_of_torch,
    }
    import keras

    one_thread.get(keras.backend.backend(), lambda: None)()
    training = Training()
    _, compiled = training.epoch([], batches=1)
    step_s = min(training.epoch([])[0] for _ in range(3)) / BATCHES
    result: dict[str, Any] = {"step_cpu_s": step_s, "first_batch_s": compiled, "calls": calls_of(training)}
    for interval in (NEVER, *INTERVALS):
        name = "unsaved" if interval == NEVER else f"interval {interval}"
        result[name] = ratios(training, interval, pairs)
    return result


def one_thread_of_tensorflow() -> None:
    """Make TensorFlow use one thread."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _one_thread_of_torch() -> None:
    import torch

    torch.set_num_threads(1)


def in_process(backend: str, pairs: int) -> dict[str, Any]:
    """Measure a backend in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.keras", "--worker", "--pairs", str(pairs)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **ONE_THREAD, "KERAS_BACKEND": backend, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def of_smdebug(pairs: int) -> dict[str, Any]:
    """Results of smdebug, from a process in its environment."""
    if not PEER.exists():
        raise SystemExit(f"{PEER} does not exist: python3 scripts/make_peers.py smdebug-keras")
    script = Path(__file__).parent / "peers" / "smdebug_keras.py"
    environment = {**os.environ, **ONE_THREAD}
    command = [str(PEER), str(script), str(pairs)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.rpartition("RESULT ")[2])
    return found


def show(backend: str, result: dict[str, Any]) -> None:
    """Print the results of a backend."""
    step, calls = 1000 * result["step_cpu_s"], result["calls"]
    first = result["first_batch_s"]
    print(f"{backend}: {step:.1f} ms CPU per step, first batch {first:.2f} s, {calls:.1f} calls if unsaved")
    for name, each in result.items():
        if isinstance(each, dict):
            cpu, wall = each["cpu"], each["wall"]
            print(
                f"  {name:13} CPU {cpu['median']:.3f} [{cpu['low']:.3f}, {cpu['high']:.3f}]"
                f"  elapsed {wall['median']:.3f} [{wall['low']:.3f}, {wall['high']:.3f}]"
                f"  first batch {each['first_batch_s']:.2f} s",
                flush=True,
            )


def main() -> None:
    """Measure, print and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--smdebug", action="store_true", help="measure smdebug too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_out(parser)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.pairs)))
        return
    found = {}
    for backend in options.backends:
        found[backend] = in_process(backend, options.pairs)
        show(backend, found[backend])
    packages = ("keras", "tensorflow_cpu", "tensorflow", "jax", "torch")
    result: dict[str, Any] = {
        "method": __doc__,
        "pairs": options.pairs,
        "versions": {name: number for name in packages if (number := version(name)) is not None},
    }
    result["backends"] = found
    if options.smdebug:
        peer = result["smdebug"] = of_smdebug(options.pairs)
        print(f"smdebug: {1000 * peer['step_cpu_s']:.1f} ms CPU per step, {len(peer['tensors'])} tensors")
        for interval in INTERVALS:
            cpu = peer[f"interval {interval}"]["cpu"]
            print(f"  interval {interval:<4} CPU {cpu['median']:.3f} [{cpu['low']:.3f}, {cpu['high']:.3f}]")
    print(save("keras", result, options.out))


if __name__ == "__main__":
    main()
