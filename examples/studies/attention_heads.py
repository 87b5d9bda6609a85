"""Look at the heads of a small transformer: find the missing mask, and the heads that are redundant.

    python examples/studies/attention_heads.py runs/attention_heads

The loss of the first model is far too good. The picture of its heads shows the reason:
scaled_dot_product_attention was called without is_causal=True, so each character can see the next one, which
the model has to predict. In the repaired model, heads that look at the same tokens are switched off.
docs/studies/attention-heads.md explains the study.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

import tdcore as td
from tdcore.analysis import attention
from tdcore.hooks.pytorch import Hook

WIDTH, HEADS, TOKENS, BATCH = 64, 4, 48, 16
LIMIT = 0.35  # bits: heads that are nearer than this count as alike

# The text: docstrings of Python's own module argparse, character by character.
TEXT = "\n".join(
    inspect.getdoc(each) or "" for each in (argparse, *(vars(argparse)[name] for name in argparse.__all__))
).encode("ascii", "replace")


class Attention(nn.Module):
    """Self-attention. The hook captures the weights as the output of the module `weights`."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.weights = nn.Identity()
        self.kept = torch.ones(HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend; in eval mode, also compute the weights."""
        query, key, value = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attend = functional.scaled_dot_product_attention
        mixed = attend(query, key, value, is_causal=self.causal)
        if not self.training:
            ones = torch.eye(x.shape[1]).expand(*key.shape[:3], -1)
            self.weights(attend(query, key, ones, is_causal=self.causal))
        mixed = mixed * self.kept[:, None, None]
        joined: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined


class Block(nn.Module):
    """Attention and an MLP, each with its own normalisation and added to its input."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(causal)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the MLP."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(Block(causal), Block(causal))
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores of the next character at each place."""
        scores: torch.Tensor = self.head(self.blocks(self.characters(text) + self.places.weight))
        return scores

    def switch(self, heads: Sequence[tuple[int, int]], factor: float) -> None:
        """Multiply the outputs of heads by a factor. heads: pairs of block and head."""
        parts = [part for part in self.modules() if isinstance(part, Attention)]
        for block, head in heads:
            parts[block].kept[head] = factor


def windows(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random pieces of the text, and their next characters."""
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    begin = torch.randint(0, len(text) - TOKENS, (samples, 1))
    window = text[begin + torch.arange(TOKENS + 1)]
    return window[:, :-1], window[:, 1:]


def train(model: Transformer, steps: int) -> None:
    """Train for some steps. Nothing is recorded."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        text, following = windows(BATCH)
        loss = functional.cross_entropy(model(text).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def record(model: Transformer, folder: Path) -> None:
    """Record the weights of attention in one evaluation."""
    with Hook(
        folder, save_config=td.SaveConfig(save_interval=1), include_regex=["weights_output_0$"]
    ) as hook:
        hook.register_module(model)
        print(f"{folder.name}: loss {loss_of(model):.2f}")


def loss_of(model: Transformer, without: Sequence[tuple[int, int]] = ()) -> float:
    """Loss in eval mode, on the same pieces of the text at each call."""
    torch.manual_seed(1)
    text, following = windows(64)
    model.switch(without, 0)
    with torch.no_grad():
        scores = model.eval()(text)
    model.switch(without, 1)
    model.train()
    return functional.cross_entropy(scores.flatten(0, 1), following.flatten()).item()


def heads_of(folder: Path, block: int) -> Any:
    """Weights of the recorded evaluation: samples, heads, queries, keys."""
    tensor = td.create_trial(folder).tensor(f"blocks.{block}.attention.weights_output_0")
    return tensor.value(0, td.modes.EVAL)


def draw(folders: list[Path], picture: Path) -> None:
    """Draw the heads of the first block over the first tokens of one sample, a row for each run."""
    torch.manual_seed(1)
    tokens = [chr(code).strip() or "·" for code in windows(64)[0][0, :16].tolist()]
    figure = Figure(figsize=(9, 5), layout="constrained")
    for row, (folder, parts) in enumerate(zip(folders, figure.subplots(len(folders), HEADS), strict=True)):
        for head, axes in enumerate(parts):
            axes.imshow(heads_of(folder, 0)[0, head, :16, :16], cmap="magma_r", vmin=0, vmax=1)
            axes.set_title(f"{folder.name}, head {head}", fontsize="small")
            axes.set_xticks(range(16), tokens, fontsize=8, parse_math=False)
            axes.set_yticks(range(16), tokens, fontsize=8, parse_math=False)
            axes.set_xlabel("looks at" if row else "")
        parts[0].set_ylabel("character")
    figure.savefig(picture, dpi=90)


def main(folder: Path) -> None:
    """Train both models, describe their heads, and switch off the redundant heads of the repaired model."""
    for name, causal, steps in (("faulty", False, 150), ("repaired", True, 300)):
        torch.manual_seed(0)
        model = Transformer(causal)
        train(model, steps)
        record(model, folder / name)
        for block in range(2):
            for head in attention.describe_heads(heads_of(folder / name, block)):
                print(
                    f"  block {block} head {head.head}: future {head.future:.2f}, "
                    f"previous {head.previous:.2f}, entropy {head.entropy:.1f} bits"
                )
    draw([folder / "faulty", folder / "repaired"], folder / "attention_heads.png")

    before = loss_of(model)
    costs = {place: loss_of(model, without=[place]) - before for place in product(range(2), range(HEADS))}
    redundant = []
    for block in range(2):
        distances = attention.head_distances(heads_of(folder / "repaired", block))
        for twins in attention.redundant_heads(distances, LIMIT):
            redundant.append((block, twins.head))
            print(f"  block {block} head {twins.head} is like head {twins.twin}: {twins.distance:.2f} bits")
    if not redundant:
        print("  no head is redundant")
        return
    cost = sum(costs.pop(place) for place in redundant) / len(redundant)
    others = sum(costs.values()) / len(costs)
    print(f"  the loss rises by {cost:.3f} without one redundant head, by {others:.3f} without another head")
    smaller = deepcopy(model)
    smaller.switch(redundant, 0)
    for each in (model, smaller):
        train(each, 60)
    print(f"  after 60 more steps: loss {loss_of(model):.2f}; {loss_of(smaller):.2f} without redundant heads")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/attention_heads"))
