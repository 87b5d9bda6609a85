"""Healthy trainings of vectors that are compared, of graphs, and of sets."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.architectures import Mlp, job_of
from tests.faults.training.data import blobs
from tests.faults.training.healthy.parts import Make, Probe, WithoutClass, looped
from tests.faults.training.held_out import Embedder, TwoTowers
from tests.faults.training.job import Job, adam

__all__ = ["METRIC"]


def triplets_by_cosine(generator: torch.Generator, probe: Probe) -> list[float]:
    """A triplet loss of cosines, which reaches 0 for most triplets."""
    points, of = blobs(900, 5, 16, generator)
    model = Embedder()
    distance = lambda one, other: 1 - functional.cosine_similarity(one, other)  # noqa: E731
    loss = nn.TripletMarginWithDistanceLoss(distance_function=distance, margin=0.3)
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    groups, losses = [points[of == kind] for kind in range(5)], []
    for _ in range(180):
        kinds = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(32)])
        drawn = [
            torch.stack([_one(groups[int(kind)], generator) for kind in column])
            for column in (kinds[:, 0], kinds[:, 0], kinds[:, 1])
        ]
        found = loss(*(model(one) for one in drawn))
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


def _one(points: Tensor, generator: torch.Generator) -> Tensor:
    return points[int(torch.randint(0, len(points), (1,), generator=generator))]


class Siamese(nn.Module):
    """The distance of two points, computed by one network for both."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mlp([16, 48, 8])

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        apart: Tensor = self.inner(one) - self.inner(other)
        return apart.square().sum(1, keepdim=True).add(1e-6).sqrt()


def siamese(generator: torch.Generator) -> Job:
    points, of = blobs(1600, 4, 16, generator)
    order = torch.randperm(1600, generator=generator)
    order[::2] = torch.tensor([int((of == kind).nonzero()[0]) for kind in of[::2]])
    same = (of == of[order]).float()[:, None]

    def contrastive(distance: Tensor, alike: Tensor) -> Tensor:
        return (alike * distance.square() + (1 - alike) * (2 - distance).clamp(min=0).square()).mean()

    loss = WithoutClass(contrastive)
    return job_of(Siamese(), loss, (points, points[order]), same, generator, optimizer=adam(2e-3), steps=200)


def two_views(generator: torch.Generator, probe: Probe) -> list[float]:
    """Two noisy views of each point must match each other among all others of the batch."""
    points, _ = blobs(1200, 8, 16, generator)
    model, loss = Embedder(), nn.CrossEntropyLoss()
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(180):
        batch = points[torch.randint(0, 1200, (48,), generator=generator)]
        views = [model(batch + 0.4 * torch.randn(batch.shape, generator=generator)) for _ in range(2)]
        found = loss(views[0] @ views[1].T / 0.2, torch.arange(48))
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


class Pair(nn.Module):
    """Encoders of two kinds of inputs, and a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Mlp([16, 48, 12], nn.GELU), Mlp([10, 48, 12], nn.GELU)
        self.logit_scale = nn.Parameter(torch.tensor(1.6))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        vectors = functional.normalize(self.one(one)), functional.normalize(self.other(other))
        return self.logit_scale.exp() * vectors[0] @ vectors[1].T


def language_and_image(generator: torch.Generator, probe: Probe) -> list[float]:
    """Pairs of two kinds of inputs with a common cause, matched in both directions."""
    hidden = torch.randn(1200, 5, generator=generator)
    sides = [
        (hidden @ torch.randn(5, width, generator=generator)).tanh()
        + 0.1 * torch.randn(1200, width, generator=generator)
        for width in (16, 10)
    ]
    model, loss = Pair(), nn.CrossEntropyLoss()
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.1)
    losses, labels = [], torch.arange(32)
    for _ in range(200):
        rows = torch.randint(0, 1200, (32,), generator=generator)
        scores = model(sides[0][rows], sides[1][rows])
        found = (loss(scores, labels) + loss(scores.T, labels)) / 2
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


def by_itself(generator: torch.Generator, probe: Probe) -> list[float]:
    """A network predicts the output of its moving average for another view; the average gets no gradients."""
    points, _ = blobs(1200, 6, 16, generator)
    online = nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 12))
    predictor = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 12))
    model = nn.ModuleDict({"online": online, "predictor": predictor})
    slow = copy.deepcopy(online).requires_grad_(False)
    probe.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    losses = []
    for _ in range(180):
        batch = points[torch.randint(0, 1200, (64,), generator=generator)]
        one, other = (batch + 0.6 * torch.randn(batch.shape, generator=generator) for _ in range(2))
        with torch.no_grad():
            wanted = slow(other)
        loss = 1 - functional.cosine_similarity(predictor(online(one)), wanted).mean()
        probe.loss("loss", loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for held, now in zip(slow.parameters(), online.parameters(), strict=True):
                held.lerp_(now, 0.02)
        losses.append(float(loss.detach()))
    return losses


def prototypes(generator: torch.Generator, probe: Probe) -> list[float]:
    """Few-shot: each step draws 3 of 12 classes, and predicts the class of the nearest mean of 5 samples."""
    centers = 1.2 * torch.randn(12, 16, generator=generator)
    model, loss = Mlp([16, 48, 12]), nn.CrossEntropyLoss()
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(220):
        drawn = centers[torch.randperm(12, generator=generator)[:3]]
        samples = drawn[:, None] + 1.6 * torch.randn(3, 13, 16, generator=generator)
        vectors = model(samples)
        near = -torch.cdist(vectors[:, 5:].flatten(0, 1), vectors[:, :5].mean(1)).square()
        found = loss(near, torch.arange(3).repeat_interleave(8))
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


class Convolution(nn.Module):
    """Two graph convolutions over the edges of one graph."""

    def __init__(self, edges: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.first, self.drop, self.second = nn.Linear(width, 16), nn.Dropout(0.5), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(functional.relu(self.edges @ self.first(x)))
        result: Tensor = self.edges @ self.second(x)
        return result


def _citations(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return (edges, features, classes) of a graph whose neighbours mostly share a class."""
    of = torch.randint(0, 3, (240,), generator=generator)
    likely = torch.where(of[:, None] == of[None], 0.06, 0.008)
    edges = torch.triu((torch.rand(240, 240, generator=generator) < likely).float(), 1)
    edges = edges + edges.T + torch.eye(240)
    features = functional.one_hot(of, 3).float() @ torch.randn(3, 20, generator=generator)
    return edges, features + 1.5 * torch.randn(240, 20, generator=generator), of


