"""Train a model of LightGBM that learns its noise, let rules find it, and train the repaired model.

    python examples/lightgbm_overfit.py runs/overfit

A third of the labels are wrong. Trees with leaves of two rows learn these labels: the training loss falls to
zero, and the validation loss rises. The rule Overfit reports it, and TreeDepth reports the deep trees. Few
leaves with many rows each learn the relation only. docs/xgboost.md explains the hook.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from tdcore.hooks.lightgbm import Hook
from tdcore.rules import run

RULES = ["overfit", "tree_depth"]
ROUNDS = 60


def make_rows(rows: int = 3000) -> tuple[Any, Any]:
    """Eight features, and a label that is wrong in a third of the rows."""
    random = np.random.default_rng(0)
    values = random.normal(size=(rows, 8))
    right = values[:, 0] + values[:, 1] > 0
    return values, (right != (random.random(rows) < 0.33)).astype(int)


def train(place: Path, parameters: dict[str, Any]) -> None:
    """Train with the hook."""
    values, labels = make_rows()
    half = len(labels) // 2
    train_set = lightgbm.Dataset(values[:half], labels[:half])
    validation = lightgbm.Dataset(values[half:], labels[half:], reference=train_set)
    with Hook(place, rules=RULES) as hook:
        lightgbm.train(
            {"objective": "binary", "verbose": -1, "seed": 0, "num_threads": 1, **parameters},
            train_set,
            ROUNDS,
            valid_sets=[train_set, validation],
            valid_names=["training", "validation"],
            callbacks=[hook],
        )


def main(folder: str) -> None:
    """Train both models and judge them."""
    for name, parameters in (
        ("faulty", {"learning_rate": 0.3, "num_leaves": 255, "min_data_in_leaf": 2}),
        ("repaired", {"learning_rate": 0.03, "num_leaves": 4, "min_data_in_leaf": 100}),
    ):
        place = Path(folder, name)
        train(place, parameters)
        print(f"{name}:")
        report = run(place, RULES)
        for verdict in report.verdicts:
            print(f"  {verdict.rule}: {verdict.text}")
        for finding in {finding.rule: finding for finding in reversed(report.findings)}.values():
            print(f"    {finding.rule}, round {finding.step}: {finding.why}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/overfit")
