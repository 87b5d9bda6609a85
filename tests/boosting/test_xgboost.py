"""The hook for XGBoost: recorded values equal those that XGBoost returns, and the model stays the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdcore as td
from tests.boosting.tables import Data, make_data, xgboost_trees

xgboost = pytest.importorskip("xgboost")

from tdcore.hooks.xgboost import Hook  # noqa: E402

ROUNDS = 6
EVERY = td.SaveConfig(save_interval=1)
ALL = ["feature_importance", "trees", "predictions", "labels", "hyperparameters", "average_shap", "full_shap"]
OBJECTIVES: dict[str, int] = {  # objective -> number of classes; 0: regression, -1: ranking
    "reg:squarederror": 0,
    "reg:absoluteerror": 0,
    "binary:logistic": 2,
    "binary:hinge": 2,
    "multi:softmax": 3,
    "multi:softprob": 4,
    "rank:ndcg": -1,
    "count:poisson": 2,
}


def make_hook(place: Path | str, **options: Any) -> Hook:
    options = {"save_config": EVERY, "flusher": "thread", **options}
    return Hook(place, ring=td.RingConfig(ring_bytes=1 << 24), **options)


def matrices(data: Data, objective: str, *, quantile: bool = False) -> tuple[Any, Any]:
    make = xgboost.QuantileDMatrix if quantile else xgboost.DMatrix
    found: list[Any] = []
    for (rows, labels), groups in zip((data.train, data.validation), data.groups, strict=True):
        options = {"ref": found[0]} if quantile and found else {}
        matrix = make(rows, label=labels, enable_categorical=True, **options)
        if objective.startswith("rank"):
            matrix.set_group(groups)
        found.append(matrix)
    return found[0], found[1]


def train(
    parameters: dict[str, Any],
    train_data: Any,
    validation: Any,
    callbacks: list[Any],
    *,
    sets: int = 2,
    rounds: int = ROUNDS,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    history: dict[str, Any] = {}
    booster = xgboost.train(
        {"seed": 7, "nthread": 1, **parameters},
        train_data,
        rounds,
        evals=[(train_data, "train"), (validation, "validation")][:sets],
        evals_result=history,
        verbose_eval=False,
        callbacks=callbacks,
        **options,
    )
    return booster, history


def parameters_of(objective: str) -> dict[str, Any]:
    classes = {"num_class": OBJECTIVES[objective]} if objective.startswith("multi") else {}
    return {"objective": objective, "max_depth": 3, **classes}


@st.composite
def trainings(draw: st.DrawFn) -> dict[str, Any]:
    objective = draw(st.sampled_from(sorted(OBJECTIVES)))
    booster = draw(st.sampled_from(["gbtree", "dart", "gblinear"]))
    parameters = {**parameters_of(objective), "booster": booster}
    if booster == "gblinear":
        del parameters["max_depth"]
    else:
        parameters["tree_method"] = draw(st.sampled_from(["hist", "approx", "exact"]))
        parameters["subsample"] = draw(st.sampled_from([1.0, 0.6]))
        parameters["num_parallel_tree"] = draw(st.sampled_from([1, 2]))
        parameters["gamma"] = draw(st.sampled_from([0.0, 1.0]))
    if booster == "dart":
        parameters["rate_drop"] = 0.4
    categorical = booster != "gblinear" and parameters["tree_method"] != "exact" and draw(st.booleans())
    quantile = parameters.get("tree_method") == "hist" and draw(st.booleans())
    return {
        "parameters": parameters,
        "categorical": categorical,
        "quantile": quantile,
        "sets": draw(st.integers(0, 2)),
        "interval": draw(st.sampled_from([1, 2, 4])),
        "stopping": draw(st.sampled_from([None, 1])),
        "shap": draw(st.booleans()),
    }


@pytest.mark.shows("XGBoost: train()", "values right")
@pytest.mark.shows("XGBoost: metrics", "values right")
@pytest.mark.shows("XGBoost: predictions and labels", "values right")
@pytest.mark.shows("XGBoost: feature importance", "values right")
@pytest.mark.shows("XGBoost: trees", "values right")
@pytest.mark.shows("XGBoost: categorical features", "values right")
@pytest.mark.shows("XGBoost: QuantileDMatrix", "values right")
@pytest.mark.shows("XGBoost: boosters dart and gblinear", "values right")
@pytest.mark.shows("XGBoost: train()", "same training")
@pytest.mark.shows("XGBoost: metrics", "same training")
@pytest.mark.shows("XGBoost: predictions and labels", "same training")
@pytest.mark.shows("XGBoost: feature importance", "same training")
@pytest.mark.shows("XGBoost: trees", "same training")
@pytest.mark.shows("XGBoost: categorical features", "same training")
@pytest.mark.shows("XGBoost: SHAP values", "same training")
@pytest.mark.shows("XGBoost: hyper-parameters", "same training")
@pytest.mark.shows("XGBoost: QuantileDMatrix", "same training")
@pytest.mark.shows("XGBoost: boosters dart and gblinear", "same training")
@pytest.mark.shows("XGBoost: early stopping", "same training")
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(chosen=trainings())
@pytest.mark.full
def test_values_are_those_of_xgboost_and_the_model_is_the_same(
    chosen: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    parameters, sets, interval = chosen["parameters"], chosen["sets"], chosen["interval"]
    objective = parameters["objective"]
    data = make_data(
        classes=max(OBJECTIVES[objective], 0) or (0 if OBJECTIVES[objective] == 0 else 3),
        categorical=chosen["categorical"],
    )
    stopping = {"early_stopping_rounds": chosen["stopping"]} if chosen["stopping"] and sets else {}

    def once(callbacks: Callable[[Any, Any], list[Any]]) -> tuple[Any, Any, Any]:
        dtrain, dvalid = matrices(data, objective, quantile=chosen["quantile"])
        return (*train(parameters, dtrain, dvalid, callbacks(dtrain, dvalid), sets=sets, **stopping), dvalid)

    place = tmp_path_factory.mktemp("run")
    hooks: list[Hook] = []

    def hooked(dtrain: Any, dvalid: Any) -> list[Any]:
        shap = {"train_data": dtrain} if chosen["shap"] else {}
        when = td.SaveConfig(save_interval=interval)
        names = [each for each in ALL if chosen["shap"] or "shap" not in each]
        hooks.append(
            make_hook(place, save_config=when, include_collections=names, validation_data=dvalid, **shap)
        )
        return list(hooks)

    plain, plain_history, _ = once(lambda *_: [])
    booster, history, dvalid = once(hooked)
    hooks[0].close()
    assert booster.save_raw() == plain.save_raw()
    assert history == plain_history
    run = td.create_trial(place)
    assert not run.notes().get("faults")
    for name, metrics in history.items():
        for metric, values in metrics.items():
            tensor = run.tensor(f"{name}-{metric}")
            assert tensor.steps() == list(range(0, len(values), interval))
            assert [float(tensor.value(step)) for step in tensor.steps()] == values[::interval]
    for step in run.tensor("labels").steps():
        compare_model(run, step, booster, dvalid, parameters["booster"])


def compare_model(run: Any, step: int, booster: Any, dvalid: Any, kind: str) -> None:
    """Compares a round with the first rounds of the trained model."""
    np.testing.assert_array_equal(run.tensor("labels").value(step), dvalid.get_label())
    if kind == "gblinear":
        return  # its rounds cannot be cut off a trained model; its model after the last round can be compared
    part = booster[: step + 1]
    features = booster.feature_names or [f"f{at}" for at in range(booster.num_features())]
    for importance in ("weight", "gain", "cover", "total_gain", "total_cover"):
        scores = part.get_score(importance_type=importance)
        for feature in features:
            value = run.tensor(f"feature_importance/{importance}/{feature}").value(step)
            assert float(value) == scores.get(feature, 0.0)
    for column, expected in xgboost_trees(part).items():
        found = run.tensor(f"trees/{column}").value(step)
        np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32), err_msg=column)
    if kind == "gbtree":  # later rounds of dart scale the trees of earlier rounds
        expected = booster.predict(dvalid, iteration_range=(0, step + 1))
        np.testing.assert_allclose(run.tensor("predictions").value(step), expected, rtol=1e-5, atol=1e-6)
