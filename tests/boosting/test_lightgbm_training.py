"""The hook for LightGBM in every way to train, with errors, and at the end of a training."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.format.layout import stop_key
from tdcore.sinks import LocalSink
from tests.waiting import wait_until

lightgbm = pytest.importorskip("lightgbm")

from tdcore.hooks.boosting import rounds  # noqa: E402
from tdcore.hooks.lightgbm import Hook, get_hook  # noqa: E402
from tdcore.hooks.lightgbm import model as booster_model  # noqa: E402
from tests.boosting.lightgbm_trainings import ALL, data_of, make_hook, train  # noqa: E402


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
    steps = "__call__ _after_round _begin_step begin begin"  # then the stopwatch, of the next update
    assert {text.strip() for text in each[2:-1]} == {f"{steps} timed enter"}


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
