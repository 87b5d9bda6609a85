"""The hook for XGBoost in cv(), in estimators, with early stopping, stop requests and errors."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.format.layout import stop_key
from tdcore.sinks import LocalSink
from tests.boosting.tables import Data, make_data, xgboost_trees
from tests.waiting import wait_until

xgboost: Any = pytest.importorskip("xgboost")

from tdcore.hooks.boosting import rounds  # noqa: E402
from tdcore.hooks.xgboost import Hook, HookCallback, get_hook  # noqa: E402
from tdcore.hooks.xgboost import model as booster_model  # noqa: E402
from tests.boosting.test_xgboost import ALL, make_hook, matrices, parameters_of, train  # noqa: E402

Callback: Any = xgboost.callback.TrainingCallback
BINARY = parameters_of("binary:logistic")


def pair(data: Data | None = None) -> tuple[Any, Any]:
    return matrices(data or make_data(), "binary:logistic")


@pytest.mark.shows("XGBoost: cv()", "values right")
@pytest.mark.shows("XGBoost: SHAP values", "values right")
@pytest.mark.shows("XGBoost: cv()", "same training")
def test_cv_records_means_deviations_and_each_fold(tmp_path: Path) -> None:
    dtrain, _ = pair(make_data(rows=240))
    arguments: dict[str, Any] = {"num_boost_round": 4, "nfold": 3, "seed": 1, "as_pandas": False}
    plain = xgboost.cv({**BINARY, "nthread": 1}, dtrain, **arguments)
    folds: list[Any] = []

    class Keep(Callback):  # type: ignore[misc]
        def after_training(self, model: Any) -> Any:
            folds.extend(fold.bst for fold in model.cvfolds)
            return model

    with make_hook(tmp_path, include_collections=ALL, train_data=dtrain) as hook:
        result = xgboost.cv({**BINARY, "nthread": 1}, dtrain, callbacks=[hook, Keep()], **arguments)
    assert result == plain
    run = td.create_trial(tmp_path)
    for name in ("train", "test"):
        for recorded, column in ((f"{name}-logloss", "mean"), (f"{name}-logloss-std", "std")):
            tensor = run.tensor(recorded)
            assert [float(tensor.value(step)) for step in range(4)] == plain[f"{name}-logloss-{column}"]
    assert "test-logloss-std" not in run.tensor_names(collection="losses")
    for number, booster in enumerate(folds):
        gain = booster.get_score(importance_type="gain")["f0"]
        assert float(run.tensor(f"fold_{number}/feature_importance/gain/f0").value(3)) == gain
        expected = xgboost_trees(booster)["Yes"]
        np.testing.assert_array_equal(run.tensor(f"fold_{number}/trees/Yes").value(3), expected)
        shap = np.abs(booster.predict(dtrain, pred_contribs=True)).mean(axis=0, dtype=np.float64)
        assert float(run.tensor(f"fold_{number}/average_shap/f1").value(3)) == shap[1]
    assert "fold_2/trees/ID" in run.tensor_names(collection="trees")


@pytest.mark.shows("XGBoost: estimators of scikit-learn", "values right")
@pytest.mark.shows("XGBoost: estimators of scikit-learn", "same training")
@pytest.mark.parametrize("task", ["classifier", "multi-class", "regressor", "ranker"])
def test_estimators_of_scikit_learn_are_recorded_and_unchanged(task: str, tmp_path: Path) -> None:
    kinds = {"classifier": (xgboost.XGBClassifier, 2), "multi-class": (xgboost.XGBClassifier, 3)}
    kinds |= {"regressor": (xgboost.XGBRegressor, 0), "ranker": (xgboost.XGBRanker, 3)}
    make, classes = kinds[task]
    data = make_data(classes=classes)
    groups = [np.repeat(np.arange(len(each)), each) for each in data.groups]
    options = {"qid": groups[0], "eval_qid": [groups[1]]} if task == "ranker" else {}

    def fit(callbacks: list[Any] | None) -> Any:
        estimator = make(n_estimators=5, max_depth=3, n_jobs=1, random_state=3, callbacks=callbacks)
        return estimator.fit(*data.train, eval_set=[data.validation], verbose=False, **options)

    plain = fit(None)
    with make_hook(tmp_path, include_collections=ALL, validation_data=data.validation) as hook:
        estimator = fit([hook])
    assert estimator.get_booster().save_raw() == plain.get_booster().save_raw()
    assert estimator.evals_result() == plain.evals_result()
    run = td.create_trial(tmp_path)
    assert not run.notes().get("faults")
    ((metric, values),) = estimator.evals_result()["validation_0"].items()
    assert [float(run.tensor(f"validation_0-{metric}").value(step)) for step in range(5)] == values
    np.testing.assert_array_equal(run.tensor("labels").value(4), data.validation[1].astype(np.float32))
    expected: Any = None
    if classes and task != "ranker":
        expected = estimator.predict_proba(data.validation[0])
    if task == "classifier":
        np.testing.assert_array_equal(run.tensor("predictions").value(4), expected[:, 1])
    elif expected is not None:
        np.testing.assert_array_equal(run.tensor("predictions").value(4), expected)
    else:
        np.testing.assert_array_equal(
            run.tensor("predictions").value(4), estimator.predict(data.validation[0])
        )


@pytest.mark.shows("XGBoost: estimators of scikit-learn", "nothing left behind")
def test_an_estimator_with_a_hook_can_be_cloned_searched_and_pickled(tmp_path: Path) -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV

    data = make_data()
    with make_hook(tmp_path) as hook:
        estimator = xgboost.XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1, callbacks=[hook])
        assert clone(estimator).callbacks[0] is hook
        assert copy.deepcopy(hook) is hook
        search = GridSearchCV(estimator, {"max_depth": [1, 2]}, cv=2).fit(*data.train)
        assert pickle.loads(pickle.dumps(search.best_estimator_)).predict(data.train[0]).size == 80
        assert hook.global_step == 3 * 5 - 1  # four fits of the search and the last one
    copied = pickle.loads(pickle.dumps(hook))
    assert "closed" in repr(copied)


@pytest.mark.shows("XGBoost: early stopping", "values right")
@pytest.mark.shows("XGBoost: early stopping", "same training")
@pytest.mark.parametrize("first", ["hook", "early stopping"])
@pytest.mark.parametrize("save_best", [False, True])
def test_the_last_round_of_early_stopping_is_recorded(first: str, save_best: bool, tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    parameters = {**BINARY, "eta": 1.0, "max_depth": 6}

    def stopper() -> Any:
        return xgboost.callback.EarlyStopping(rounds=2, save_best=save_best)

    plain, plain_history = train(parameters, dtrain, dvalid, [stopper()], rounds=100)
    with make_hook(tmp_path, include_collections=["trees"]) as hook:
        callbacks = [hook, stopper()] if first == "hook" else [stopper(), hook]
        booster, history = train(parameters, dtrain, dvalid, callbacks, rounds=100)
    assert booster.save_raw() == plain.save_raw()
    assert history == plain_history
    run = td.create_trial(tmp_path)
    values = history["validation"]["logloss"]
    assert len(values) < 100
    tensor = run.tensor("validation-logloss")
    assert [float(tensor.value(step)) for step in tensor.steps()] == values
    assert run.notes()["best_iteration"] == booster.best_iteration == int(np.argmin(values))
    assert run.notes()["best_score"] == booster.best_score


@pytest.mark.shows("XGBoost: stop request", "same training")
def test_a_stop_request_ends_the_training_like_early_stopping(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    requests: list[Any] = []

    class StopAt(Callback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if epoch == 2:
                LocalSink(tmp_path).put(stop_key(0), [b'{"reason": "enough"}'])
                wait_until(hook._control_changed, "the flusher passed the request on")
            return False

    hook = make_hook(tmp_path, on_stop=requests.append)
    booster, history = train(BINARY, dtrain, dvalid, [StopAt(), hook], rounds=50)
    hook.close()
    assert booster.num_boosted_rounds() == len(history["train"]["logloss"]) == 3
    assert [request.reason for request in requests] == ["enough"]
    plain, _ = train(BINARY, dtrain, dvalid, [], rounds=3)
    assert booster.save_raw() == plain.save_raw()


PLANTED = [
    (rounds.RoundRecorder, "scores"),
    (rounds.RoundRecorder, "model"),
    (rounds.RoundRecorder, "_settings"),
    (rounds.RoundRecorder, "_record"),
    *((booster_model.BoosterView, name) for name in ("importance", "trees", "labels", "predictions", "shap")),
    (booster_model.BoosterView, "settings"),
    (Hook, "_begin_step"),
    (Hook, "_mark"),
    (Hook, "_end_training"),
    (Hook, "_check_control"),
]


@pytest.mark.shows("XGBoost: errors in the hook", "same training")
@pytest.mark.parametrize(("owner", "name"), PLANTED, ids=lambda each: getattr(each, "__name__", each))
def test_an_error_in_the_hook_does_not_change_the_training(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtrain, dvalid = pair()
    plain, plain_history = train(BINARY, dtrain, dvalid, [])
    called: list[str] = []

    def broken(*arguments: Any, **options: Any) -> None:
        called.append(name)
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(owner, name, broken)
    hook = make_hook(tmp_path, include_collections=ALL, train_data=dtrain, validation_data=dvalid)
    if name == "_check_control":
        monkeypatch.setattr(hook, "_control_changed", lambda: True)
    booster, history = train(BINARY, dtrain, dvalid, [hook])
    hook.close()
    assert called
    assert booster.save_raw() == plain.save_raw()
    assert history == plain_history
    assert any("planted" in text for text in td.create_trial(tmp_path).notes()["faults"].values())


@pytest.mark.shows("XGBoost: rounds that save nothing", "cost")
def test_a_round_that_saves_nothing_only_counts_the_step(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    calls: list[str] = []
    hook = make_hook(
        tmp_path, include_collections=ALL, save_config=td.SaveConfig(save_interval=1000), train_data=dtrain
    )

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "/hooks/" in frame.f_code.co_filename.replace("\\", "/"):
            calls.append(frame.f_code.co_name)

    class Watch(Callback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            calls.append("|")
            return False

    sys.setprofile(profile)
    try:
        train(BINARY, dtrain, dvalid, [hook, Watch()])
    finally:
        sys.setprofile(None)
    hook.close()
    each = " ".join(calls).split("|")[1:-1]
    assert {text.strip() for text in each[1:]} == {
        "before_iteration timed enter after_iteration _after_round _begin_step begin begin"
    }


def test_train_data_of_a_wrong_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_data must be data of the library or a pair"):
        make_hook(tmp_path, train_data=np.zeros((3, 2)))
    with pytest.raises(ConfigError, match="got tuple"):
        make_hook(tmp_path, validation_data=("file.csv", "csv"))


def test_data_that_is_set_later_is_used(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    with make_hook(tmp_path, include_collections=["predictions"]) as hook:
        hook.train_data = dtrain
        hook.validation_data = dvalid
        train(BINARY, dtrain, dvalid, [hook])
    run = td.create_trial(tmp_path)
    assert run.tensor("predictions").value(0).shape == (80,)


@pytest.mark.shows("XGBoost: hyper-parameters", "values right")
def test_given_hyper_parameters_replace_those_of_the_model(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    given = {"eta": 0.25, "objective": "mine", "flag": True, "nothing": None}
    with make_hook(tmp_path, include_collections=["hyperparameters"], hyperparameters=given) as hook:
        train(BINARY, dtrain, dvalid, [hook])
    run = td.create_trial(tmp_path)
    assert run.tensor_names(collection="hyperparameters") == ["hyperparameters/eta", "hyperparameters/flag"]
    assert float(run.tensor("hyperparameters/eta").value(0)) == 0.25
    assert run.notes()["hyperparameters"] == {"objective": "mine"}


@pytest.mark.shows("XGBoost: hyper-parameters", "values right")
def test_a_changed_learning_rate_is_recorded_again(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    rates = [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    with make_hook(tmp_path, include_collections=["hyperparameters"]) as hook:
        schedule = xgboost.callback.LearningRateScheduler(rates)
        train(BINARY, dtrain, dvalid, [schedule, hook])
    eta = td.create_trial(tmp_path).tensor("hyperparameters/eta")
    assert {step: float(eta.value(step)) for step in eta.steps()} == {0: 0.5, 2: 0.25, 4: 0.125}


def test_two_trainings_with_one_hook_continue_the_steps(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    with make_hook(tmp_path) as hook:
        booster, first = train(BINARY, dtrain, dvalid, [hook], rounds=3)
        _, second = train(BINARY, dtrain, dvalid, [hook], rounds=2, xgb_model=booster)
    tensor = td.create_trial(tmp_path).tensor("train-logloss")
    values = first["train"]["logloss"] + second["train"]["logloss"]
    assert [float(tensor.value(step)) for step in tensor.steps()] == values


def test_without_a_save_config_metrics_are_saved_in_every_round(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    with Hook(tmp_path, include_collections=["trees"], flusher="thread") as hook:
        train(BINARY, dtrain, dvalid, [hook], rounds=12)
    run = td.create_trial(tmp_path)
    assert run.tensor("train-logloss").steps() == list(range(12))
    assert run.tensor("trees/ID").steps() == [0, 10]


@pytest.mark.shows("XGBoost: metrics", "values right")
def test_a_metric_that_grows_is_no_loss(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    metrics = ["auc", "logloss", "error@0.7", "map"]

    def share(predictions: Any, data: Any) -> tuple[str, float]:
        return "share", float(np.mean((predictions > 0) == data.get_label()))

    with make_hook(tmp_path) as hook:
        train({**BINARY, "eval_metric": metrics}, dtrain, dvalid, [hook], sets=1, custom_metric=share)
    run = td.create_trial(tmp_path)
    assert run.tensor_names(collection="losses") == ["train-error@0.7", "train-logloss"]
    assert len(run.tensor_names(collection="metrics")) == 5


def test_what_a_model_does_not_have_is_noted(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    with make_hook(tmp_path, include_collections=["trees", "predictions", "full_shap"]) as hook:
        train({"booster": "gblinear"}, dtrain, dvalid, [hook], sets=0)
    notes = td.create_trial(tmp_path).notes()
    assert notes["not_captured"] == ["trees: the booster gblinear has no trees"]
    assert notes["not_recorded"] == [
        "collection 'trees': no tensor was captured",
        "collection 'predictions': no tensor was captured; give the hook validation_data",
        "collection 'full_shap': no tensor was captured; give the hook train_data",
    ]


def test_a_callback_creates_the_hook_for_one_training(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    data = make_data()
    callback = HookCallback(
        tmp_path,
        save_config=td.SaveConfig(save_interval=1),
        validation_data=data.validation,
        include_collections=["labels"],
        flusher="thread",
    )
    callback = pickle.loads(pickle.dumps(callback))
    train(BINARY, dtrain, dvalid, [callback])
    assert callback.hook is not None
    assert "closed" in repr(callback.hook)
    assert td.create_trial(tmp_path).tensor("labels").steps() == list(range(6))


def test_the_current_hook_is_that_of_the_script(tmp_path: Path) -> None:
    with make_hook(tmp_path) as hook:
        assert get_hook() is hook
    assert get_hook() is None


def test_trees_with_several_values_per_leaf_are_noted(tmp_path: Path) -> None:
    values, labels = make_data(classes=0).validation
    dtrain = xgboost.DMatrix(values, np.stack([labels, -labels], axis=1))
    settings = {"multi_strategy": "multi_output_tree", "tree_method": "hist", "nthread": 1}
    with make_hook(tmp_path, include_collections=["trees", "average_shap"], train_data=dtrain) as hook:
        xgboost.train(settings, dtrain, 3, callbacks=[hook])
    notes = td.create_trial(tmp_path).notes()
    assert not notes.get("faults")
    assert notes["not_captured"] == [
        "trees: trees with several values per leaf are not recorded",
        "SHAP values: XGBoost has none for trees with several values per leaf",
    ]


def test_a_hook_is_made_from_a_json_file(tmp_path: Path) -> None:
    dtrain, dvalid = pair()
    file = tmp_path / "hook.json"
    collections = [{"CollectionName": "labels"}, {"CollectionName": "losses"}]
    parameters = {"save_interval": "2"}
    document = {
        "LocalPath": str(tmp_path / "run"),
        "HookParameters": parameters,
        "CollectionConfigurations": collections,
    }
    file.write_text(json.dumps(document))
    with Hook.create_from_json_file(file, validation_data=dvalid, flusher="thread") as hook:
        train(BINARY, dtrain, dvalid, [hook])
    run = td.create_trial(tmp_path / "run")
    assert run.tensor("labels").steps() == run.tensor("train-logloss").steps() == [0, 2, 4]
