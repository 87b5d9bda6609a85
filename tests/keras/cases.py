"""Small models with their data, and what a training of them leaves behind: losses, weights, predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
from keras import layers

__all__ = ["BACKEND", "CASES", "Outcome", "OwnStep", "built", "data_of", "shows", "train"]

BACKEND = keras.backend.backend()
FRAMEWORK = {"tensorflow": "Keras on TensorFlow", "jax": "Keras on JAX", "torch": "Keras on torch"}[BACKEND]
Array = npt.NDArray[Any]
SAMPLES, BATCH = 16, 8


def shows(row: str, column: str) -> pytest.MarkDecorator:
    """The mark of a test that shows a cell of the table in docs/frameworks.md, of the backend that runs."""
    return pytest.mark.shows(f"{FRAMEWORK}: {row}", column)


@dataclass(frozen=True)
class Outcome:
    """What a training leaves behind."""

    losses: list[float]
    weights: list[Array]
    predictions: list[Array]
    history: dict[str, list[float]]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        pairs = zip(self.weights + self.predictions, other.weights + other.predictions, strict=True)
        return (
            self.losses == other.losses
            and self.history == other.history
            and all(np.array_equal(one, two) for one, two in pairs)
        )


@dataclass
class Losses(keras.callbacks.Callback):  # type: ignore[misc]  # keras may not be installed
    """Collects the loss of each batch, as Keras reports it."""

    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])


def functional() -> Any:
    inputs = keras.Input((4,), name="x")
    hidden = layers.Dense(6, activation="relu", name="hidden")(inputs)
    normal = layers.BatchNormalization(name="normal")(hidden)
    dropped = layers.Dropout(0.2, name="dropped")(normal)
    return keras.Model(inputs, layers.Dense(3, activation="softmax", name="scores")(dropped))


def sequential() -> Any:
    return keras.Sequential([layers.Dense(5, activation="relu"), layers.Dense(3, activation="softmax")])


class Subclassed(keras.Model):  # type: ignore[misc]  # keras may not be installed
    """Two layers of the same name in a list, one called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [layers.Dense(4, name="part"), layers.Dense(4, name="part")]
        self.scores = layers.Dense(3, activation="softmax")

    def call(self, x: Any) -> Any:
        for part in (*self.parts, self.parts[0]):
            x = keras.ops.tanh(part(x))
        return self.scores(x)


def shared() -> Any:
    inputs = keras.Input((4,))
    twice = layers.Dense(4, activation="tanh", name="twice")
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(twice(twice(inputs))))


def nested() -> Any:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu")], name="inner")
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(inner(inputs)))


def recurrent() -> Any:
    inputs = keras.Input((4,))
    series = layers.Reshape((4, 1))(inputs)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.LSTM(3, name="memory")(series)))


def frozen() -> Any:
    model = functional()
    model.get_layer("hidden").trainable = False
    return model


def regularized() -> Any:
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l1", activation="tanh")(inputs)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(hidden))


def embedded() -> Any:
    inputs = keras.Input((4,))
    whole = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 3, "int32") % 7)(inputs)
    flat = layers.Flatten()(layers.Embedding(7, 2, name="table")(whole))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(flat))


def convolutional() -> Any:
    inputs = keras.Input((4,))
    image = layers.Reshape((2, 2, 1))(inputs)
    maps = layers.Conv2D(3, 2, padding="same", activation="relu")(image)
    pooled = layers.GlobalAveragePooling2D()(maps)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(pooled))


def noisy() -> Any:
    def noise(x: Any) -> Any:
        import tensorflow as tf

        return x + tf.random.normal(tf.shape(x))

    inputs = keras.Input((4,))
    noised = layers.Lambda(noise, output_shape=(4,))(inputs)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(noised))


class OwnStep(keras.Model):  # type: ignore[misc]  # keras may not be installed
    """A model with a train_step of its own, which does not call compute_loss.

    factor: a constant by which the step multiplies the gradients on TensorFlow.
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.inner = functional()
        self.criterion = keras.losses.SparseCategoricalCrossentropy()

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def train_step(self, *args: Any) -> Any:
        steps: dict[str, Callable[..., Any]]
        steps = {"tensorflow": self._with_tensorflow, "jax": self._with_jax, "torch": self._with_torch}
        return steps[BACKEND](*args)

    def _with_torch(self, data: Any) -> Any:
        import torch

        x, y = data
        self.zero_grad()
        loss = self.criterion(y, self(x, training=True))
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([each.value.grad for each in weights], weights)
        return {"loss": loss}

    def _with_tensorflow(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.criterion(y, self(x, training=True))
        gradients = [self.factor * each for each in tape.gradient(loss, self.trainable_variables)]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}

    def _with_jax(self, state: Any, data: Any) -> Any:
        import jax

        trainable, fixed, optimizer, metrics = state
        x, y = data

        def loss_of(trainable: Any) -> Any:
            scores, changed = self.stateless_call(trainable, fixed, x, training=True)
            return self.criterion(y, scores), changed

        (loss, fixed), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        return {"loss": loss}, (trainable, fixed, optimizer, metrics)


def schedule() -> Any:
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))


def accumulating() -> Any:
    return keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "functional": (functional, {}),
    "sequential": (sequential, {}),
    "subclassed": (Subclassed, {}),
    "shared layer": (shared, {}),
    "nested": (nested, {}),
    "recurrent": (recurrent, {}),
    "frozen": (frozen, {}),
    "regularized": (regularized, {}),
    "embedding": (embedded, {}),
    "convolution": (convolutional, {}),
    "own train_step": (OwnStep, {}),
    "schedule": (functional, {"optimizer": schedule}),
    "accumulation": (functional, {"optimizer": accumulating}),
    "clipping": (functional, {"optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1)}),
    "with XLA": (frozen, {"jit_compile": True}),
    "without XLA": (frozen, {"jit_compile": False}),
    "automatic": (sequential, {"jit_compile": "auto"}),
    "eager": (functional, {"run_eagerly": True}),
    "steps_per_execution": (functional, {"steps_per_execution": 2}),
    "tf.random": (noisy, {}),
    "mixed precision": (functional, {"policy": "mixed_float16"}),
}


def built(case: str) -> Any:
    """A compiled model, with the same random numbers at every call."""
    make, settings = CASES[case]
    usual: dict[str, Any] = {"optimizer": lambda: keras.optimizers.Adam(0.01), "policy": "float32"}
    settings = usual | settings
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(settings.pop("policy"))
    try:
        model = make()
        optimizer = settings.pop("optimizer")()
        loss = "sparse_categorical_crossentropy"
        metrics = None if isinstance(model, OwnStep) else ["accuracy"]
        model.compile(optimizer, loss, metrics=metrics, **{"jit_compile": BACKEND == "jax"} | settings)
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def data_of(samples: int = SAMPLES) -> tuple[Array, Array]:
    """Inputs and labels."""
    numbers = np.random.default_rng(5)
    return numbers.normal(size=(samples, 4)).astype(np.float32), numbers.integers(0, 3, samples)


def train(model: Any, *callbacks: Any, epochs: int = 4, data: Any = None, whole: bool = True) -> Outcome:
    """Train, and evaluate and predict with the callbacks if whole is set."""
    x, y = data or data_of()
    losses = Losses()
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        callbacks=[*callbacks, losses],
        validation_data=(x[:BATCH], y[:BATCH]) if whole else None,
    )
    predictions = model.predict(x, batch_size=BATCH, verbose=0, callbacks=list(callbacks) * whole)
    return Outcome(losses.losses, model.get_weights(), keras.tree.flatten(predictions), history.history)
