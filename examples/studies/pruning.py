"""Prune the filters of a network round by round, until a rule finds that the accuracy is too low.

    python examples/studies/pruning.py runs/pruning

The filters are ranked by captured weights and gradients. The first pruning does not retrain the network, and
the rule stops it early. The second pruning retrains the network in each round. The page
docs/studies/pruning.md explains the study.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tdcore as td
from tdcore.analysis import pruning
from tdcore.hooks.pytorch import Hook
from tdcore.plot.xy_curves import xy_curves
from tdcore.rules import Finding, Need, Window, run

LIMIT = 0.9  # lowest accuracy
ROUNDS, FILTERS = 5, 6  # number of rounds, and number of filters that each round removes
KINDS = ["weights", "gradients"]
LAYERS = ["Net_conv1.weight", "Net_conv2.weight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyBelow:
    """The accuracy that the script saved is below a limit."""

    code: ClassVar[str] = "OUR002"
    limit: float

    def needs(self) -> Need:
        """The scalar."""
        return Need(what="the scalar `accuracy`: hook.save_scalar('accuracy', value)", kinds=("scalar",))

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per saved accuracy below the limit."""
        rows = np.flatnonzero(window.columns.where("name", "scalar/accuracy".__eq__) & window.ok)
        window.judged(len(rows))
        values = window.columns.floats("mean")
        for row in rows[values[rows] < self.limit].tolist():
            numbers = {"accuracy": float(values[row]), "limit": self.limit}
            why = f"the accuracy is {values[row]:.3f}, below {self.limit:g}"
            yield window.finding(self, row, numbers=numbers, why=why, do="use the network before it")


class Net(nn.Module):
    """Two convolutional layers with any number of filters."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, first, 3, padding=1), nn.Conv2d(first, second, 3, padding=1)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(second * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the digits."""
        x = self.pool(self.conv1(x).relu())
        scores: Tensor = self.fc(self.pool(self.conv2(x).relu()).flatten(1))
        return scores

    def shrunk(self, first: Tensor, second: Tensor) -> Net:
        """A smaller network with these filters of the two layers."""
        old, new = self.state_dict(), Net(len(first), len(second))
        new.load_state_dict(
            {
                "conv1.weight": old["conv1.weight"][first],
                "conv1.bias": old["conv1.bias"][first],
                "conv2.weight": old["conv2.weight"][second][:, first],
                "conv2.bias": old["conv2.bias"][second],
                "fc.weight": old["fc.weight"].unflatten(1, (-1, 4))[:, second].flatten(1),
                "fc.bias": old["fc.bias"],
            }
        )
        return new


def train(place: Path, net: Net, *, epochs: int, rate: float) -> float:
    """Train with the hook, which captures weights and gradients. Save and return the accuracy."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[order, None]
    labels = torch.tensor(digits.target)[order]
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=rate)
    every = td.SaveConfig(save_interval=4)
    with Hook(place, save_config=every, include_collections=KINDS, flusher="thread") as hook:
        hook.register_module(net)
        for _ in range(epochs):
            for batch in torch.randperm(1000).split(50):
                optimizer.zero_grad()
                criterion(net(images[batch]), labels[batch]).backward()
                optimizer.step()
        with torch.no_grad():
            accuracy = float((net(images[1000:]).argmax(1) == labels[1000:]).float().mean())
        hook.save_scalar("accuracy", accuracy)
    return accuracy


def prune(place: Path, net: Net, *, rate: float) -> tuple[list[int], list[float]]:
    """Remove filters round by round until the rule has a finding. Return the sizes and the accuracies."""
    sizes, accuracies = [], []
    for number in range(ROUNDS + 1):
        folder = place / f"round-{number}"
        accuracies.append(train(folder, net, epochs=3, rate=rate))
        sizes.append(sum(each.numel() for each in net.parameters()))
        findings = run(folder, [AccuracyBelow(limit=LIMIT)]).findings
        if findings:
            print(f"  stopped in round {number}: {findings[0].rule}: {findings[0].why}")
            break
        keep = pruning.kept_filters(pruning.importance(td.create_trial(folder), LAYERS), remove=FILTERS)
        net = net.shrunk(*(torch.tensor(keep[name]) for name in LAYERS))
    return sizes, accuracies


def main(place: str) -> None:
    """Train a network, prune it without and with retraining, and draw both compression curves."""
    torch.set_num_threads(1)  # a small network is slower with several threads
    torch.manual_seed(0)
    net, curves = Net(16, 32), {}
    train(Path(place, "start"), net, epochs=15, rate=3e-3)
    for name, rate in (("faulty", 0.0), ("repaired", 3e-3)):
        print(f"{name} pruning:")
        everything = torch.arange(16), torch.arange(32)
        sizes, accuracies = prune(Path(place, name), net.shrunk(*everything), rate=rate)
        curves[f"{name}: {'with' if rate else 'without'} retraining"] = sizes, accuracies
        print(f"  {name}: {sizes[0]} to {sizes[-1]} parameters, last accuracy {accuracies[-1]:.3f}")
    figure = xy_curves(curves, x="parameters", y="accuracy on new images", limit=LIMIT)
    figure.savefig(Path(place, "pruning.png"), dpi=70)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/pruning")
