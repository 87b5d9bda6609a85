"""Workers of dask that train one model of XGBoost: each records, and the run is read together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tests.boosting.tables import make_data

pytest.importorskip("xgboost")
distributed: Any = pytest.importorskip("distributed")
array: Any = pytest.importorskip("dask.array")

from tdcore.hooks.xgboost import HookCallback  # noqa: E402

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore"),  # of dask and of the processes that it starts
]
BINARY = {"objective": "binary:logistic", "max_depth": 3, "tree_method": "hist"}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


def train(client: Any, callbacks: list[Any]) -> Any:
    from xgboost import dask

    values, labels = make_data(rows=400).train
    parts = array.from_array(values, chunks=(100, -1)), array.from_array(labels, chunks=100)
    matrix = dask.DaskDMatrix(client, *parts)
    return dask.train(
        client, BINARY, matrix, num_boost_round=5, evals=[(matrix, "train")], callbacks=callbacks
    )


@pytest.mark.shows("XGBoost: workers of dask", "values right")
@pytest.mark.shows("XGBoost: workers of dask", "same training")
def test_each_worker_records_the_same_model_and_the_metrics(client: Any, tmp_path: Path) -> None:
    plain = train(client, [])
    callback = HookCallback(
        tmp_path,
        include_workers="all",
        include_collections=["trees", "feature_importance", "predictions"],
        save_config=td.SaveConfig(save_interval=1),
        train_data=make_data().train,
    )
    result = train(client, [callback])
    assert result["booster"].save_raw() == plain["booster"].save_raw()
    assert result["history"] == plain["history"]
    run = td.create_trial(tmp_path)
    assert run.workers() == ["worker_0", "worker_1"]
    loss = run.tensor("train-logloss")
    for worker in run.workers():
        values = [float(loss.value(step, worker=worker)) for step in range(5)]
        assert values == result["history"]["train"]["logloss"]
        weight = run.tensor("feature_importance/weight/f0").value(4, worker=worker)
        assert float(weight) == result["booster"].get_score(importance_type="weight")["f0"]
        np.testing.assert_array_equal(
            run.tensor("trees/Gain").value(4, worker=worker),
            run.tensor("trees/Gain").value(4, worker="worker_0"),
        )
    assert any("several workers" in note for note in run.notes()["not_captured"])


def test_one_worker_records_by_default(client: Any, tmp_path: Path) -> None:
    train(client, [HookCallback(tmp_path, save_config=td.SaveConfig(save_interval=2))])
    run = td.create_trial(tmp_path)
    assert run.workers() == ["worker_0"]
    assert run.tensor("train-logloss").steps() == [0, 2, 4]
