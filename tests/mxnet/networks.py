"""Small Gluon networks and their training, with and without a hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn

__all__ = ["NETWORKS", "Training", "batches", "trained"]


class Recurrent(gluon.Block):  # type: ignore[misc]  # mxnet has no annotations
    """An LSTM, and a layer on its last output."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.body = rnn.LSTM(6, layout="NTC")
        self.head = nn.Dense(3)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x.reshape((0, 4, 3)))[:, -1])


class Shared(gluon.HybridBlock):  # type: ignore[misc]
    """A network that calls one of its layers twice."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first = nn.Dense(12, activation="tanh")
        self.last = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803 -- MXNet's name
        return self.last(self.first(self.first(x)))


def _sequential(*layers: Any) -> Any:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


NETWORKS: dict[str, Callable[[], Any]] = {
    "dense": lambda: _sequential(nn.Dense(8, activation="relu"), nn.Dense(3)),
    "convolution": lambda: _sequential(
        nn.HybridLambda(lambda _, x: x.reshape((0, 1, 3, 4))),
        nn.Conv2D(4, 2),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Dropout(0.3),
        nn.Dense(3),
    ),
    "recurrent": Recurrent,
    "shared": Shared,
}


def batches(steps: int, size: int = 8) -> list[tuple[Any, Any]]:
    """Batches of 12 features whose largest third is the class."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(steps):
        x = random.normal(size=(size, 12)).astype(np.float32)
        found.append((nd.array(x), nd.array(x.reshape(size, 3, 4).sum(axis=2).argmax(axis=1))))
    return found


class Training:
    """A network, its loss and its trainer, the same at each call.

    gradients, weights: of the last step, as the training saw them, by parameter name.
    """

    def __init__(
        self, network: str, *, hybrid: bool = False, optimizer: str = "adam", rate: float = 0.05
    ) -> None:
        mx.random.seed(7)
        with mx.name.NameManager():
            self.net = NETWORKS[network]()
            self.criterion = gluon.loss.SoftmaxCrossEntropyLoss()
        self.net.initialize(mx.init.Xavier())
        if hybrid:
            self.net.hybridize()
        self.trainer = gluon.Trainer(self.net.collect_params(), optimizer, {"learning_rate": rate})
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.gradients: dict[str, np.ndarray[Any, Any]] = {}

    def step(self, x: Any, y: Any) -> np.ndarray[Any, Any]:
        """One step. Returns the losses of the samples."""
        with autograd.record():
            loss = self.criterion(self.net(x), y)
        loss.backward()
        parameters = self.net.collect_params().values()
        self.weights = {each.name: each.data().asnumpy() for each in parameters}
        self.gradients = {each.name: each.grad().asnumpy() for each in parameters if each.grad_req != "null"}
        self.trainer.step(len(x))
        return np.asarray(loss.asnumpy())

    def validate(self, x: Any) -> np.ndarray[Any, Any]:
        """A forward in prediction mode."""
        return np.asarray(self.net(x).asnumpy())

    def state(self) -> list[bytes]:
        """The parameters, to the bit."""
        return [each.data().asnumpy().tobytes() for each in self.net.collect_params().values()]


def trained(training: Training, steps: int = 7, every: int = 3) -> list[bytes]:
    """Losses, predictions and final weights of a training with validations in between, to the bit."""
    seen = []
    for step, (x, y) in enumerate(batches(steps)):
        seen.append(training.step(x, y).tobytes())
        if step % every == 0:
            seen.append(training.validate(x).tobytes())
    return seen + training.state()
