"""Train a classifier of digits that has few images of the digit 8, and a classifier with a balanced sampler.

    python examples/studies/class_imbalance.py runs/class-imbalance

Two rules judge the first training while it runs, each in its own process. ClassImbalance logs its findings,
and Confusion stops the training. The sampler of the second training draws all digits equally often. The page
docs/studies/class-imbalance.md explains the study.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tdcore as td
from tdcore.analysis import confusion
from tdcore.hooks.pytorch import Hook
from tdcore.plot.confusion_matrix import confusion_matrix
from tdcore.rules import run

LABELS, SCORES = "CrossEntropyLoss_input_1", "CrossEntropyLoss_input_0"
IMBALANCE = f"class_imbalance:labels_regex={LABELS},predictions_regex={SCORES},samples=960"
CONFUSION = f"confusion:labels={LABELS},predictions={SCORES},normalize=row,min_diag=0.6,max_off_diag=0.3"
RARE, KEPT = 8, 10  # the digit, and the number of its images in the training set
Part = tuple[Tensor, Tensor]


def make_data() -> tuple[Part, Part]:
    """Return the training set, with few images of one digit, and the test set with all digits."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.data / 16, dtype=torch.float32)[order]
    labels = torch.tensor(digits.target)[order]
    images, labels, test = images[:1000], labels[:1000], (images[1000:], labels[1000:])
    rare = labels == RARE
    kept = ~rare | (rare.cumsum(0) <= KEPT)
    return (images[kept], labels[kept]), test


def train(place: Path, epochs: int, *, balanced: bool) -> None:
    """Train with the hook. A stop request of a rule ends the training."""
    torch.manual_seed(0)
    (images, labels), test = make_data()
    model, criterion = nn.Linear(64, 10), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)
    weights = 1 / labels.bincount()[labels] if balanced else torch.ones(len(labels))
    with Hook(place, rules=[IMBALANCE, CONFUSION], save_config=td.SaveConfig(save_interval=1)) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        try:
            for _ in range(epochs):
                for batch in weights.multinomial(len(labels), replacement=balanced).split(64):
                    optimizer.zero_grad()
                    criterion(model.train()(images[batch]), labels[batch]).backward()
                    optimizer.step()
                with torch.no_grad():
                    criterion(model.eval()(test[0]), test[1])
        except td.StopTraining as stop:
            print(f"  stopped: {stop}")


def watch(place: Path, rule: str, action: str) -> subprocess.Popen[bytes]:
    """Judge a run by a rule while it is written, in another process."""
    command = [sys.executable, "-m", "tdcore.cli", "rules", "run", str(place), "--live", "--until-end"]
    return subprocess.Popen([*command, "-r", rule, "--on-fire", action], stdout=subprocess.DEVNULL)


def report(place: Path, name: str) -> None:
    """Print the findings and the recall at the last evaluation, and draw the confusion matrix."""
    for finding in run(place).findings:
        print(f"  {finding.rule}, {finding.at}: {finding.why}")
    trial = td.create_trial(place)
    last = trial.tensor(LABELS).steps(td.ModeKeys.EVAL)[-1]
    found = confusion.from_trial(trial, LABELS, SCORES, mode=td.ModeKeys.EVAL, steps=[last])
    recall = found.recall[found.of(RARE)]
    print(f"  {name}: accuracy {found.accuracy:.2f}, recall of digit {RARE}: {recall:.2f}")
    figure = confusion_matrix(found, f"{name} training, evaluation {last}")
    figure.savefig(place.parent / f"class_imbalance-{name}.png", dpi=70)


def main(place: str) -> None:
    """Train both classifiers and report their runs."""
    torch.set_num_threads(1)  # a small network is slower with several threads
    print("faulty training:")
    faulty = Path(place, "faulty")
    watchers = [watch(faulty, IMBALANCE, "log"), watch(faulty, CONFUSION, "stop")]
    train(faulty, 2000, balanced=False)
    for watcher in watchers:
        watcher.wait()
    report(faulty, "faulty")
    print("repaired training:")
    repaired = Path(place, "repaired")
    train(repaired, 40, balanced=True)
    report(repaired, "repaired")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/class-imbalance")
