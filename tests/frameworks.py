"""The table of docs/frameworks.md, made by the tests with the mark `shows`.

    pytest tests/boosting --proofs write                         writes the rows of XGBoost and LightGBM
    pytest -p tests.frameworks --confcutdir=tests/mxnet tests/mxnet --proofs write       those of MXNet

A test names the cells that it shows by `@pytest.mark.shows("XGBoost: train()", "values right")`. A framework
whose tests did not run keeps its rows. This module is also the pytest plugin of the tests that run in an
environment of their own (`-p tests.frameworks`); it imports only pytest.
"""

from __future__ import annotations

import pytest

from tests.hooks.support import DOCS, matrix
from tests.shown import add_option, register

__all__ = ["FRAMEWORKS", "pytest_addoption", "pytest_configure"]

COLUMNS = ("values right", "same training", "nothing left behind", "cost")
_BOOSTING = (
    "train()",
    "cv()",
    "estimators of scikit-learn",
    "early stopping",
    "stop request",
    "metrics",
    "hyper-parameters",
    "predictions and labels",
    "feature importance",
    "trees",
    "categorical features",
    "SHAP values",
    "errors in the hook",
    "rounds that save nothing",
    "rules on real models",
)
_KERAS = (
    "fit(), evaluate(), predict()",
    "methods for one batch",
    "data of unknown length",
    "steps_per_execution",
    "weights",
    "gradients",
    "outputs of layers",
    "losses and metrics",
    "labels and predictions",
    "optimizer state and hyper-parameters",
    "loss scale",
    "mixed precision",
    "own train_step",
    "generated architectures",
    "replicas and shardings",
    "saved models",
    "stop request",
    "several hooks",
    "errors in the hook",
    "steps that save nothing",
    "rules on real models",
)
_JAX = (
    "train steps",
    "steps that are not compiled",
    "weights",
    "gradients",
    "outputs of linen modules",
    "outputs of nnx modules",
    "layers in a scan",
    "losses",
    "optimizer state and hyper-parameters",
    "update ratios",
    "values that a step saves",
    "shards of several devices",
    "donated arguments",
    "generated networks",
    "stop request",
    "errors in the hook",
    "steps that save nothing",
    "rules on real models",
)
_TENSORFLOW = (
    "loops and captured functions",
    "accumulation, several and persistent tapes",
    "wrapped optimizers",
    "random numbers and other effects",
    "weights",
    "gradients",
    "outputs of layers",
    "losses and metrics",
    "optimizer state and hyper-parameters",
    "values that a script saves",
    "loss scale",
    "replicas",
    "generated networks",
    "stop request",
    "errors in the hook",
    "steps that save nothing",
    "rules on real models",
)
_MXNET = (
    "loops of autograd.record()",
    "validation within a step",
    "several trainers",
    "hybridized blocks",
    "NumPy interface",
    "weights",
    "gradients",
    "inputs and outputs of blocks",
    "losses",
    "hyper-parameters",
    "types of elements",
    "stop request",
    "several hooks",
    "errors in the hook",
    "steps that save nothing",
    "rules on real models",
)
# Framework -> its rows. A test names a row by "<framework>: <row>".
_ROWS: dict[str, tuple[str, ...]] = {
    "XGBoost": (*_BOOSTING, "QuantileDMatrix", "boosters dart and gblinear", "workers of dask"),
    "LightGBM": (*_BOOSTING, "boosting dart and rf", "workers of dask"),
    "Keras on TensorFlow": _KERAS,
    "Keras on JAX": _KERAS,
    "Keras on torch": _KERAS,
    "TensorFlow": _TENSORFLOW,
    "JAX": _JAX,
    "MXNet": _MXNET,
}
GROUPS = {framework: tuple(f"{framework}: {row}" for row in rows) for framework, rows in _ROWS.items()}
FRAMEWORKS = matrix("shows", DOCS / "frameworks.md", GROUPS, COLUMNS, keep=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --proofs."""
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Count what the tests show, if --proofs was given."""
    register(config, [FRAMEWORKS])
