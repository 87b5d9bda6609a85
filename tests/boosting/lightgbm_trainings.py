"""Trainings of LightGBM, with and without a hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm

import tdcore as td
from tdcore.hooks.lightgbm import Hook
from tests.boosting.tables import Data, make_data

__all__ = ["ALL", "OBJECTIVES", "data_of", "make_hook", "train"]

ROUNDS = 6
ALL = ["feature_importance", "trees", "predictions", "labels", "hyperparameters", "average_shap", "full_shap"]
OBJECTIVES = {  # objective -> number of classes; 0: regression, -1: ranking
    "regression": 0,
    "regression_l1": 0,
    "binary": 2,
    "multiclass": 3,
    "multiclassova": 3,
    "lambdarank": -1,
}


def make_hook(place: Path, **options: Any) -> Hook:
    options = {"save_config": td.SaveConfig(save_interval=1), "flusher": "thread", **options}
    return Hook(place, ring=td.RingConfig(ring_bytes=1 << 24), **options)


def data_of(objective: str, *, categorical: bool = False) -> Data:
    classes = OBJECTIVES[objective]
    return make_data(classes=3 if classes < 0 else classes, categorical=categorical, rows=240)


def train(
    parameters: dict[str, Any], data: Data, callbacks: list[Any], *, sets: int = 2, rounds: int = ROUNDS
) -> tuple[Any, dict[str, Any]]:
    history: dict[str, Any] = {}
    groups = data.groups if parameters["objective"] == "lambdarank" else (None, None)
    train_set = lightgbm.Dataset(*data.train, group=groups[0])
    validation = lightgbm.Dataset(*data.validation, group=groups[1], reference=train_set)
    booster = lightgbm.train(
        {"verbose": -1, "seed": 5, "num_threads": 1, "min_data_in_leaf": 5, "num_leaves": 6, **parameters},
        train_set,
        rounds,
        valid_sets=[validation, train_set][:sets],
        valid_names=["valid", "training"][:sets],
        callbacks=[lightgbm.record_evaluation(history), *callbacks],
        keep_training_booster=True,  # otherwise the model is rounded when the training ends
    )
    return booster, history
