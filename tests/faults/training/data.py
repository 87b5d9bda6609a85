"""Data for the trainings, generated from a seed: small, and difficult enough that a fault is visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.faults.training.job import Batch

__all__ = [
    "batches",
    "blobs",
    "curves",
    "graphs",
    "patches",
    "sequences",
    "shapes",
    "split",
    "tables",
    "tokens",
]


def batches(inputs: Any, targets: Any, size: int, generator: torch.Generator) -> Callable[[int], Batch]:
    """Return a function from a step to its batch; rows are drawn again in each epoch.

    inputs: one or more tensors.
    """
    count = len(targets)
    per_epoch = max(1, count // size)
    orders: list[Tensor] = []

    def batch(step: int) -> Batch:
        epoch, place = divmod(step, per_epoch)
        while len(orders) <= epoch:
            orders.append(torch.randperm(count, generator=generator))
        rows = orders[epoch][place * size : (place + 1) * size]
        return _rows(inputs, rows), targets[rows]

    return batch


def split(inputs: Any, targets: Any, held_out: int, size: int) -> tuple[Any, Any, list[Batch]]:
    """Return inputs and targets to train with, and validation batches of the last rows."""
    count = len(targets)
    cut = count - held_out
    rest = [torch.arange(start, min(start + size, count)) for start in range(cut, count, size)]
    return _rows(inputs, slice(cut)), targets[:cut], [(_rows(inputs, rows), targets[rows]) for rows in rest]


def _rows(inputs: Any, rows: Any) -> Any:
    return tuple(one[rows] for one in inputs) if isinstance(inputs, tuple) else inputs[rows]


def blobs(count: int, classes: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points around centers, two for each class; some of the labels are wrong."""
    centers = torch.randn(2 * classes, width, generator=generator) * 1.6
    of = torch.randint(0, 2 * classes, (count,), generator=generator)
    targets = of % classes
    wrong = torch.rand(count, generator=generator) < 0.04
    other = torch.randint(0, classes, (count,), generator=generator)
    points = centers[of] + torch.randn(count, width, generator=generator) * 1.6
    return points, torch.where(wrong, other, targets)


def tables(count: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows of a table and a nonlinear function of them; both are standardised."""
    inputs = torch.randn(count, width, generator=generator)
    mix = torch.randn(width, 3, generator=generator) / width**0.5
    hidden = inputs @ mix
    target = torch.sin(2 * hidden[:, 0]) + hidden[:, 1] * hidden[:, 2] + 0.5 * hidden[:, 0].abs()
    target = target + 0.1 * torch.randn(count, generator=generator)
    return inputs, ((target - target.mean()) / target.std())[:, None]


def curves(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy waves of three frequencies, and their class: shapes (count, length, 1) and (count,)."""
    of = torch.randint(0, 3, (count,), generator=generator)
    phase = torch.rand(count, 1, generator=generator) * 6.28
    time = torch.linspace(0, 1, length)[None]
    wave = torch.sin((3 + 3 * of[:, None]) * time * 2 + phase)
    return (wave + 0.4 * torch.randn(count, length, generator=generator))[..., None], of


def shapes(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy images of one of four patterns (bars, columns, a disc, a corner) at a random place."""
    of = torch.randint(0, 4, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 1, size, size, generator=generator)
    at = torch.randint(1, size - 5, (count, 2), generator=generator)
    for number in range(count):
        row, column = at[number].tolist()
        patch = images[number, 0, row : row + 4, column : column + 4]
        patch += _PATTERNS[int(of[number])]
    return images, of


def patches(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images with bright boxes, and masks of the boxes as floats."""
    masks = torch.zeros(count, 1, size, size)
    at = torch.randint(0, size - 4, (count, 2, 2), generator=generator)
    for number in range(count):
        for row, column in at[number].tolist():
            masks[number, 0, row : row + 4, column : column + 4] = 1.0
    return masks * 1.5 + 0.5 * torch.randn(masks.shape, generator=generator), masks


def sequences(count: int, length: int, words: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return token ids, and whether most of them are from the upper half of the vocabulary."""
    ids = torch.randint(1, words, (count, length), generator=generator)
    tilt = torch.randint(0, 2, (count, 1), generator=generator)
    moved = torch.rand(count, length, generator=generator) < 0.35
    half = words // 2
    upper = half + ids % half
    lower = 1 + ids % (half - 1)
    ids = torch.where(moved, torch.where(tilt == 1, upper, lower), ids)
    return ids, tilt[:, 0]


def tokens(count: int, length: int, words: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return token ids, each determined by the id before it (with noise), and the ids that come next."""
    following = torch.randperm(words, generator=generator)
    ids = torch.randint(0, words, (count, length + 1), generator=generator)
    for at in range(1, length + 1):
        noise = torch.rand(count, generator=generator) < 0.15
        ids[:, at] = torch.where(noise, ids[:, at], following[ids[:, at - 1]])
    return ids[:, :-1], ids[:, 1:]


def graphs(
    count: int, nodes: int, width: int, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return node features with a normalised adjacency matrix, and the kind of each graph: one of two."""
    of = torch.randint(0, 2, (count,), generator=generator)
    likely = torch.where(of == 1, 0.55, 0.2)[:, None, None]
    edges = (torch.rand(count, nodes, nodes, generator=generator) < likely).float()
    edges = torch.triu(edges, 1)
    edges = edges + edges.transpose(1, 2) + torch.eye(nodes)
    features = torch.randn(count, nodes, width, generator=generator) + edges.sum(2, keepdim=True) * 0.3
    return (features, edges / edges.sum(2, keepdim=True)), of


def _pattern(rows: Sequence[Sequence[float]]) -> Tensor:
    return 2.0 * torch.tensor(rows)


_PATTERNS = [
    _pattern([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]),
    _pattern([[1, 0, 1, 0], [1, 0, 1, 0], [1, 0, 1, 0], [1, 0, 1, 0]]),
    _pattern([[0, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]]),
    _pattern([[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]),
]
