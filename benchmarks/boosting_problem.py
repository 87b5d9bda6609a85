"""The training of benchmarks/boosting.py, and ratios of its CPU time. It imports nothing of tdcore."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

__all__ = ["INTERVALS", "ROUNDS", "Problem", "plain_seconds", "ratios"]

ROWS, FEATURES, ROUNDS, SHAP_ROWS = 5000, 20, 100, 500
INTERVALS = (1, 10, 100)
PARAMETERS = {"objective": "binary:logistic", "max_depth": 6, "nthread": 1, "seed": 0}


class Problem:
    """The data of all trainings."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        values = random.normal(size=(2 * ROWS, FEATURES))
        labels = (values[:, 0] * values[:, 1] + values[:, 2] + random.normal(size=2 * ROWS) > 0).astype(int)
        self.train = xgboost.DMatrix(values[:ROWS], labels[:ROWS])
        self.validation = xgboost.DMatrix(values[ROWS:], labels[ROWS:])
        self.shap = xgboost.DMatrix(values[:SHAP_ROWS], labels[:SHAP_ROWS])

    def seconds(self, callbacks: list[Any]) -> float:
        """CPU seconds of this thread for one training."""
        start = time.thread_time()
        xgboost.train(
            PARAMETERS,
            self.train,
            ROUNDS,
            evals=[(self.train, "train"), (self.validation, "validation")],
            verbose_eval=False,
            callbacks=callbacks,
        )
        return time.thread_time() - start


def plain_seconds(problem: Problem) -> float:
    """CPU seconds of a training without a hook, the median of five."""
    return statistics.median(problem.seconds([]) for _ in range(5))


def ratios(problem: Problem, hooked: Callable[[Path], float], pairs: int) -> list[float]:
    """Ratio of each pair. hooked: returns the seconds of a training with a hook that writes to a folder."""
    found = []
    for pair in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            if pair % 2:
                plain = problem.seconds([])
                found.append(hooked(place) / plain)
            else:
                with_hook = hooked(place)
                found.append(with_hook / problem.seconds([]))
    return found
