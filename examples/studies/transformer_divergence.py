"""Find the first bad tensor of a transformer that diverges, and train the repaired model.

    python examples/studies/transformer_divergence.py runs/transformer_divergence

The transformer computes attention scores in float16, whose largest number is 65,504. Nothing bounds the
inputs of its blocks, so products of queries and keys grow until they overflow. Some steps later the loss is
NaN. The repaired model normalises these inputs, and trains with the same learning rate.
docs/studies/transformer-divergence.md explains the study.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

import torch
from torch import nn

import tdcore as td
from tdcore.analysis import divergence
from tdcore.hooks.pytorch import Hook
from tdcore.rules import run

WIDTH, HEADS, TOKENS, BATCH, STEPS = 64, 4, 48, 16, 120

# The text: docstrings of Python's own module argparse, character by character.
TEXT = "\n".join(
    inspect.getdoc(each) or "" for each in (argparse, *(vars(argparse)[name] for name in argparse.__all__))
).encode("ascii", "replace")


class Attention(nn.Module):
    """Causal self-attention with scores in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scores = nn.Identity()  # a module, so that the hook captures the scores
        self.weights = nn.Softmax(dim=-1)
        self.future = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend to earlier tokens."""
        query, key, value = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = self.scores(query.half() @ key.half().transpose(2, 3)) / query.shape[-1] ** 0.5
        weights = self.weights(scores.masked_fill(self.future, -torch.inf)).float()
        mixed: torch.Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """Attention and an MLP, each added to its input. normalised: their inputs are normalised."""

    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm1 = nn.LayerNorm(WIDTH) if normalised else nn.Identity()
        self.norm2 = nn.LayerNorm(WIDTH) if normalised else nn.Identity()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the MLP."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(Block(normalised), Block(normalised))
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores of the next character at each place."""
        scores: torch.Tensor = self.head(self.blocks(self.characters(text) + self.places.weight))
        return scores


def train(folder: Path, normalised: bool) -> None:
    """Train as long as the loss is finite, and print the loss of the last steps."""
    torch.manual_seed(0)
    text = torch.frombuffer(bytearray(TEXT), dtype=torch.uint8).long()
    model, criterion = Transformer(normalised), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    hook = Hook(
        folder,
        save_config=td.SaveConfig(save_interval=1, end_step=60),
        include_collections=["weights", "gradients", "outputs", "losses"],
        reduction_config=td.ReductionConfig(),
    )
    with hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(STEPS):
            begin = torch.randint(0, len(text) - TOKENS, (BATCH, 1))
            window = text[begin + torch.arange(TOKENS + 1)]
            loss = criterion(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if not loss.isfinite():
                break
    print(f"{folder.name}: {len(losses)} steps, loss {sum(losses[-10:]) / 10:.2f}")


def main(folder: Path) -> None:
    """Train both models, judge the runs, and draw them."""
    for name, normalised in (("faulty", False), ("repaired", True)):
        train(folder / name, normalised)
        trial = td.create_trial(folder / name)
        report = run(folder / name, ["first_non_finite"])
        print(f"  {report.verdicts[0].rule}: {report.verdicts[0].text}")
        for finding in report.findings:
            print(f"    {finding.tensor}: {finding.why}")
            print(f"    do: {finding.do}")
        for bad in divergence.chain_of_bad_tensors(trial)[:6]:
            print(f"    {bad.text}")
        picture = trial.plot.layers("_output_0$", statistic="abs_max")
        picture.savefig(folder / f"transformer_divergence_{name}.png", dpi=75)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/transformer_divergence"))
