"""The hook for LightGBM: recorded values equal those that LightGBM returns, and the model stays the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.format.layout import stop_key
from tdcore.sinks import LocalSink
from tests.boosting.tables import Data, make_data
from tests.waiting import wait_until

lightgbm = pytest.importorskip("lightgbm")

from tdcore.hooks.boosting import rounds  # noqa: E402
from tdcore.hooks.lightgbm import Hook, get_hook  # noqa: E402
from tdcore.hooks.lightgbm import model as booster_model  # noqa: E402

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


def numbers_of(frame: Any, column: str, splits: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Numbers of nodes: "3-S1" is 1, and "3-L1" is 1 after the splits of tree 3."""
    found = []
    for text in frame[column]:
        if not isinstance(text, str):
            found.append(np.nan)
            continue
        tree, _, node = text.partition("-")
        number = int(node[1:] or 0)
        found.append(number + (splits[int(tree)] if node.startswith("L") else 0))
    return np.array(found, dtype=np.float64)


def compare_trees(run: Any, step: int, booster: Any) -> None:
    frame = booster.trees_to_dataframe()
    frame = frame[frame["tree_index"] < (step + 1) * booster.num_model_per_iteration()]
    is_split = frame["split_feature"].notna()
    splits = np.bincount(frame["tree_index"], weights=is_split).astype(np.int64)
    frame = frame.assign(own=numbers_of(frame, "node_index", splits))
    frame = frame.sort_values(["tree_index", "own"])
    is_split = frame["split_feature"].notna().to_numpy()
    yes, no = numbers_of(frame, "left_child", splits), numbers_of(frame, "right_child", splits)
    features = booster.feature_name()
    numerical = (frame["decision_type"] == "<=").to_numpy()
    expected = {
        "Tree": frame["tree_index"],
        "Node": frame["own"],
        "ID": frame["own"],
        "Feature": [features.index(each) if isinstance(each, str) else -1 for each in frame["split_feature"]],
        "Split": [
            float(each) if ok else np.nan for each, ok in zip(frame["threshold"], numerical, strict=True)
        ],
        "Yes": yes,
        "No": no,
        "Missing": np.where(frame["missing_direction"] == "left", yes, no),
        "Gain": np.where(is_split, frame["split_gain"], frame["value"]),
        "Cover": frame["weight"],
        "Value": frame["value"],
        "Count": frame["count"],
    }
    for column, values in expected.items():
        found = run.tensor(f"trees/{column}").value(step)
        several = splits[frame["tree_index"].to_numpy()] > 0  # a tree of one leaf has no weight and count
        keep = several if column in ("Cover", "Count") else np.ones(several.size, dtype=np.bool_)
        np.testing.assert_array_equal(
            found[keep].astype(np.float64), np.asarray(values, dtype=np.float64)[keep], err_msg=column
        )
    by_category = (frame["decision_type"] == "==").to_numpy()
    if by_category.any():
        rows = [
            (row, int(category))
            for row, text in enumerate(frame["threshold"])
            if by_category[row]
            for category in str(text).split("||")
        ]
        np.testing.assert_array_equal(run.tensor("trees/Category").value(step), rows)


@st.composite
def trainings(draw: st.DrawFn) -> dict[str, Any]:
    boosting = draw(st.sampled_from(["gbdt", "dart", "rf"]))
    parameters: dict[str, Any] = {
        "objective": draw(st.sampled_from(sorted(OBJECTIVES))),
        "boosting": boosting,
    }
    if parameters["objective"].startswith("multi"):
        parameters["num_class"] = OBJECTIVES[parameters["objective"]]
    if boosting == "rf" or draw(st.booleans()):
        parameters |= {"bagging_freq": 1, "bagging_fraction": 0.7}
    if boosting == "dart":
        parameters["drop_rate"] = 0.5
    parameters["num_threads"] = draw(
        st.sampled_from([1, 1, 1, 2])
    )  # several threads are slow on a busy machine
    return {
        "parameters": parameters,
        "categorical": draw(st.booleans()),
        "sets": draw(st.integers(0, 2)),
        "interval": draw(st.sampled_from([1, 2, 4])),
        "stopping": draw(st.booleans()),
        "shap": draw(st.booleans()),
    }


