"""Serve a model whose inputs drift: a rule notices, inputs of the drifting requests are kept and compared.

    python examples/studies/serving_drift.py runs/serving_drift

A classifier of tumours serves requests. From some request on, a new device sends lengths and areas in another
unit. A rule watches the activations of the serving model, and requests that the inputs of the next requests
are kept. A report names the features that moved. With their factors, the repaired service is right again.
docs/studies/serving-drift.md explains the study.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from torch import nn

import tdcore as td
from tdcore.actions import CaptureMore
from tdcore.analysis import drift
from tdcore.hooks.pytorch import Hook
from tdcore.rules import Finding, Need, Window, run

BATCH, REFERENCE, KEPT, BEFORE, MOST = 32, 20, 20, 60, 5000  # rows of a request; numbers of requests
INPUT = "Classifier_input_0"
DATA = load_breast_cancer()
FEATURES = [str(name) for name in DATA.feature_names]
FACTORS = {"radius": 10.0, "perimeter": 10.0, "area": 100.0}  # of the new device's units
UNITS = torch.tensor([FACTORS.get(name.replace("error", "").split()[-1], 1.0) for name in FEATURES])


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationDrift:
    """The mean of an activation is far from its means over the first requests, several times in a row."""

    code: ClassVar[str] = "STUDY1"
    reference: int = 50  # requests
    limit: float = 4.0  # standard deviations of the means
    patience: int = 3  # requests

    def needs(self) -> Need:
        """Statistics of module outputs."""
        return Need(what="outputs", captures=(td.CollectionConfig(name="outputs"),), kinds=("output",))

    def check(self, window: Window) -> Iterator[Finding]:
        """At most one finding per tensor and request."""
        rows = np.flatnonzero(window.kind("output") & window.ok & window.counted)
        window.judged(len(rows))
        for row, mean in zip(rows.tolist(), window.columns.floats("mean")[rows].tolist(), strict=True):
            seen, streak = window.memory.get(window.layer(row), ([], 0))
            if len(seen) < self.reference:
                window.memory[window.layer(row)] = [*seen, mean], 0
                continue
            apart = abs(mean - np.mean(seen)) / np.std(seen)
            streak = streak + 1 if apart > self.limit else 0
            window.memory[window.layer(row)] = seen, streak
            if streak == self.patience:
                yield window.finding(
                    self,
                    row,
                    numbers={"mean": mean, "apart": float(apart)},
                    why=f"the mean is {mean:.3g}, {apart:.1f} standard deviations from the first requests",
                    do="keep inputs of these requests, and compare them with earlier inputs",
                )


class Classifier(nn.Module):
    """Two layers on standardised features."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", rows.mean(0))
        self.register_buffer("deviation", rows.std(0))
        self.hidden, self.relu, self.scores = nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores of malignant and benign."""
        scores: torch.Tensor = self.scores(self.relu(self.hidden((rows - self.mean) / self.deviation)))
        return scores


def trained(rows: torch.Tensor, labels: torch.Tensor) -> Classifier:
    """A classifier, trained without capture."""
    torch.manual_seed(0)
    model = Classifier(rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    return model.eval()


class Service:
    """Answers requests of a model with a hook, and counts right answers before and after the drift."""

    def __init__(self, folder: Path, model: Classifier, rows: torch.Tensor, labels: torch.Tensor) -> None:
        self.model, self.rows, self.labels = model, rows, labels
        self.factors = torch.ones(30)
        self.right: list[float] = []
        torch.manual_seed(1)
        statistics = td.CollectionConfig(
            name="outputs",
            save_config=td.SaveConfig(save_interval=1),
            reduction_config=td.ReductionConfig(),
        )
        reference = td.CollectionConfig(
            name="reference",
            include_regex=[INPUT],
            save_config=td.SaveConfig(save_interval=1, end_step=REFERENCE),
            reduction_config=td.ReductionConfig(save_raw_tensor=True),
        )
        self.hook = Hook(folder)
        for collection in (statistics, reference):
            self.hook.add_collection(collection)
        self.hook.set_mode(td.modes.PREDICT)
        self.hook.register_module(model)

    def answer(self) -> None:
        """Answer one request: rows of the test set; later ones with lengths and areas in another unit."""
        chosen = torch.randint(0, len(self.rows), (BATCH,))
        rows = self.rows[chosen].clone()
        if len(self.right) >= BEFORE:
            rows /= UNITS
        with torch.no_grad():
            answers = self.model(rows * self.factors if len(self.right) >= BEFORE else rows).argmax(1)
        self.right.append((answers == self.labels[chosen]).float().mean().item())

    def report(self, name: str) -> None:
        """Print the share of right answers before and after the drift."""
        shares = [np.mean(part) for part in (self.right[:BEFORE], self.right[BEFORE:])]
        print(f"{name}: {100 * shares[0]:.1f} % right before the drift, {100 * shares[1]:.1f} % after it")


def serve_watched(folder: Path, service: Service) -> None:
    """Serve until the rule has fired and the inputs of drifting requests are kept."""
    keep = CaptureMore(steps=KEPT, tensors=[INPUT], modes=["PREDICT"])
    options = {"live": True, "actions": [keep]}
    watcher = threading.Thread(target=run, args=(folder, [ActivationDrift()]), kwargs=options)
    watcher.start()
    trial = td.create_trial(folder, wait=None)
    while len(service.right) < MOST:
        service.answer()
        time.sleep(0.005)  # until the next request
        if not watcher.is_alive() and len(trial.tensor(INPUT).steps(td.modes.PREDICT)) >= REFERENCE + KEPT:
            break
    service.hook.close()
    watcher.join()


def draw(trial: td.Trial, moved: list[drift.FeatureDrift], picture: Path) -> None:
    """Draw the mean of the hidden activations over the requests, and the drift of each input feature."""
    table = trial.stats(["relu_output_0"], columns=["mode_step", "mean"])
    figure = Figure(figsize=(9, 5), layout="constrained")
    curve, bars = figure.subplots(1, 2)
    curve.plot(table.column("mode_step"), table.column("mean"), ".-", color="#0072b2", lw=0.5, ms=4)
    curve.axvline(BEFORE, color="#d55e00", label="the new device")
    curve.set(xlabel="request", ylabel="mean of relu_output_0", title="A captured activation")
    curve.legend()
    colours = ["#d55e00" if each.moved else "#999999" for each in moved]
    bars.barh([each.feature for each in moved], [each.ks for each in moved], color=colours)
    bars.invert_yaxis()
    bars.tick_params(axis="y", labelsize=7)
    bars.set(xlabel="Kolmogorov-Smirnov statistic", title="Kept inputs: features that moved")
    figure.savefig(picture, dpi=75)


def main(folder: Path) -> None:
    """Serve with drift, report the features that moved, and serve again with the factors of the report."""
    rows, labels = torch.tensor(DATA.data, dtype=torch.float32), torch.tensor(DATA.target)
    test = torch.arange(len(rows)) % 3 == 0
    model = trained(rows[~test], labels[~test])

    service = Service(folder / "faulty", model, rows[test], labels[test])
    serve_watched(folder / "faulty", service)
    service.report("faulty")
    for finding in run(folder / "faulty", [ActivationDrift()]).findings:
        print(f"  {finding.rule} at {finding.at}, {finding.tensor}: {finding.why}")

    trial = td.create_trial(folder / "faulty")
    steps = trial.tensor(INPUT).steps(td.modes.PREDICT)
    moved = drift.drift_of_steps(trial, INPUT, steps[:REFERENCE], steps[REFERENCE:], features=FEATURES)
    print(f"  inputs of {len(steps) - REFERENCE} requests were kept; features that moved:")
    for each in moved:
        if each.moved:
            print(f"  {each.text}")
    draw(trial, moved, folder / "serving_drift.png")

    repaired = Service(folder / "repaired", model, rows[test], labels[test])
    for each in moved:
        if each.moved:
            repaired.factors[FEATURES.index(each.feature)] = round(each.median_before / each.median)
    for _ in range(2 * BEFORE):
        repaired.answer()
    repaired.hook.close()
    repaired.report("repaired")
    print(f"  {run(folder / 'repaired', [ActivationDrift()]).verdicts[0].text}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/serving_drift"))
