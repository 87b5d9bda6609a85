"""LightGBM on dask: each worker records with its rank, the model is the same, and the run has all workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tests.boosting.tables import make_data

lightgbm = pytest.importorskip("lightgbm")
distributed: Any = pytest.importorskip("distributed")
array: Any = pytest.importorskip("dask.array")

from tdcore.hooks.lightgbm import HookCallback  # noqa: E402
from tdcore.hooks.lightgbm.callback import rank_and_world_size  # noqa: E402

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore"),  # of dask and of the processes that it starts
]
ROUNDS = 5


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


def rows_of_workers(client: Any) -> tuple[Any, Any]:
    """Put the same rows on each worker, because the model depends on which worker gets which rank."""
    workers = sorted(client.scheduler_info()["workers"])
    found = []
    for whole in make_data(rows=400).train:
        half = np.split(whole, 2)[0]
        sent = [client.scatter(half, workers=[worker], hash=False) for worker in workers]
        found.append(array.concatenate([array.from_delayed(f, half.shape, half.dtype) for f in sent]))
    return found[0], found[1]


def train(client: Any, callbacks: list[Any]) -> Any:
    parts = rows_of_workers(client)
    estimator = lightgbm.DaskLGBMClassifier(
        client=client, n_estimators=ROUNDS, num_leaves=5, min_child_samples=5, tree_learner="data", verbose=-1
    )
    return estimator.fit(*parts, eval_set=[parts], eval_names=["train"], callbacks=callbacks)


@pytest.mark.shows("LightGBM: workers of dask", "values right")
@pytest.mark.shows("LightGBM: workers of dask", "same training")
def test_each_worker_records_the_same_model_and_the_metrics(client: Any, tmp_path: Path) -> None:
    plain = train(client, [])
    callback = HookCallback(
        tmp_path,
        include_workers="all",
        include_collections=["trees", "feature_importance", "predictions"],
        save_config=td.SaveConfig(save_interval=1),
        train_data=make_data().train,
    )
    model = train(client, [callback])
    names = ("tree_structure", "tree_index")
    trees, plain_trees = (each.booster_.dump_model()["tree_info"] for each in (model, plain))
    assert [[tree[name] for name in names] for tree in trees] == [
        [tree[name] for name in names] for tree in plain_trees
    ]
    run = td.create_trial(tmp_path)
    assert run.workers() == ["worker_0", "worker_1"]
    loss = run.tensor("train-binary_logloss")
    losses = [[float(loss.value(step, worker=each)) for step in range(ROUNDS)] for each in run.workers()]
    assert model.evals_result_["train"]["binary_logloss"] in losses  # each worker has that of its rows
    for worker in run.workers():
        split = run.tensor("feature_importance/split/Column_0").value(ROUNDS - 1, worker=worker)
        assert float(split) == model.booster_.feature_importance("split")[0]
        np.testing.assert_array_equal(
            run.tensor("trees/Gain").value(ROUNDS - 1, worker=worker),
            run.tensor("trees/Gain").value(ROUNDS - 1, worker="worker_0"),
        )
    assert any("several workers" in note for note in run.notes()["not_captured"])


def test_one_worker_records_by_default(client: Any, tmp_path: Path) -> None:
    train(client, [HookCallback(tmp_path, save_config=td.SaveConfig(save_interval=2))])
    run = td.create_trial(tmp_path)
    assert run.workers() == ["worker_0"]
    assert run.tensor("train-binary_logloss").steps() == [0, 2, 4]


@pytest.mark.parametrize(
    ("machines", "port", "expected"),
    [
        ("", 12400, (0, 1)),
        ("10.1.1.1:12400", 12400, (0, 1)),
        ("127.0.0.1:5000,127.0.0.1:5001,127.0.0.1:5002", 5002, (2, 3)),
        ("203.0.113.7:12400,127.0.0.1:12400", 12400, (1, 2)),
    ],
)
def test_the_rank_is_the_position_among_the_machines(
    machines: str, port: int, expected: tuple[int, int]
) -> None:
    assert rank_and_world_size({"machines": machines, "local_listen_port": port}) == expected


def test_a_training_that_stops_early_is_closed_with_its_callback(tmp_path: Path) -> None:
    data = make_data(rows=200)
    callback = HookCallback(tmp_path, save_config=td.SaveConfig(save_interval=1))
    train_set = lightgbm.Dataset(*data.train)
    stopping = lightgbm.early_stopping(1, min_delta=1e9, verbose=False)
    lightgbm.train(
        {"objective": "binary", "verbose": -1, "num_threads": 1},
        train_set,
        20,
        valid_sets=[lightgbm.Dataset(*data.validation, reference=train_set)],
        valid_names=["valid"],
        callbacks=[stopping, callback],
    )
    hook = callback.hook
    del callback
    assert "closed" in repr(hook)
    assert len(td.create_trial(tmp_path).tensor("valid-binary_logloss").steps()) < 20
