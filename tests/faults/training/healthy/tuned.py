"""Healthy fine-tunings of a small pretrained encoder: full, by adapters, by a prompt."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.architectures import job_of
from tests.faults.training.data import sequences
from tests.faults.training.healthy.parts import Make, pretrained, warm_up_and_linear
from tests.faults.training.job import Job, adam

__all__ = ["TUNED"]


class Attention(nn.Module):
    """Self-attention as in BERT: queries, keys and values have separate layers, each with a bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = [
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, length, width)
        result: Tensor = self.output(mixed)
        return result


class Bert(nn.Module):
    """Two layers of an encoder with post-normalisation, and a head on the first word."""

    def __init__(self, words: int = 60, width: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(20, width)
        self.attention = nn.ModuleList(Attention(width, 4) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 64) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(64, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.pooler, self.drop, self.head = (
            nn.Linear(width, width),
            nn.Dropout(0.1),
            nn.Linear(width, classes),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norms[4](self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for at in range(2):
            x = self.norms[2 * at](x + self.attention[at](x))
            x = self.norms[2 * at + 1](x + self.down[at](functional.gelu(self.up[at](x))))
        result: Tensor = self.head(self.drop(torch.tanh(self.pooler(x[:, 0]))))
        return result


def _pretrained_bert(generator: torch.Generator) -> Bert:
    """Return an encoder that was trained on another task with the same words."""
    model = Bert(classes=3)
    ids, tilt = sequences(1200, 16, 60, generator)
    pretrained(model, ids, tilt + (ids[:, 0] > 30), steps=80, rate=3e-3)
    model.head = nn.Linear(32, 2)
    return model


def bert_fine_tuned(generator: torch.Generator) -> Job:
    inputs, targets = sequences(1200, 16, 60, generator)
    optimizer = lambda held: torch.optim.AdamW(held, lr=1e-3, weight_decay=0.01)  # noqa: E731
    rate, loss = warm_up_and_linear(10, 160), nn.CrossEntropyLoss()
    return job_of(
        _pretrained_bert(generator),
        loss,
        inputs,
        targets,
        generator,
        optimizer=optimizer,
        rate=rate,
        clip=1.0,
        steps=160,
        classes=True,
    )


class Adapted(nn.Module):
    """A frozen layer with a low-rank correction that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / rank**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + 2 * x @ self.lora_A.T @ self.lora_B.T
        return result


def low_rank_adapters(generator: torch.Generator) -> Job:
    model = _pretrained_bert(generator).requires_grad_(False)
    for attention in model.attention:
        for name in ("query", "value"):
            setattr(attention, name, Adapted(getattr(attention, name)))
    model.head.requires_grad_(True)
    inputs, targets = sequences(1200, 16, 60, generator)
    loss, rate = nn.CrossEntropyLoss(), warm_up_and_linear(10, 160)
    return job_of(
        model,
        loss,
        inputs,
        targets,
        generator,
        optimizer=adam(5e-3),
        rate=rate,
        steps=160,
        classes=True,
        trained=lambda held: [one for one in held.parameters() if one.requires_grad],
    )


class Prompted(nn.Module):
    """A frozen encoder with trained vectors in front of the words, and a trained head."""

    def __init__(self, body: Bert) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.prompt, self.head = nn.Parameter(0.5 * torch.randn(1, 3, 32)), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.body.words(ids) + self.body.places(torch.arange(ids.shape[1]))
        x = self.body.norms[4](torch.cat([self.prompt.expand(len(ids), -1, -1), x], 1))
        x = self.body.norms[0](x + self.body.attention[0](x))
        result: Tensor = self.head(x.mean(1))
        return result


def prompt(generator: torch.Generator) -> Job:
    model = Prompted(_pretrained_bert(generator))
    inputs, targets = sequences(1200, 16, 60, generator)
    return job_of(
        model,
        nn.CrossEntropyLoss(),
        inputs,
        targets,
        generator,
        optimizer=adam(1e-2),
        steps=140,
        classes=True,
        trained=lambda held: [one for one in held.parameters() if one.requires_grad],
    )


TUNED: Mapping[str, Make] = {
    "BERT, fine-tuned": bert_fine_tuned,
    "low-rank adapters": low_rank_adapters,
    "prompt": prompt,
}