@pytest.mark.shows("LightGBM: train()", "values right")
@pytest.mark.shows("LightGBM: metrics", "values right")
@pytest.mark.shows("LightGBM: predictions and labels", "values right")
@pytest.mark.shows("LightGBM: feature importance", "values right")
@pytest.mark.shows("LightGBM: trees", "values right")
@pytest.mark.shows("LightGBM: categorical features", "values right")
@pytest.mark.shows("LightGBM: SHAP values", "values right")
@pytest.mark.shows("LightGBM: boosting dart and rf", "values right")
@pytest.mark.shows("LightGBM: train()", "same training")
@pytest.mark.shows("LightGBM: metrics", "same training")
@pytest.mark.shows("LightGBM: predictions and labels", "same training")
@pytest.mark.shows("LightGBM: feature importance", "same training")
@pytest.mark.shows("LightGBM: trees", "same training")
@pytest.mark.shows("LightGBM: categorical features", "same training")
@pytest.mark.shows("LightGBM: SHAP values", "same training")
@pytest.mark.shows("LightGBM: hyper-parameters", "same training")
@pytest.mark.shows("LightGBM: boosting dart and rf", "same training")
@pytest.mark.shows("LightGBM: early stopping", "same training")
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(chosen=trainings())
@pytest.mark.full
def test_values_are_those_of_lightgbm_and_the_model_is_the_same(
    chosen: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    parameters, sets, interval = chosen["parameters"], chosen["sets"], chosen["interval"]
    data = data_of(parameters["objective"], categorical=chosen["categorical"])
    stops = chosen["stopping"] and sets and parameters["boosting"] != "dart"
    place = tmp_path_factory.mktemp("run")

    def stopper() -> list[Any]:
        return [lightgbm.early_stopping(1, verbose=False)] if stops else []

    plain, plain_history = train(parameters, data, stopper(), sets=sets)
    shap = {"train_data": data.train} if chosen["shap"] else {}
    names = [each for each in ALL if chosen["shap"] or "shap" not in each]
    when = td.SaveConfig(save_interval=interval)
    with make_hook(
        place, include_collections=names, save_config=when, validation_data=data.validation, **shap
    ) as hook:
        booster, history = train(parameters, data, [*stopper(), hook], sets=sets)
    assert booster.model_to_string() == plain.model_to_string()
    assert history == plain_history
    run = td.create_trial(place)
    assert not run.notes().get("faults")
    for name, metrics in history.items():
        for metric, values in metrics.items():
            tensor = run.tensor(f"{name}-{metric}")
            assert [float(tensor.value(step)) for step in tensor.steps()] == values[::interval]
    last = run.tensor("labels").steps()[-1]
    np.testing.assert_array_equal(run.tensor("labels").value(last), data.validation[1])
    if parameters["boosting"] == "dart" and last + 1 < booster.num_trees():
        return  # later rounds have scaled the trees of this round
    first = {"num_iteration": last + 1}
    expected = booster.predict(data.validation[0], **first)
    np.testing.assert_allclose(run.tensor("predictions").value(last), expected, rtol=1e-12, atol=1e-12)
    compare_trees(run, last, booster)
    for kind in ("split", "gain"):
        for at, value in enumerate(booster.feature_importance(kind, iteration=last + 1)):
            name = f"feature_importance/{kind}/{booster.feature_name()[at]}"
            assert float(run.tensor(name).value(last)) == value
    if chosen["shap"]:
        models, features = booster.num_model_per_iteration(), booster.num_feature()
        loaded = lightgbm.Booster(model_str=booster.model_to_string(num_iteration=-1))
        shap_values = loaded.predict(data.train[0], pred_contrib=True, **first)
        shaped = shap_values.reshape(len(shap_values), models, features + 1)
        for at, name in enumerate([*booster.feature_name(), "bias"]):
            full = run.tensor(f"full_shap/{name}").value(last).reshape(-1, models)
            np.testing.assert_allclose(full, shaped[:, :, at], rtol=1e-9, atol=1e-12)
            if name != "bias":
                mean = np.atleast_1d(run.tensor(f"average_shap/{name}").value(last))
                np.testing.assert_allclose(mean, np.abs(shaped[:, :, at]).mean(axis=0), rtol=1e-9, atol=1e-12)


@pytest.mark.shows("LightGBM: cv()", "values right")
@pytest.mark.shows("LightGBM: cv()", "same training")
def test_cv_records_means_deviations_and_each_fold(tmp_path: Path) -> None:
    data = data_of("binary")
    parameters = {"objective": "binary", "verbose": -1, "num_threads": 1}

    def cross(callbacks: list[Any]) -> Any:
        return lightgbm.cv(
            parameters,
            lightgbm.Dataset(*data.train),
            4,
            nfold=3,
            seed=1,
            callbacks=callbacks,
            return_cvbooster=True,
        )

    plain = cross([])
    with make_hook(tmp_path, include_collections=ALL) as hook:
        result = cross([hook])
    boosters, plain_boosters = result.pop("cvbooster").boosters, plain.pop("cvbooster").boosters
    assert result == plain
    assert [each.model_to_string() for each in boosters] == [
        each.model_to_string() for each in plain_boosters
    ]
    run = td.create_trial(tmp_path)
    for recorded, column in (("valid-binary_logloss", "mean"), ("valid-binary_logloss-std", "stdv")):
        tensor = run.tensor(recorded)
        values = [float(tensor.value(step)) for step in range(4)]
        assert values == plain[f"valid binary_logloss-{column}"]
    for number, booster in enumerate(boosters):
        name = f"fold_{number}/feature_importance/gain/{booster.feature_name()[0]}"
        assert float(run.tensor(name).value(3)) == booster.feature_importance("gain")[0]


@pytest.mark.shows("LightGBM: estimators of scikit-learn", "values right")
@pytest.mark.shows("LightGBM: estimators of scikit-learn", "same training")
@pytest.mark.parametrize("task", ["classifier", "regressor", "ranker"])
def test_estimators_of_scikit_learn_are_recorded_and_unchanged(task: str, tmp_path: Path) -> None:
    kinds = {
        "classifier": (lightgbm.LGBMClassifier, "multiclass"),
        "regressor": (lightgbm.LGBMRegressor, "regression"),
        "ranker": (lightgbm.LGBMRanker, "lambdarank"),
    }
    make, objective = kinds[task]
    data = data_of(objective)
    groups = {"group": data.groups[0], "eval_group": [data.groups[1]]} if task == "ranker" else {}

    def fit(callbacks: list[Any] | None) -> Any:
        estimator = make(n_estimators=5, num_leaves=5, n_jobs=1, random_state=3, verbose=-1)
        return estimator.fit(
            *data.train,
            eval_X=(data.validation[0],),
            eval_y=(data.validation[1],),
            callbacks=callbacks,
            **groups,
        )

    plain = fit(None)
    with make_hook(tmp_path, include_collections=ALL, validation_data=data.validation) as hook:
        estimator = fit([hook])
    assert estimator.booster_.model_to_string() == plain.booster_.model_to_string()
    assert estimator.evals_result_ == plain.evals_result_
    run = td.create_trial(tmp_path)
    for metric, values in estimator.evals_result_["valid_0"].items():
        assert [float(run.tensor(f"valid_0-{metric}").value(step)) for step in range(5)] == values
    expected = estimator.booster_.predict(data.validation[0])
    np.testing.assert_array_equal(run.tensor("predictions").value(4), expected)


@pytest.mark.shows("LightGBM: stop request", "same training")
def test_a_stop_request_ends_the_training_like_early_stopping(tmp_path: Path) -> None:
    data = data_of("binary")

    def stop(env: Any) -> None:
        if env.iteration == 2:
            LocalSink(tmp_path).put(stop_key(0), [b'{"reason": "enough"}'])
            wait_until(hook._control_changed, "the flusher passed the request on")

    hook = make_hook(tmp_path)
    booster, history = train({"objective": "binary"}, data, [stop, hook], rounds=50)
    hook.close()
    assert booster.num_trees() == len(history["valid"]["binary_logloss"]) == booster.best_iteration == 3
    plain, _ = train({"objective": "binary"}, data, [], rounds=3)
    assert [each.count("Tree=") for each in (booster.model_to_string(), plain.model_to_string())] == [3, 3]
    np.testing.assert_array_equal(booster.predict(data.train[0]), plain.predict(data.train[0]))


PLANTED = [
    (rounds.RoundRecorder, "scores"),
    (rounds.RoundRecorder, "model"),
    (rounds.RoundRecorder, "_record"),
    *((booster_model.BoosterView, name) for name in ("importance", "trees", "labels", "predictions", "shap")),
    (booster_model.BoosterView, "settings"),
    (Hook, "_begin_step"),
    (Hook, "_mark"),
]


@pytest.mark.shows("LightGBM: errors in the hook", "same training")
@pytest.mark.parametrize(("owner", "name"), PLANTED, ids=lambda each: getattr(each, "__name__", each))
def test_an_error_in_the_hook_does_not_change_the_training(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of("binary")
    plain, plain_history = train({"objective": "binary"}, data, [])

    def broken(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(owner, name, broken)
    hook = make_hook(
        tmp_path, include_collections=ALL, train_data=data.train, validation_data=data.validation
    )
    booster, history = train({"objective": "binary"}, data, [hook])
    hook.close()
    assert booster.model_to_string() == plain.model_to_string()
    assert history == plain_history
    assert any("planted" in text for text in td.create_trial(tmp_path).notes()["faults"].values())


def test_a_dataset_that_holds_its_data_is_read_and_another_one_is_refused(tmp_path: Path) -> None:
    data = data_of("binary")
    with make_hook(tmp_path, include_collections=["labels"]) as hook:
        hook.validation_data = lightgbm.Dataset(*data.validation)
        train({"objective": "binary"}, data, [hook])
        freed = lightgbm.Dataset(*data.train).construct()
        with pytest.raises(ConfigError, match="free_raw_data=False"):
            hook.train_data = freed
        with pytest.raises(ConfigError, match="or a pair"):
            hook.train_data = data.train[0]
    assert td.create_trial(tmp_path).tensor("labels").value(0).size == 120


@pytest.mark.shows("LightGBM: hyper-parameters", "values right")
def test_a_changed_learning_rate_is_recorded_again(tmp_path: Path) -> None:
    rates = [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    with make_hook(tmp_path, include_collections=["hyperparameters"]) as hook:
        schedule = lightgbm.reset_parameter(learning_rate=rates)
        train({"objective": "binary"}, data_of("binary"), [schedule, hook])
    rate = td.create_trial(tmp_path).tensor("hyperparameters/learning_rate")
    assert {step: float(rate.value(step)) for step in rate.steps()} == {0: 0.5, 2: 0.25, 4: 0.125}


def test_a_hook_in_another_process_is_closed_and_the_current_one_is_found(tmp_path: Path) -> None:
    with make_hook(tmp_path) as hook:
        assert get_hook() is hook
        assert "closed" in repr(pickle.loads(pickle.dumps(hook)))


@pytest.mark.shows("LightGBM: rounds that save nothing", "cost")
def test_a_round_that_saves_nothing_only_counts_the_step(tmp_path: Path) -> None:
    data = data_of("binary")
    calls: list[str] = []
    when = td.SaveConfig(save_interval=1000)
    hook = make_hook(tmp_path, include_collections=ALL, save_config=when, train_data=data.train)

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "/hooks/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        train({"objective": "binary"}, data, [hook, lambda env: calls.append("|")])
    finally:
        sys.setprofile(None)
    hook.close()
    each = " ".join(calls).split("|")[1:]
    assert {text.strip() for text in each[2:]} == {"__call__ _after_round _begin_step begin"}


@pytest.mark.shows("XGBoost: train()", "nothing left behind")
@pytest.mark.shows("LightGBM: train()", "nothing left behind")
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_hook_that_is_closed_leaves_nothing_behind(library: str, tmp_path: Path) -> None:
    parameters = "{'objective': 'binary', 'verbose': -1}" if library == "lightgbm" else "{}"
    matrix = "Dataset" if library == "lightgbm" else "DMatrix"
    code = f"""
import gc, os, threading, weakref
import numpy as np, psutil, {library}
from tdcore.hooks.{library} import Hook
values = np.random.default_rng(0).normal(size=(60, 3))
data = (values, (values[:, 0] > 0).astype(float))
here = psutil.Process()
def once():
    hook = Hook({str(tmp_path)!r}, save_all=True, train_data=data)
    model = {library}.train({parameters}, {library}.{matrix}(*data), 3, callbacks=[hook])
    hook.close()
    return weakref.ref(hook), weakref.ref(model)
once()
before = here.num_fds(), threading.active_count(), len(here.children(recursive=True))
references = once()
gc.collect()
assert [each() for each in references] == [None, None], references
assert (here.num_fds(), threading.active_count(), len(here.children(recursive=True))) == before
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
