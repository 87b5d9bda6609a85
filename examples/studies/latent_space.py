"""Watch the latent space of an autoencoder of digits while it trains.

    python examples/studies/latent_space.py runs/latent-space

The faulty autoencoder has a learning rate that is too high for its ReLUs: units of its bottleneck die, and
the latent space collapses to a point. Another thread reads the run while it is written, and projects the
captured activations of the bottleneck. The page docs/studies/latent-space.md explains the study.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tdcore as td
from tdcore.analysis import projection
from tdcore.hooks.pytorch import Hook
from tdcore.plot.point_clouds import point_clouds
from tdcore.rules import run

DIGITS = load_digits()
IMAGES = torch.tensor(DIGITS.data / 16, dtype=torch.float32)
SHOWN = slice(1400, None)  # the images whose activations are captured, in evaluations
RULE = "dead_relu:start_step=20"  # the first steps show the initial weights
EPOCHS, BOTTLENECK = 9, "encoder.3_output_0"
EVALUATIONS = {
    td.ModeKeys.TRAIN: td.SaveConfigMode(save_interval=10),
    td.ModeKeys.EVAL: td.SaveConfigMode(save_interval=4),
}


class Autoencoder(nn.Module):
    """64 pixels to 16 numbers and back."""

    def __init__(self, bottleneck: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), bottleneck)
        self.decoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction."""
        found: Tensor = self.decoder(self.encoder(x))
        return found


def train(place: Path, bottleneck: nn.Module, *, rate: float) -> float:
    """Train with the hook and evaluate after each epoch. Return the last error of the reconstruction."""
    torch.manual_seed(0)
    model, criterion = Autoencoder(bottleneck), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with Hook(place, include_collections=["outputs"], save_config=EVALUATIONS) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(EPOCHS):
            for batch in torch.randperm(1400).split(32):
                optimizer.zero_grad()
                criterion(model.train()(IMAGES[batch]), IMAGES[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                error = criterion(model.eval()(IMAGES[SHOWN]), IMAGES[SHOWN])
    return float(error)


def watch(place: Path) -> dict[str, Any]:
    """Project the bottleneck at each captured evaluation, as soon as it is complete."""
    trial = td.create_trial(place, wait=timedelta(minutes=2))
    trajectory, found = projection.Trajectory(), {}
    for step in range(0, EPOCHS, 4):
        trial.wait_for_steps([step], td.ModeKeys.EVAL)
        values = trial.tensor(BOTTLENECK).value(step, td.ModeKeys.EVAL)
        found[f"evaluation {step}"] = trajectory.add(values)
        near = projection.separation(values, DIGITS.target[SHOWN])
        print(f"  evaluation {step}: nearest neighbour of the same digit: {100 * near:.0f} %")
    return found


def main(place: str) -> None:
    """Train both autoencoders, and draw their latent spaces."""
    torch.set_num_threads(1)  # a small network is slower with several threads
    clouds: dict[str, dict[str, Any]] = {}
    for name, activation, rate in (("faulty", nn.ReLU(), 0.05), ("repaired", nn.LeakyReLU(), 0.003)):
        print(f"{name} training:")
        folder = Path(place, name)
        with ThreadPoolExecutor() as pool:
            watching = pool.submit(watch, folder)
            error = train(folder, activation, rate=rate)
            clouds[f"{name}, PCA"] = watching.result()
        for finding in run(folder, RULE).findings:
            print(f"  {finding.rule}, {finding.at}: {finding.tensor}: {finding.why}")
        print(f"  {name}: error of the reconstruction {error:.4f}")
    last = td.create_trial(folder).tensor(BOTTLENECK).values(td.ModeKeys.EVAL)
    points, rows = None, {}
    for step, values in last.items():
        rows[f"evaluation {step}"] = points = projection.tsne(values, start=points)
    clouds["repaired, t-SNE"] = rows
    point_clouds(clouds, DIGITS.target[SHOWN]).savefig(Path(place, "latent_space.png"), dpi=60)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/latent-space")
