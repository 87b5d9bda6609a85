"""Real runs that are recorded once and judged by several tests of rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.rules.epochs import fit, perceptron, rings
from tests.rules.trainings import blobs, network, train

EVERYTHING = ("weights", "biases", "gradients", "inputs", "outputs", "hyperparameters")

# No time limit per example: the machine may be busy, and the first example includes imports.
settings.register_profile("tdcore", deadline=None)
settings.load_profile("tdcore")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # the networks are tiny: more threads would only wait for each other


@pytest.fixture(scope="session")
def healthy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ReLU network that learns; every tensor of every step, with values."""
    place = tmp_path_factory.mktemp("healthy") / "run"
    return train(place, network(), blobs(24), collections=EVERYTHING, values=True)


@pytest.fixture(scope="session")
def statistics_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training, with statistics only."""
    return train(tmp_path_factory.mktemp("statistics") / "run", network(), blobs(24), collections=EVERYTHING)


@pytest.fixture(scope="session")
def losses_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training, with losses only."""
    return train(tmp_path_factory.mktemp("losses") / "run", network(), blobs(24))


@pytest.fixture(scope="session")
def epochs_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A perceptron that learns `rings` well, 20 epochs with validation, labels and predictions."""
    place = tmp_path_factory.mktemp("epochs") / "run"
    return fit(place, perceptron(), rings(16), rings(4, seed=1), epochs=20, labels=True)


@pytest.fixture(scope="session")
def sparse_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A perceptron that learns, whose loss was saved at one step only."""
    return fit(tmp_path_factory.mktemp("sparse") / "run", perceptron(), rings(8), epochs=1, every=100)
