"""Plan of the measurements: workloads for a GPU, and the tools, collections and intervals of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.models import Gpt, ResNet50

LEAD_IN = 2  # number of steps before a block that are not counted


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model with its batches. make_batch(generator) -> (input, class ids), on the CPU.

    memory_format: Of weights and inputs; torch.channels_last for images only.
    """

    title: str
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    memory_format: torch.memory_format = torch.preserve_format


def _images(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 3, 64, 64, generator=generator), torch.randint(1000, (16,), generator=generator)


def _sentences(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(8192, (8, 129), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)


def _few_sentences(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(64, (2, 17), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)


WORKLOADS = {
    "resnet50": Workload(title="ResNet-50, 16 images of 64 x 64", make_model=ResNet50, make_batch=_images),
    "resnet50_channels_last": Workload(
        title="ResNet-50 in channels_last, 16 images of 64 x 64",
        make_model=ResNet50,
        make_batch=_images,
        memory_format=torch.channels_last,
    ),
    "transformer": Workload(
        title="GPT-style, 6 layers of 512, 8 x 128 tokens",
        make_model=lambda: Gpt(vocabulary=8192, time=128, width=512, heads=8, depth=6),
        make_batch=_sentences,
    ),
    "tiny": Workload(
        title="GPT-style, 1 layer of 32: no measurement",
        make_model=lambda: Gpt(vocabulary=64, time=16, width=32, heads=2, depth=1),
        make_batch=_few_sentences,
    ),
}

COLLECTIONS = {
    "all": "weights, biases, gradients, inputs, outputs and losses",
    "parameters": "weights, biases, gradients and losses",
    "statistics": "statistics of all, no values",
    "parameter statistics": "statistics of weights, biases, gradients and losses, no values",
}
INCLUDED = {
    "all": ["weights", "biases", "gradients", "inputs", "outputs", "losses"],
    "parameters": ["weights", "biases", "gradients", "losses"],
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One tool at one interval: `pairs` pairs of blocks, with and without saving, of `block` steps each."""

    tool: str
    collection: str
    interval: int
    pairs: int
    block: int

    def __post_init__(self) -> None:
        if self.block % self.interval:
            raise ValueError(f"block must be a multiple of interval, got {self.block} and {self.interval}")

    @property
    def saves(self) -> int:
        """Number of saved steps of a block."""
        return self.block // self.interval

    @property
    def values(self) -> bool:
        """Whether values are saved, and not only statistics."""
        return not self.collection.endswith("statistics")

    def to_json_dict(self) -> dict[str, Any]:
        """Plain values; Cell(**...) is the inverse."""
        return asdict(self)


def cells(mode: str, pairs: int, quick: bool) -> list[Cell]:
    """The cells of one model. A compiled model has no visible activations, so its parameters are saved."""
    everything, statistics = (
        ("parameters", "parameter statistics") if mode == "compiled" else ("all", "statistics")
    )
    found = [Cell(tool="none", collection=everything, interval=10, pairs=pairs, block=20)]
    found += [
        Cell(tool=tool, collection=everything, interval=interval, pairs=pairs, block=max(3, interval))
        for tool in ("tdcore", "cpu", "non_blocking")
        for interval in (1, 10, 50)
        if interval < 50 or tool == "tdcore"
    ]
    found += [
        Cell(tool="tdcore", collection=statistics, interval=interval, pairs=2 * pairs, block=10)
        for interval in (1, 10)
    ]
    return [cell for cell in found if not quick or cell.interval == 10]
