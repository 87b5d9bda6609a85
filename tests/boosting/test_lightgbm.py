"""The hook for LightGBM: recorded values equal those that LightGBM returns, and the model stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdcore as td

lightgbm = pytest.importorskip("lightgbm")

from tests.boosting.lightgbm_trainings import ALL, OBJECTIVES, data_of, make_hook, train  # noqa: E402


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
