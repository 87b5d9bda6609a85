"""Trainings on text (the documentation of this project) and on a sequence of numbers."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.healthy.job import Data, Job

__all__ = ["TEXT"]

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_BOOKS = ("crashes.md", "design.md", "reading.md", "s3.md")
_LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
_LENGTH, _WORDS = 32, 12


@cache
def _letters() -> Tensor:
    text = "".join((_DOCS / name).read_text(encoding="utf-8") for name in _BOOKS).lower()
    text = " ".join("".join(letter if letter in _LETTERS else " " for letter in text).split())
    return torch.tensor([_LETTERS.index(letter) for letter in text[:24_000]])


def _next_letter() -> tuple[Data, Data]:
    text = _letters()
    rows = text[: len(text) // _LENGTH * _LENGTH].view(-1, _LENGTH)
    cut = len(rows) * 4 // 5
    parts = (rows[:cut], rows[cut:])
    train, rest = (Data(inputs=part[:, :-1], targets=part[:, 1:]) for part in parts)
    return train, rest


class NextLetter(nn.Module):
    """The cross-entropy over all positions of all sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.CrossEntropyLoss()

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        result: Tensor = self.loss(outputs.flatten(0, 1), targets.flatten())
        return result


class Recurrent(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(_LETTERS), 16)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, len(_LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(x))
        result: Tensor = self.head(states)
        return result


class Transformer(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(_LETTERS), width)
        self.place = nn.Parameter(0.02 * torch.randn(_LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(_LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        result: Tensor = self.head(self.layers(self.embedding(x) + self.place[:length], mask=mask))
        return result


def gru() -> Job:
    model = Recurrent()
    data, held_out = _next_letter()
    return Job(
        model=model,
        loss=NextLetter(),
        optimizer=torch.optim.Adam(model.parameters(), lr=4e-3),
        data=data,
        held_out=held_out,
        epochs=6,
        clip=1.0,
        limit=2.7,
    )


def transformer() -> Job:
    model = Transformer()
    data, held_out = _next_letter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    return Job(
        model=model,
        loss=NextLetter(),
        optimizer=optimizer,
        data=data,
        held_out=held_out,
        epochs=6,
        scheduler=warm_up,
        limit=2.7,
    )


class WordBag(nn.Module):
    """The mean of word embeddings, without the padding (word 0)."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 24, padding_idx=0)
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        counts = (x != 0).sum(1, keepdim=True).clamp(min=1)
        result: Tensor = self.head(self.embedding(x).sum(1) / counts)
        return result


def which_document() -> Job:
    """Return pieces of 6 to 12 words, padded to 12, and the document of each piece."""
    words: dict[str, int] = {}
    rows: list[list[int]] = []
    targets: list[int] = []
    for book, name in enumerate(_BOOKS):
        text = (_DOCS / name).read_text(encoding="utf-8").lower().split()[:1500]
        for start in range(0, len(text) - _WORDS, _WORDS):
            length = 6 + start // _WORDS % 7
            ids = [words.setdefault(word, len(words) + 1) for word in text[start : start + length]]
            rows.append(ids + [0] * (_WORDS - length))
            targets.append(book)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    inputs, wanted = torch.tensor(rows)[order], torch.tensor(targets)[order]
    cut = len(rows) * 4 // 5
    model = WordBag(len(words) + 1, len(_BOOKS))
    return Job(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        data=Data(inputs=inputs[:cut], targets=wanted[:cut]),
        held_out=Data(inputs=inputs[cut:], targets=wanted[cut:]),
        epochs=12,
        classes=True,
        limit=1.3,
    )


class Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        result: Tensor = self.head(states[:, -1])
        return result


def forecast() -> Job:
    """The next value of a sum of two sines with noise."""
    at = torch.arange(2600, dtype=torch.float32)
    noise = 0.05 * torch.randn(2600, generator=torch.Generator().manual_seed(0))
    wave = torch.sin(at * 2 * math.pi / 25) + 0.5 * torch.sin(at * 2 * math.pi / 7) + noise
    rows = wave.unfold(0, 25, 1)
    inputs, targets = rows[:, :-1].unsqueeze(2), rows[:, -1:]
    model = Forecast()
    return Job(
        model=model,
        loss=nn.MSELoss(),
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        data=Data(inputs=inputs[:2000], targets=targets[:2000]),
        held_out=Data(inputs=inputs[2000:], targets=targets[2000:]),
        batch=64,
        epochs=8,
        limit=0.2,
    )


TEXT = {
    "letters, GRU, clipped gradients": gru,
    "letters, transformer, warm-up": transformer,
    "words, padded, which document": which_document,
    "waves, LSTM, forecast": forecast,
}
