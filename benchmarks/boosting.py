"""Slowdown of a training of XGBoost with the hook, by what is recorded and by save interval.

5000 rows of 20 features, 100 rounds of depth 6, two evaluation sets, one thread. Trainings with and without
the hook take turns, in pairs, and the order within a pair changes. The ratio of a pair is the CPU time of the
training thread with the hook divided by the CPU time without it: other processes count little in it. The
result is the median of the ratios with quartiles. The hook is created before the time starts and closed after
the time ends.

metrics         metrics only, of every saved round
importance      feature importance of all five types, 100 scalars per saved round
trees           the table of all trees so far
shap            mean absolute SHAP values of 500 rows
none            a save interval that no round reaches: the cost of the callback itself
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

import tdcore as td
from benchmarks.environment import add_out, save, version
from tdcore.hooks.xgboost import Hook

ROWS, FEATURES, ROUNDS, SHAP_ROWS = 5000, 20, 100, 500
KINDS = {"metrics": [], "importance": ["feature_importance"], "trees": ["trees"], "shap": ["average_shap"]}
INTERVALS = (1, 10, 100)
NEVER = 1 << 30
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


def hooked(problem: Problem, folder: Path, kind: str, interval: int) -> float:
    """CPU seconds of a training with the hook."""
    when = td.SaveConfig(start_step=NEVER) if interval == NEVER else td.SaveConfig(save_interval=interval)
    data = {"train_data": problem.shap} if kind == "shap" else {}
    with Hook(folder, save_config=when, include_collections=KINDS.get(kind, []), **data) as hook:
        found = problem.seconds([hook])
    counters = hook.counters()
    if counters.drops:
        raise RuntimeError(f"{kind} at interval {interval}: {counters}")
    return found


def ratios(problem: Problem, kind: str, interval: int, pairs: int) -> list[float]:
    """Ratio of each pair."""
    found = []
    for pair in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            if pair % 2:
                plain = problem.seconds([])
                found.append(hooked(problem, Path(folder), kind, interval) / plain)
            else:
                with_hook = hooked(problem, Path(folder), kind, interval)
                found.append(with_hook / problem.seconds([]))
    return found


def main() -> None:
    """Measure, print and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    add_out(parser)
    options = parser.parse_args()
    problem = Problem()
    problem.seconds([])
    slowdown: dict[str, dict[str, float]] = {}
    for kind, interval in [("none", NEVER), *((kind, each) for kind in KINDS for each in INTERVALS)]:
        low, median, high = statistics.quantiles(ratios(problem, kind, interval, options.pairs), n=4)
        name = kind if interval == NEVER else f"{kind}, interval {interval}"
        slowdown[name] = {"median": median, "q1": low, "q3": high}
        print(f"{name:26} {median:.3f} ({low:.3f} to {high:.3f})", flush=True)
    result = {
        "method": __doc__,
        "pairs": options.pairs,
        "xgboost": version("xgboost-cpu") or version("xgboost"),
    }
    print(save("boosting", {**result, "ratio_of_cpu_time": slowdown}, options.out))


if __name__ == "__main__":
    main()
