"""Healthy trainings on sequences of words."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.faults.training.architectures import BagOfWords, LanguageModel, job_of
from tests.faults.training.data import curves, sequences, tokens
from tests.faults.training.healthy.parts import (
    Make,
    Probe,
    looped,
    warm_up_and_cosine,
)
from tests.faults.training.job import Job, adam, sgd

__all__ = ["TEXT"]

_IGNORED = -100


class TiedLstm(nn.Module):
    """Predicts the next word; the embedding is also the weight of the head."""

    def __init__(self, words: int = 24, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, words)
        self.head.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.drop(self.lstm(self.embedding(ids))[0])).transpose(1, 2)
        return result


def tied_lstm(generator: torch.Generator) -> Job:
    inputs, targets = tokens(1200, 12, 24, generator)
    loss = nn.CrossEntropyLoss()
    return job_of(TiedLstm(), loss, inputs, targets, generator, optimizer=adam(1e-2), clip=1.0, steps=200)


class TiedTransformer(LanguageModel):
    """A causal transformer whose embedding is also the weight of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight
        for table in (self.embedding, self.place):
            nn.init.normal_(table.weight, std=0.02)


def tied_transformer(generator: torch.Generator) -> Job:
    inputs, targets = tokens(1200, 16, 24, generator)
    optimizer = lambda held: torch.optim.AdamW(held, lr=6e-3, betas=(0.9, 0.95), weight_decay=0.1)  # noqa: E731
    loss, rate = nn.CrossEntropyLoss(), warm_up_and_cosine(15, 180)
    return job_of(
        TiedTransformer(),
        loss,
        inputs,
        targets,
        generator,
        optimizer=optimizer,
        rate=rate,
        clip=1.0,
        steps=180,
    )


