"""Train a model whose data contains its label, let a rule find it, and train the repaired model.

    python examples/xgboost_overweight.py runs/overweight

The column "settled_amount" is known only after a claim was accepted, so it contains the label. A model with
this column has an almost perfect validation loss and is useless for new claims. The rule
FeatureImportanceOverweight reports it. The first ten rounds are not judged, because they have few trees.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from tdcore.hooks.xgboost import Hook
from tdcore.rules import FeatureImportanceOverweight, Finding, Overfit, RuleProtocol, run

COLUMNS = ["age", "mileage", "price", "region", "claims", "garage", "power", "settled_amount"]
RULES: list[RuleProtocol] = [FeatureImportanceOverweight(), Overfit()]


def make_claims(rows: int = 4000) -> tuple[Any, Any]:
    """Return the columns of claims (seven features and the settled amount) and the labels."""
    random = np.random.default_rng(0)
    values = random.normal(size=(rows, len(COLUMNS)))
    score = values[:, :7] @ np.array([1.0, -1.0, 0.8, 0.6, -0.9, 0.7, 0.5]) + 0.5 * random.normal(size=rows)
    accepted = (score > 0).astype(int)
    values[:, 7] = accepted * random.uniform(100.0, 5000.0, rows)
    return values, accepted


def train(place: Path, columns: list[str], parameters: dict[str, Any]) -> float:
    """Train with the hook. Return the last validation loss."""
    values, labels = make_claims()
    chosen = values[:, [COLUMNS.index(name) for name in columns]]
    half = len(labels) // 2
    dtrain = xgboost.DMatrix(chosen[:half], labels[:half], feature_names=columns)
    dvalid = xgboost.DMatrix(chosen[half:], labels[half:], feature_names=columns)
    result: dict[str, Any] = {}
    with Hook(place, rules=RULES) as hook:
        xgboost.train(
            {"objective": "binary:logistic", "seed": 0, **parameters},
            dtrain,
            num_boost_round=60,
            evals=[(dtrain, "train"), (dvalid, "validation")],
            evals_result=result,
            verbose_eval=False,
            callbacks=[hook],
        )
    return float(result["validation"]["logloss"][-1])


def report(place: Path) -> None:
    """Print the first finding of each rule."""
    findings: list[Finding] = []
    run(place, RULES, start_step=10, on_findings=findings.extend)
    for finding in {finding.rule: finding for finding in reversed(findings)}.values():
        print(f"  {finding.rule}, round {finding.step}: {finding.why}")
    if not findings:
        print("  no findings")


def main(folder: str) -> None:
    """Train both models and judge them."""
    faulty, repaired = Path(folder, "faulty"), Path(folder, "repaired")
    loss = train(faulty, COLUMNS, {"max_depth": 3, "eta": 0.1})
    print(f"faulty model, validation loss {loss:.3f}:")
    report(faulty)
    loss = train(repaired, COLUMNS[:7], {"max_depth": 3, "eta": 0.1})
    print(f"repaired model, validation loss {loss:.3f}:")
    report(repaired)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/overweight")
