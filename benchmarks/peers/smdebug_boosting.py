"""Run in the environment of requirements/peer-smdebug-xgboost.txt: XGBoost with smdebug.

smdebug_boosting.py PAIRS KIND ...      the trainings of benchmarks/boosting.py, as JSON behind RESULT
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import smdebug.xgboost as smd

from benchmarks.boosting_problem import INTERVALS, Problem, plain_seconds, ratios

KINDS = {
    "metrics": ["metrics"],
    "importance": ["metrics", "feature_importance"],
    "trees": ["metrics", "trees"],
    "shap": ["metrics", "average_shap"],
}


def hooked(problem: Problem, kind: str, interval: int, folder: Path) -> float:
    """CPU seconds of a training with the hook of smdebug."""
    data = {"train_data": problem.shap} if kind == "shap" else {}
    hook = smd.Hook(
        out_dir=str(folder),
        save_config=smd.SaveConfig(save_interval=interval),
        include_collections=KINDS[kind],
        **data,
    )
    found = problem.seconds([hook])
    hook.close()
    return found


def main() -> None:
    logging.disable(logging.CRITICAL)
    pairs, kinds = int(sys.argv[1]), sys.argv[2:]
    problem = Problem()
    problem.seconds([])
    found = {
        f"{kind}, interval {interval}": ratios(problem, partial(hooked, problem, kind, interval), pairs)
        for kind in kinds
        for interval in INTERVALS
    }
    seconds = plain_seconds(problem)
    versions = {name: importlib.metadata.version(name) for name in ("smdebug", "xgboost", "numpy")}
    print("RESULT " + json.dumps({"versions": versions, "plain_seconds": seconds, "ratios": found}))


if __name__ == "__main__":
    main()
