"""Healthy trainings for the development of rules. Each function makes a Job from a random generator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.data import batches, blobs, curves, sequences, shapes, split, tables, tokens
from tests.faults.training.job import Job, adam, sgd

__all__ = ["DEVELOP", "Make", "job_of"]

Make = Callable[[torch.Generator], Job]


def job_of(
    model: nn.Module, loss: nn.Module, inputs: Any, targets: Any, generator: torch.Generator, **options: Any
) -> Job:
    """Return a job on these data, with the last fifth held out.

    options: options of Job, and the batch size.
    """
    size = options.pop("size", 32)
    trained, wanted, held_out = split(inputs, targets, len(targets) // 5, 64)
    batch = batches(trained, wanted, size, generator)
    return Job(model=model, loss=loss, batch=batch, held_out=held_out[:2], **options)


class Mlp(nn.Module):
    """Linear layers with activations between them; all layers are modules."""

    def __init__(self, widths: list[int], activation: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for at, (before, after) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Linear(before, after)] + ([activation()] if at < len(widths) - 2 else [])
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def mlp(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 5, 20, generator)
    model = Mlp([20, 64, 64, 5])
    loss = nn.CrossEntropyLoss()
    return job_of(model, loss, inputs, targets, generator, optimizer=adam(2e-3), classes=True)


def regression(generator: torch.Generator) -> Job:
    inputs, targets = tables(1600, 12, generator)
    return job_of(Mlp([12, 64, 64, 1]), nn.MSELoss(), inputs, targets, generator, optimizer=adam(2e-3))


def deep_tanh(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 4, 16, generator)
    model = Mlp([16, 48, 48, 48, 48, 48, 4], nn.Tanh)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain("tanh"))
    loss = nn.CrossEntropyLoss()
    return job_of(model, loss, inputs, targets, generator, optimizer=sgd(0.05, momentum=0.9), classes=True)


class Convolutions(nn.Module):
    """Three convolutions with batch normalisation, and a linear head."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv1, self.norm1, self.relu1 = nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()
        self.conv2, self.norm2, self.relu2 = nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()
        self.conv3, self.relu3 = nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()
        self.pool, self.drop, self.head = nn.MaxPool2d(2), nn.Dropout(0.1), nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu1(self.norm1(self.conv1(x))))
        x = self.pool(self.relu2(self.norm2(self.conv2(x))))
        x = self.relu3(self.conv3(x)).amax((2, 3))
        result: Tensor = self.head(self.drop(x))
        return result


def cnn(generator: torch.Generator) -> Job:
    inputs, targets = shapes(1000, 14, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(
        Convolutions(), loss, inputs, targets, generator, optimizer=adam(2e-3), steps=160, classes=True
    )


class Residual(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(inner)))


class ResNet(nn.Module):
    """A stem, three residual blocks, a head; activations are functions."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Residual(16), Residual(16), Residual(16))
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.stem(x)))
        result: Tensor = self.head(x.amax((2, 3)))
        return result


def resnet(generator: torch.Generator) -> Job:
    inputs, targets = shapes(1000, 14, generator)
    loss = nn.CrossEntropyLoss()
    optimizer = sgd(0.03, momentum=0.9, weight_decay=1e-4)
    return job_of(ResNet(), loss, inputs, targets, generator, optimizer=optimizer, steps=160, classes=True)


class Gru(nn.Module):
    """A GRU over a curve, and a head on its last state."""

    def __init__(self, width: int = 32, classes: int = 3) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.gru(x)[0].mean(1))
        return result


def gru(generator: torch.Generator) -> Job:
    inputs, targets = curves(1000, 24, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(
        Gru(), loss, inputs, targets, generator, optimizer=adam(1e-2), clip=1.0, steps=200, classes=True
    )


class Layer(nn.Module):
    """A transformer layer with pre-normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down, self.act = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.GELU()

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        result: Tensor = x + self.down(self.act(self.up(self.norm2(x))))
        return result


class LanguageModel(nn.Module):
    """A causal transformer of two layers."""

    def __init__(self, words: int = 24, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, 4), Layer(width, 4)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, self.mask)
        result: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return result


def transformer(generator: torch.Generator) -> Job:
    inputs, targets = tokens(1200, 16, 24, generator)
    rate = lambda step: min(1.0, (step + 1) / 20)  # noqa: E731
    loss = nn.CrossEntropyLoss()
    return job_of(
        LanguageModel(), loss, inputs, targets, generator, optimizer=adam(3e-3), rate=rate, steps=200
    )


class BagOfWords(nn.Module):
    """The mean of word vectors, and a head."""

    def __init__(self, words: int = 60, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="mean")
        self.hidden, self.relu, self.head = nn.Linear(width, 24), nn.ReLU(), nn.Linear(24, 2)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.relu(self.hidden(self.embedding(ids))))
        return result


def bag(generator: torch.Generator) -> Job:
    inputs, targets = sequences(1600, 20, 60, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(BagOfWords(), loss, inputs, targets, generator, optimizer=adam(3e-3), classes=True)


class AutoEncoder(nn.Module):
    """An autoencoder with a code of a few numbers."""

    def __init__(self, width: int = 24, code: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, code))
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.ReLU(), nn.Linear(48, width))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.decoder(self.encoder(x))
        return result


def autoencoder(generator: torch.Generator) -> Job:
    inputs, _ = blobs(1600, 6, 24, generator)
    return job_of(AutoEncoder(), nn.MSELoss(), inputs, inputs.clone(), generator, optimizer=adam(3e-3))


class Binary(nn.Module):
    """A classifier of two classes with one logit."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.hidden1, self.act1 = nn.Linear(width, 40), nn.LeakyReLU(0.1)
        self.hidden2, self.act2, self.head = nn.Linear(40, 40), nn.LeakyReLU(0.1), nn.Linear(40, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.act2(self.hidden2(self.act1(self.hidden1(x)))))
        return result


def binary(generator: torch.Generator) -> Job:
    inputs, targets = blobs(1600, 2, 16, generator)
    wanted = targets[:, None].float()
    return job_of(
        Binary(), nn.BCEWithLogitsLoss(), inputs, wanted, generator, optimizer=sgd(0.1, momentum=0.9)
    )


DEVELOP: Mapping[str, Make] = {
    "mlp": mlp,
    "regression": regression,
    "deep_tanh": deep_tanh,
    "cnn": cnn,
    "resnet": resnet,
    "gru": gru,
    "transformer": transformer,
    "bag": bag,
    "autoencoder": autoencoder,
    "binary": binary,
}
