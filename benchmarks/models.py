"""The models that the benchmarks train: plain definitions, the same for every tool that is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut (He et al., Deep Residual Learning, 2016)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        relu: torch.Tensor = self.relu(out + shortcut)
        return relu


class ResNet18(nn.Module):
    """ResNet-18: 11.7 million parameters at 1000 classes; any input of at least 32 x 32."""

    def __init__(self, classes: int = 43) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages: list[nn.Module] = []
        channels_in = 64
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages += [BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1)]
            channels_in = channels
        self.layers = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layers(x))
        out: torch.Tensor = self.fc(torch.flatten(x, 1))
        return out


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut (He et al., as above)."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        relu: torch.Tensor = self.relu(self.bn3(self.conv3(out)) + shortcut)
        return relu


class ResNet50(nn.Module):
    """ResNet-50: 25.6 million parameters at 1000 classes; any input of at least 32 x 32."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels_in = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for block in range(count):
                blocks.append(Bottleneck(channels_in, width, 2 if stage > 0 and block == 0 else 1))
                channels_in = 4 * width
        self.layers = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layers(x))
        out: torch.Tensor = self.fc(torch.flatten(x, 1))
        return out


class Block(nn.Module):
    """Pre-norm attention and a perceptron, as in GPT-2 (Radford et al., 2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        down: torch.Tensor = self.down(self.gelu(self.up(self.norm2(x))))
        return x + down


class Gpt(nn.Module):
    """A small decoder-only language model.

    Maps token ids of shape (batch, time) to logits of shape (batch * time, vocabulary).
    """

    def __init__(
        self, vocabulary: int = 512, time: int = 64, width: int = 256, heads: int = 4, depth: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(time, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        out: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return out.flatten(0, 1)


class LargeLayers(nn.Sequential):
    """A perceptron of few, large layers: the most bytes of weights and gradients per operation."""

    def __init__(self, inputs: int = 1024, width: int = 4096, classes: int = 43) -> None:
        super().__init__(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model with the batches that it is trained on. make_batch(generator) -> (input, class ids), on CPU."""

    title: str
    make_model: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]


def _images(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 3, 32, 32, generator=generator), torch.randint(43, (16,), generator=generator)


def _sentences(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(512, (8, 65), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)


def _vectors(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 1024, generator=generator), torch.randint(43, (32,), generator=generator)


WORKLOADS = {
    "resnet18": Workload(
        title="ResNet-18, 43 classes, 16 images of 32 x 32", make_model=ResNet18, make_batch=_images
    ),
    "gpt": Workload(title="GPT-style, 4 layers of 256, 8 x 64 tokens", make_model=Gpt, make_batch=_sentences),
    "mlp": Workload(
        title="perceptron, layers of 4096, batch of 32", make_model=LargeLayers, make_batch=_vectors
    ),
}
