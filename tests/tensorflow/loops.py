"""Small training loops, eager and compiled, and what they leave behind: losses and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

__all__ = ["LOOPS", "MODELS", "UPDATES", "WAYS", "Outcome", "Perceptron", "batches", "compiled", "train"]

Array = npt.NDArray[Any]
STEPS = 7


@dataclass(frozen=True)
class Outcome:
    """What a training leaves behind."""

    losses: list[float]
    weights: list[Array]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        pairs = zip(self.weights, other.weights, strict=True)
        return self.losses == other.losses and all(np.array_equal(one, two) for one, two in pairs)


def batches(steps: int = STEPS, samples: int = 8) -> list[tuple[Any, Any]]:
    """Inputs and labels of some steps."""
    numbers = np.random.default_rng(5)
    return [
        (
            tf.constant(numbers.normal(size=(samples, 4)).astype(np.float32)),
            tf.constant(numbers.integers(0, 3, samples)),
        )
        for _ in range(steps)
    ]


class Part(tf.Module):  # type: ignore[misc]  # tensorflow may not be installed
    """A dense layer without Keras."""

    def __init__(self, size: int, outputs: int, seed: int) -> None:
        super().__init__(name="part")
        numbers = np.random.default_rng(seed)
        self.w = tf.Variable(numbers.normal(size=(size, outputs)).astype(np.float32), name="w")
        self.b = tf.Variable(tf.zeros(outputs), name="b")

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


class Perceptron(tf.Module):  # type: ignore[misc]  # tensorflow may not be installed
    """Two parts, and a variable that counts calls."""

    def __init__(self) -> None:
        super().__init__(name="perceptron")
        self.hidden = Part(4, 5, 0)
        self.scores = Part(5, 3, 1)
        self.calls = tf.Variable(0.0, trainable=False, name="calls")

    def __call__(self, x: Any, training: bool = False) -> Any:
        self.calls.assign_add(1.0)
        return self.scores(tf.nn.relu(self.hidden(x)))


class Raw:
    """Variables without a module or names."""

    def __init__(self) -> None:
        numbers = np.random.default_rng(0)
        self.trainable_variables = [
            tf.Variable(numbers.normal(size=(4, 3)).astype(np.float32)),
            tf.Variable(tf.zeros(3)),
        ]
        self.variables = self.trainable_variables

    def __call__(self, x: Any, training: bool = False) -> Any:
        w, b = self.trainable_variables
        return x @ w + b


def keras_model() -> Any:
    """Not built yet: the first step creates its weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Dense(5, activation="relu", name="hidden"),
            layers.BatchNormalization(name="normal"),
            layers.Dropout(0.2, name="dropped"),
            layers.Dense(3, name="scores"),
        ]
    )


class ByHand:
    """An update without an optimizer."""

    def apply_gradients(self, pairs: Any) -> None:
        for gradient, variable in pairs:
            variable.assign_sub(0.1 * gradient)


MODELS: dict[str, Callable[[], Any]] = {"keras": keras_model, "module": Perceptron, "raw": Raw}
UPDATES: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "by hand": ByHand,
}
WAYS = ("eager", "function", "XLA")


def criterion(labels: Any, scores: Any) -> Any:
    """The mean cross entropy, without Keras."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))


def compiled(step: Callable[..., Any], way: str, hook: Any) -> Callable[..., Any]:
    """A step as a compiled function, or as it is."""
    if way == "eager":
        return step
    options = {"jit_compile": True} if way == "XLA" else {}
    if hook is None:
        return tf.function(step, **options)  # type: ignore[no-any-return]
    return hook.capture_step(**options)(step) if options else hook.capture_step(step)  # type: ignore[no-any-return]


def plain_loop(model: Any, optimizer: Any, way: str, hook: Any) -> list[float]:
    """One tape and one update in each step."""
    wrap = (lambda tape: tape) if hook is None else hook.wrap_tape

    def step(x: Any, y: Any) -> Any:
        with wrap(tf.GradientTape()) as tape:
            loss = criterion(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = compiled(step, way, hook)
    return [float(run(x, y)) for x, y in batches()]


def accumulating_loop(model: Any, optimizer: Any, way: str, hook: Any) -> list[float]:
    """Two tapes for each update."""
    wrap = (lambda tape: tape) if hook is None else hook.wrap_tape

    def step(x: Any, y: Any) -> Any:
        total: list[Any] = []
        losses = []
        for half in (slice(0, 4), slice(4, 8)):
            with wrap(tf.GradientTape()) as tape:
                loss = criterion(y[half], model(x[half], training=True))
            found = tape.gradient(loss, model.trainable_variables)
            total = [one + two for one, two in zip(total, found, strict=True)] if total else found
            losses.append(loss)
        optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
        return losses

    run = compiled(step, way, hook)
    return [float(loss) for x, y in batches() for loss in run(x, y)]


def adversarial_loop(model: Any, optimizer: Any, way: str, hook: Any) -> list[float]:
    """Two tapes at once for two models with an optimizer each, as in a GAN."""
    wrap = (lambda tape: tape) if hook is None else hook.wrap_tape
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="judge")])
    second = keras.optimizers.SGD(0.01)

    def step(x: Any, y: Any) -> Any:
        with wrap(tf.GradientTape()) as one, wrap(tf.GradientTape()) as two:
            scores = model(x, training=True)
            judged = other(scores)
            loss = criterion(y, scores) - tf.reduce_mean(judged)
            loss_of_judge = tf.reduce_mean(tf.square(judged))
        gradients = one.gradient(loss, model.trainable_variables)
        gradients_of_judge = two.gradient(loss_of_judge, other.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        second.apply_gradients(zip(gradients_of_judge, other.trainable_variables, strict=True))
        return loss, loss_of_judge

    run = compiled(step, way, hook)
    return [float(loss) for x, y in batches() for loss in run(x, y)]


def persistent_loop(model: Any, optimizer: Any, way: str, hook: Any) -> list[float]:
    """A persistent tape that computes the gradients of two losses."""
    wrap = (lambda tape: tape) if hook is None else hook.wrap_tape

    def step(x: Any, y: Any) -> Any:
        with wrap(tf.GradientTape(persistent=True)) as tape:
            scores = model(x, training=True)
            loss, penalty = criterion(y, scores), 0.01 * tf.reduce_sum(tf.square(scores))
        pairs = zip(
            tape.gradient(loss, model.trainable_variables),
            tape.gradient(penalty, model.trainable_variables),
            strict=True,
        )
        del tape
        gradients = [one + two for one, two in pairs]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = compiled(step, way, hook)
    return [float(run(x, y)) for x, y in batches()]


LOOPS: dict[str, Callable[..., list[float]]] = {
    "plain": plain_loop,
    "accumulating": accumulating_loop,
    "adversarial": adversarial_loop,
    "persistent": persistent_loop,
}


def train(model: str, update: str, way: str, loop: str = "plain", hook: Any = None) -> Outcome:
    """Train, with the same random numbers at every call."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    made, optimizer = MODELS[model](), UPDATES[update]()
    losses = LOOPS[loop](made, optimizer, way, hook)
    return Outcome(losses, [np.array(each) for each in made.variables])
