"""Healthy trainings with other models and data, which run only when rules are finished."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.architectures import Make, Mlp, job_of
from tests.faults.training.data import blobs, curves, graphs, patches, sequences, shapes, tables
from tests.faults.training.job import Job, adam, sgd

__all__ = ["HELD_OUT"]


class Lstm(nn.Module):
    """An embedding, an LSTM, and a head on the mean of its states."""

    def __init__(self, words: int = 60, width: int = 24) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.drop(self.lstm(self.embedding(ids))[0].mean(1)))
        return result


def lstm(generator: torch.Generator) -> Job:
    inputs, targets = sequences(1400, 18, 60, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(
        Lstm(), loss, inputs, targets, generator, optimizer=adam(1e-2), clip=1.0, steps=200, classes=True
    )


class Vit(nn.Module):
    """Patches of an image, an encoder of torch's own layers, and a head on their mean."""

    def __init__(self, classes: int = 4, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=2)
        self.place = nn.Parameter(0.02 * torch.randn(1, 36, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        result: Tensor = self.head(self.norm(self.encoder(x + self.place)).mean(1))
        return result


def vit(generator: torch.Generator) -> Job:
    inputs, targets = shapes(1000, 14, generator)
    optimizer = lambda held: torch.optim.AdamW(held, lr=3e-3, weight_decay=0.01)  # noqa: E731
    loss = nn.CrossEntropyLoss()
    return job_of(Vit(), loss, inputs, targets, generator, optimizer=optimizer, steps=160, classes=True)


class Variational(nn.Module):
    """Returns the reconstruction, and mean and log variance of the code."""

    def __init__(self, width: int = 24, code: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 48), nn.SiLU(), nn.Linear(48, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.SiLU(), nn.Linear(48, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp() * self.training
        return self.decoder(code), mean, spread


class Evidence(nn.Module):
    """Squared error of the reconstruction plus the divergence of the code.

    weight: weight of the divergence.
    """

    def __init__(self, weight: float = 0.02) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        reconstruction, mean, spread = outputs
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return functional.mse_loss(reconstruction, targets) + self.weight * divergence


def vae(generator: torch.Generator) -> Job:
    inputs, _ = blobs(1600, 6, 24, generator)
    return job_of(Variational(), Evidence(), inputs, inputs.clone(), generator, optimizer=adam(3e-3))


class UNet(nn.Module):
    """A U-Net with one level and a skip connection."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down, self.act1 = nn.Conv2d(1, width, 3, padding=1), nn.ReLU()
        self.middle, self.act2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU()
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join, self.act3 = nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU()
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.act1(self.down(x))
        low = self.up(self.act2(self.middle(high)))
        result: Tensor = self.head(self.act3(self.join(torch.cat([high, low], 1))))
        return result


def segmentation(generator: torch.Generator) -> Job:
    inputs, targets = patches(500, 16, generator)
    loss = nn.BCEWithLogitsLoss()
    return job_of(UNet(), loss, inputs, targets, generator, optimizer=adam(3e-3), size=16, steps=160)


class Triplet(nn.Module):
    """The triplet loss of the vectors of an anchor, a sample of its class, and a sample of another class."""

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, vectors: Tensor, targets: Tensor) -> Tensor:
        anchor, near, far = vectors.unbind(1)
        return functional.triplet_margin_loss(anchor, near, far, margin=self.margin)


class Embedder(nn.Module):
    """Returns vectors of length one."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = Mlp([width, 48, 48, 12])

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.inner(x), dim=-1)


def triplets(generator: torch.Generator) -> Job:
    points, of = blobs(900, 6, 16, generator)
    order = torch.randperm(len(points), generator=generator)
    near = torch.stack([order[of[order] == kind][0] for kind in of.tolist()])
    far = torch.stack([order[of[order] != kind][0] for kind in of.tolist()])
    inputs = torch.stack([points, points[near], points[far]], 1)
    return job_of(Embedder(), Triplet(), inputs, of, generator, optimizer=adam(2e-3), steps=160)


class GraphNet(nn.Module):
    """Two layers of message passing by a given matrix."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 32), nn.Linear(32, 32)
        self.act, self.head = nn.ReLU(), nn.Linear(32, 2)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        x = self.act(self.first(edges @ features))
        result: Tensor = self.head(self.act(self.second(edges @ x)).mean(1))
        return result


def graph(generator: torch.Generator) -> Job:
    inputs, targets = graphs(1000, 10, 8, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(GraphNet(), loss, inputs, targets, generator, optimizer=adam(5e-3), classes=True)


class Mixer(nn.Module):
    """A curve cut into pieces, mixed alternately over pieces and over values."""

    def __init__(self, pieces: int = 6, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.over_pieces, self.over_numbers = nn.Linear(pieces, pieces), nn.Linear(width, 24)
        self.norm, self.act, self.head = nn.LayerNorm(width), nn.GELU(), nn.Linear(24 * pieces, classes)
        self.pieces, self.width = pieces, width

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), self.pieces, self.width)
        x = x + self.over_pieces(self.norm(x).transpose(1, 2)).transpose(1, 2)
        result: Tensor = self.head(self.act(self.over_numbers(x)).flatten(1))
        return result


def mixer(generator: torch.Generator) -> Job:
    inputs, targets = curves(1200, 24, generator)
    loss = nn.CrossEntropyLoss(label_smoothing=0.05)
    return job_of(Mixer(), loss, inputs, targets, generator, optimizer=adam(3e-3), steps=280, classes=True)


class TwoTowers(nn.Module):
    """The score of a user and an item: the product of their vectors."""

    def __init__(self, users: int = 40, items: int = 30, width: int = 8) -> None:
        super().__init__()
        self.users, self.items, self.bias = (
            nn.Embedding(users, width),
            nn.Embedding(items, width),
            nn.Embedding(items, 1),
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        result: Tensor = (self.users(users) * self.items(items)).sum(1, keepdim=True) + self.bias(items)
        return result


def recommender(generator: torch.Generator) -> Job:
    users = torch.randint(0, 40, (3000,), generator=generator)
    items = torch.randint(0, 30, (3000,), generator=generator)
    taste, kind = (torch.randn(size, 3, generator=generator) for size in (40, 30))
    targets = (taste[users] * kind[items]).sum(1, keepdim=True) + 0.1 * torch.randn(
        3000, 1, generator=generator
    )
    model = TwoTowers()
    for table in (model.users, model.items):
        nn.init.normal_(table.weight, std=0.3)
    optimizer = adam(2e-2)
    return job_of(model, nn.HuberLoss(), (users, items), targets, generator, optimizer=optimizer, size=64)


class Forecaster(nn.Module):
    """Convolutions over time that predict the next value of the curve."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv1d(1, width, 5), nn.ELU()
        self.conv2, self.act2 = nn.Conv1d(width, width, 5, dilation=2), nn.ELU()
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.conv2(self.act1(self.conv1(x.transpose(1, 2)))))
        result: Tensor = self.head(x.mean(2))
        return result


def forecast(generator: torch.Generator) -> Job:
    inputs, of = curves(1200, 24, generator)
    targets = inputs.std(1) * (1.0 + of[:, None]) - 1.5
    return job_of(Forecaster(), nn.L1Loss(), inputs, targets, generator, optimizer=adam(5e-3), steps=200)


def tabular(generator: torch.Generator) -> Job:
    inputs, targets = tables(1600, 20, generator)
    quarter = torch.bucketize(targets[:, 0], torch.tensor([-0.7, 0.0, 0.7]))
    model = Mlp([20, 80, 40, 4], nn.SELU)
    loss = nn.CrossEntropyLoss()
    optimizer = sgd(0.1, momentum=0.9, nesterov=True)
    return job_of(model, loss, inputs, quarter, generator, optimizer=optimizer, steps=320, classes=True)


HELD_OUT: Mapping[str, Make] = {
    "lstm": lstm,
    "vit": vit,
    "vae": vae,
    "segmentation": segmentation,
    "triplets": triplets,
    "graph": graph,
    "mixer": mixer,
    "recommender": recommender,
    "forecast": forecast,
    "tabular": tabular,
}
