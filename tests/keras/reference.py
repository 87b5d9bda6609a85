"""Independent values of one training step: gradients by hand, and outputs of layers through another model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tests.keras.cases import BACKEND

__all__ = ["Before", "gradients_of", "outputs_of"]

Array = npt.NDArray[Any]


class Before(keras.callbacks.Callback):  # type: ignore[misc]  # keras may not be installed
    """Copies of all weights before each batch, by name; of the optimizer's variables on request."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[dict[str, Array]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.weights.append({each.path: np.array(each.numpy()) for each in self.model.weights})


def gradients_of(model: Any, x: Array, y: Array) -> tuple[float, dict[str, Array]]:
    """Loss and gradients of a batch in training mode, for a model whose loss is the compiled one."""
    compute = keras.losses.SparseCategoricalCrossentropy()
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = compute(y, model(x, training=True))
        found = tape.gradient(loss, model.trainable_variables)
        loss, found = float(loss), [np.asarray(tf.convert_to_tensor(each)) for each in found]
    elif BACKEND == "torch":
        model.zero_grad()
        loss = compute(y, model(x, training=True))
        loss.backward()
        found = [np.array(each.value.grad.numpy()) for each in model.trainable_weights]
        loss = float(loss)
    else:
        import jax

        fixed = [each.value for each in model.non_trainable_variables]

        def loss_of(trainable: Any) -> Any:
            scores, _ = model.stateless_call(trainable, fixed, x, training=True)
            return compute(y, scores)

        loss, found = jax.value_and_grad(loss_of)([each.value for each in model.trainable_variables])
        loss, found = float(loss), list(map(np.asarray, found))
    return loss, {each.path: value for each, value in zip(model.trainable_variables, found, strict=True)}


def outputs_of(model: Any, x: Array) -> dict[str, Array]:
    """Outputs of all layers of a functional model in training mode, by name of the layer."""
    named = {each.name: each.output for each in model.layers}
    return {
        name: np.asarray(keras.ops.convert_to_numpy(value))
        for name, value in keras.Model(model.inputs, named)(x, training=True).items()
    }