class Translator(nn.Module):
    """One GRU reads; another GRU writes, and gets the correct previous word in each step."""

    def __init__(self, words: int = 16, width: int = 48) -> None:
        super().__init__()
        self.read, self.written = nn.Embedding(words, width), nn.Embedding(words + 1, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(2 * width, words)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        states, last = self.encoder(self.read(source))
        answers = self.decoder(self.written(before), last)[0]
        context = (answers @ states.transpose(1, 2)).softmax(-1) @ states
        result: Tensor = self.head(torch.cat([answers, context], -1)).transpose(1, 2)
        return result


def translator(generator: torch.Generator) -> Job:
    source = torch.randint(0, 16, (1600, 6), generator=generator)
    targets = (source + 3) % 16
    before = torch.cat([torch.full((1600, 1), 16), targets[:, :-1]], 1)
    loss = nn.CrossEntropyLoss()
    return job_of(
        Translator(), loss, (source, before), targets, generator, optimizer=adam(5e-3), clip=1.0, steps=180
    )


def bag_adagrad(generator: torch.Generator) -> Job:
    inputs, targets = sequences(1600, 20, 60, generator)
    optimizer = lambda held: torch.optim.Adagrad(held, lr=0.05)  # noqa: E731
    loss = nn.CrossEntropyLoss()
    return job_of(BagOfWords(), loss, inputs, targets, generator, optimizer=optimizer, classes=True)


class SkipGram(nn.Module):
    """Predicts neighbouring words from the products of word vectors."""

    def __init__(self, words: int = 40, width: int = 16) -> None:
        super().__init__()
        self.words, self.contexts = nn.Embedding(words, width), nn.Embedding(words, width)
        nn.init.zeros_(self.contexts.weight)

    def forward(self, word: Tensor, others: Tensor) -> Tensor:
        result: Tensor = (self.contexts(others) @ self.words(word)[..., None])[..., 0]
        return result


def skip_gram(generator: torch.Generator) -> Job:
    word = torch.randint(0, 40, (3000,), generator=generator)
    near = (word // 8) * 8 + torch.randint(0, 8, (3000,), generator=generator)
    others = torch.cat([near[:, None], torch.randint(0, 40, (3000, 4), generator=generator)], 1)
    targets = torch.zeros(3000, 5)
    targets[:, 0] = 1.0
    loss = nn.BCEWithLogitsLoss()
    return job_of(
        SkipGram(), loss, (word, others), targets, generator, optimizer=adam(3e-2), size=64, gain=0.15
    )


class Recurrent(nn.Module):
    """A plain tanh RNN with a head on its last state."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(1, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.rnn(x)[0].mean(1))
        return result


def rnn_rmsprop(generator: torch.Generator) -> Job:
    inputs, targets = curves(1000, 24, generator)
    optimizer = lambda held: torch.optim.RMSprop(held, lr=3e-3)  # noqa: E731
    loss = nn.CrossEntropyLoss()
    return job_of(
        Recurrent(), loss, inputs, targets, generator, optimizer=optimizer, clip=1.0, steps=220, classes=True
    )


class Tagger(nn.Module):
    """A tag for each word, from a bidirectional LSTM."""

    def __init__(self, words: int = 30, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(ids), lengths, True, False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], True, total_length=ids.shape[1])
        result: Tensor = self.head(states).transpose(1, 2)
        return result


def tagger(generator: torch.Generator) -> Job:
    ids = torch.randint(1, 30, (1200, 12), generator=generator)
    tags = (ids % 3 + torch.roll(ids, 1, 1) % 2) % 3
    tags[:, 0] = ids[:, 0] % 3
    lengths = torch.randint(7, 13, (1200, 1), generator=generator)
    after = torch.arange(12)[None] >= lengths
    ids, tags = ids.masked_fill(after, 0), tags.masked_fill(after, _IGNORED)
    loss = nn.CrossEntropyLoss(ignore_index=_IGNORED)
    return job_of(Tagger(), loss, ids, tags, generator, optimizer=adam(1e-2), steps=180)


class Masked(nn.Module):
    """Predicts masked words from the words on both sides."""

    def __init__(self, words: int = 25, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(words, width), nn.Embedding(12, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.encoder(self.embedding(ids) + self.place(torch.arange(ids.shape[1])))
        result: Tensor = self.head(x).transpose(1, 2)
        return result


def masked_words(generator: torch.Generator) -> Job:
    words, _ = tokens(1600, 12, 24, generator)
    hidden = torch.rand(words.shape, generator=generator) < 0.2
    loss = nn.CrossEntropyLoss(ignore_index=_IGNORED)
    optimizer, rate = adam(5e-3), warm_up_and_cosine(20, 260)
    return job_of(
        Masked(),
        loss,
        words.masked_fill(hidden, 24),
        words.masked_fill(~hidden, _IGNORED),
        generator,
        optimizer=optimizer,
        rate=rate,
        steps=260,
    )


class TextCnn(nn.Module):
    """Convolutions of three widths over words, max pooling over time, and dropout."""

    def __init__(self, words: int = 60, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 16, size) for size in (2, 3, 4))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(48, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).transpose(1, 2)
        found = torch.cat([functional.relu(conv(x)).mean(2) for conv in self.convs], 1)
        result: Tensor = self.head(self.drop(found))
        return result


def text_cnn_adadelta(generator: torch.Generator) -> Job:
    inputs, targets = sequences(1600, 20, 60, generator)
    optimizer = lambda held: torch.optim.Adadelta(held, lr=1.0)  # noqa: E731
    loss = nn.CrossEntropyLoss()
    return job_of(TextCnn(), loss, inputs, targets, generator, optimizer=optimizer, classes=True)


def letters_sgd(generator: torch.Generator) -> Job:
    """Plain SGD with a large learning rate, as is usual for recurrent models, lowered twice."""
    inputs, targets = tokens(1200, 12, 24, generator)
    rate = lambda step: 1.0 if step < 160 else 0.5 if step < 220 else 0.25  # noqa: E731
    loss = nn.CrossEntropyLoss()
    return job_of(
        TiedLstm(), loss, inputs, targets, generator, optimizer=sgd(4.0), rate=rate, clip=0.5, steps=260
    )


def longer_and_longer(generator: torch.Generator, probe: Probe) -> list[float]:
    """A curriculum: sequences of 4 words first, of 16 at the end."""
    inputs, targets = tokens(1200, 16, 24, generator)
    model, loss = LanguageModel(), nn.CrossEntropyLoss()
    probe.watch(model, losses=(loss,))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    whole, measures = torch.full((16, 16), float("-inf")).triu(1), []
    for step in range(180):
        length = 4 + 4 * (step // 45)
        model.mask = whole[:length, :length]
        rows = torch.randint(0, 1200, (32,), generator=generator)
        found = loss(model(inputs[rows, :length]), targets[rows, :length])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        measures.append(float(found.detach()))
    return measures


TEXT: Mapping[str, Make] = {
    "tied LSTM": tied_lstm,
    "tied transformer": tied_transformer,
    "translator": translator,
    "bag of words, Adagrad": bag_adagrad,
    "skip-gram": skip_gram,
    "RNN, RMSprop": rnn_rmsprop,
    "tagger": tagger,
    "masked words": masked_words,
    "text CNN, Adadelta": text_cnn_adadelta,
    "letters, SGD": letters_sgd,
    "longer and longer": looped(longer_and_longer, gain=0.3),
}