def nodes_of_one_graph(generator: torch.Generator, probe: Probe) -> list[float]:
    """All nodes at each step; a quarter of them has labels."""
    edges, features, of = _citations(generator)
    scale = edges.sum(1).rsqrt()
    model, loss = Convolution(scale[:, None] * edges * scale[None], 20), nn.CrossEntropyLoss()
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    known = torch.rand(240, generator=generator) < 0.25
    losses = []
    for _ in range(160):
        found = loss(model(features)[known], of[known])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses


class GraphAttention(nn.Module):
    """Each node weights its neighbours by a score of both nodes."""

    apart: Tensor

    def __init__(self, edges: Tensor, width: int = 20) -> None:
        super().__init__()
        self.register_buffer("apart", edges == 0)
        self.inner, self.source, self.target = nn.Linear(width, 24), nn.Linear(24, 1), nn.Linear(24, 1)
        self.act, self.head = nn.ELU(), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        scores = functional.leaky_relu(self.source(x) + self.target(x).T, 0.2)
        weights = scores.masked_fill(self.apart, float("-inf")).softmax(1)
        result: Tensor = self.head(self.act(weights @ x))
        return result


def graph_attention(generator: torch.Generator) -> Job:
    edges, features, of = _citations(generator)
    job = job_of(
        GraphAttention(edges),
        nn.CrossEntropyLoss(),
        features,
        of,
        generator,
        optimizer=adam(5e-3),
        steps=120,
        classes=True,
    )
    job.batch, job.held_out = (lambda step: (features, of)), []
    return job


def preferences(generator: torch.Generator, probe: Probe) -> list[float]:
    """Of two items, the item that a user chose must get the larger score."""
    taste, kind = (torch.randn(size, 3, generator=generator) for size in (40, 30))
    model = TwoTowers()
    for table in (model.users, model.items):
        nn.init.normal_(table.weight, std=0.1)
    probe.watch(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(200):
        users = torch.randint(0, 40, (64,), generator=generator)
        items = torch.randint(0, 30, (64, 2), generator=generator)
        liked = torch.einsum("bk,bik->bi", taste[users], kind[items])
        items = items.gather(1, liked.argsort(1, descending=True))
        loss = -functional.logsigmoid(model(users, items[:, 0]) - model(users, items[:, 1])).mean()
        probe.loss("ranking_loss", loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


class Sets(nn.Module):
    """The same network for each member, a sum over members, and another network."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = Mlp([3, 32, 16]), Mlp([16, 32, 1])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.all(self.each(x).mean(1))
        return result


def sets(generator: torch.Generator) -> Job:
    inputs = torch.randn(1600, 10, 3, generator=generator)
    targets = inputs.norm(dim=2).amax(1, keepdim=True) - 2.5
    return job_of(Sets(), nn.HuberLoss(), inputs, targets, generator, optimizer=adam(4e-3), steps=200)


METRIC: Mapping[str, Make] = {
    "triplets by cosine": looped(triplets_by_cosine, gain=0.4),
    "siamese": siamese,
    "two views": looped(two_views, gain=0.3),
    "language and image": looped(language_and_image, gain=0.3),
    "by itself": looped(by_itself, gain=0.3),
    "prototypes": looped(prototypes, gain=0.3),
    "nodes of one graph": looped(nodes_of_one_graph, gain=0.3),
    "graph attention": graph_attention,
    "preferences": looped(preferences, gain=0.2),
    "sets": sets,
}
