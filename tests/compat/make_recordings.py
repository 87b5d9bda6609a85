"""Writes tests/data/smdebug_<kind>: small recordings of smdebug 1.0.34, and what smdebug's own trial reads.

    .venvs/smdebug/bin/python tests/compat/make_recordings.py pytorch
    .venvs/smdebug/bin/python tests/compat/make_recordings.py scripts
    .venvs/smdebug-xgboost/bin/python tests/compat/make_recordings.py xgboost
    .venvs/smdebug-xgboost/bin/python tests/compat/make_recordings.py scripts_xgboost
    .venvs/smdebug-keras/bin/python tests/compat/make_recordings.py keras

`python3 scripts/make_peers.py` creates the environments. A recording is kept: the script never writes one
again. smdebug_<kind>.json has the names, steps, modes, workers, collections and reductions that smdebug's
trial returns, and smdebug_<kind>.npz the values, by "<name>|<step>|<worker>". tests/compat compares tdcore
with them. smdebug_scripts.json and smdebug_scripts_xgboost.json have the reports of tests/scripts/older_*.py.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "data"


def record_pytorch(out: str) -> None:
    """Train on two ranks, each in its own process."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train_rank, args=(out, rank)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        assert process.exitcode == 0


def train_rank(out: str, rank: int) -> None:
    """Train one rank with several collections, reductions, modes and dtypes."""
    logging.disable(logging.CRITICAL)
    import smdebug.pytorch as smd
    import torch
    from torch import nn

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    criterion = nn.CrossEntropyLoss()
    hook = smd.Hook(
        out_dir=out,
        save_config=smd.SaveConfig(save_interval=2),
        include_collections=[
            "weights", "gradients", "biases", "losses", "relu", "logits", "extra", "shapes",
        ],
        include_workers="all",
    )  # fmt: skip
    relu, logits = hook.get_collection("relu"), hook.get_collection("logits")
    relu.include("relu|1_output")
    relu.reduction_config = smd.ReductionConfig(
        reductions=["min", "max", "mean"], abs_reductions=["max"], norms=["l1", "l2"]
    )
    logits.include("2_output|Sequential_output")
    logits.reduction_config = smd.ReductionConfig(reductions=["std"], norms=["l2"], save_raw_tensor=True)
    hook.get_collection("extra").include("^extra/")
    shapes = hook.get_collection("shapes")
    shapes.include("0_output_0")
    shapes.reduction_config = smd.ReductionConfig(save_shape=True)
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.tensor([0, 1])
    for epoch in range(2):
        hook.set_mode(smd.modes.TRAIN)
        for step in range(3):
            optimizer.zero_grad()
            loss = criterion(model(torch.randn(2, 3)), target)
            loss.backward()
            optimizer.step()
            hook.save_scalar("accuracy", 0.25 * step, sm_metric=False)
            if epoch == 0 and step == 2:
                for name, value in extras(torch).items():
                    hook.save_tensor(f"extra/{name}", value, collections_to_write="extra")
        hook.set_mode(smd.modes.EVAL)
        with torch.no_grad():
            criterion(model(torch.randn(2, 3)), target)
    hook.close()
    torch.distributed.destroy_process_group()


def extras(torch: Any) -> dict[str, Any]:
    """Return tensors of further dtypes and shapes."""
    return {
        "f16": torch.tensor([1.5, float("nan"), float("inf")], dtype=torch.float16),
        "f64": torch.tensor([[1e-300, 2.0]], dtype=torch.float64),
        "i64": torch.arange(4) - 2,
        "i32": torch.arange(3, dtype=torch.int32),
        "u8": torch.tensor([[0], [255]], dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "complex": torch.tensor([1 + 2j, 3 - 4j]),
    }


def record_xgboost(out: str) -> None:
    """Train trees with metrics, importances, trees, predictions and hyper-parameters."""
    import smdebug.xgboost as smd
    import xgboost

    random = np.random.default_rng(0)
    features = random.standard_normal((20, 3)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.float32)
    train = xgboost.DMatrix(features[:14], labels[:14])
    test = xgboost.DMatrix(features[14:], labels[14:])
    parameters = {
        "objective": "binary:logistic",
        "max_depth": 2,
        "eval_metric": ["logloss", "error"],
        "seed": 1,
    }
    hook = smd.Hook(
        out_dir=out,
        save_config=smd.SaveConfig(save_interval=2),
        include_collections=[
            "metrics", "losses", "feature_importance", "average_shap", "trees", "labels", "predictions",
            "hyperparameters",
        ],
        train_data=train,
        validation_data=test,
        hyperparameters=parameters,
    )  # fmt: skip
    xgboost.train(
        parameters, train, num_boost_round=5, evals=[(train, "train"), (test, "validation")],
        callbacks=[hook], verbose_eval=False,
    )  # fmt: skip
    hook.close()


def record_keras(out: str) -> None:
    """Train a small network of Keras with fit() and evaluate it."""
    import smdebug.tensorflow as smd
    import tensorflow as tf

    tf.random.set_seed(0)
    hook = smd.KerasHook(
        out_dir=out,
        save_config=smd.SaveConfig(save_interval=2),
        include_collections=["weights", "biases", "losses", "metrics", "outputs"],
    )
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation="relu"), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    random = np.random.default_rng(0)
    x, y = random.standard_normal((16, 4)), random.standard_normal((16, 1))
    model.fit(x, y, batch_size=4, epochs=1, verbose=0, callbacks=[hook], validation_data=(x[:4], y[:4]))
    hook.close()


def report(script: str, *arguments: str, **environment: str) -> Any:
    """Run a script of tests/scripts; return the report that it prints, or None."""
    run = subprocess.run(
        [sys.executable, str(FOLDER.parent / "scripts" / script), *arguments],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(run.stdout.partition("REPORT ")[2] or "null")


def scripts(folder: str) -> dict[str, Any]:
    """Return the reports of the scripts for PyTorch, for each way to configure the hook."""
    report("older_pytorch.py", "--out_dir", f"{folder}/arguments")
    configuration = Path(folder) / "hook.json"
    configuration.write_text(json.dumps(hook_configuration(f"{folder}/configuration")))
    report("older_pytorch.py", SMDEBUG_CONFIG_FILE_PATH=str(configuration))
    return {each: report("older_analysis.py", f"{folder}/{each}") for each in ("arguments", "configuration")}


def hook_configuration(out: str) -> dict[str, Any]:
    """Return the JSON configuration of a hook, as SageMaker writes it."""
    return {
        "S3OutputPath": "s3://bucket/prefix",
        "LocalPath": out,
        "HookParameters": {"save_interval": "3"},
        "CollectionConfigurations": [{"CollectionName": name} for name in ("gradients", "weights", "losses")],
    }


def scripts_xgboost(folder: str) -> dict[str, Any]:
    """Return the report of the script for XGBoost."""
    return {"xgboost": report("older_xgboost.py", "--out_dir", f"{folder}/run")}


REPORTS = {"scripts": scripts, "scripts_xgboost": scripts_xgboost}
RECORDERS: dict[str, Callable[[str], None]] = {
    "pytorch": record_pytorch,
    "xgboost": record_xgboost,
    "keras": record_keras,
}


def describe(out: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what smdebug's own trial reads: a document, and the values."""
    from smdebug import modes
    from smdebug.trials import create_trial

    trial = create_trial(out)
    document: dict[str, Any] = {
        "steps": trial.steps(),
        "mode_steps": {mode.name: trial.steps(mode=mode) for mode in trial.modes()},
        "workers": sorted(trial.workers()),
        "modes_of_steps": {
            str(step): [trial.mode(step).name, trial.mode_step(step)] for step in trial.steps()
        },
        "collections": {
            name: sorted(trial.tensor_names(collection=name)) for name in sorted(trial.collections())
        },
        "tensors": {},
    }
    values: dict[str, Any] = {}
    for name in sorted(trial.tensor_names()):
        tensor = trial.tensor(name)
        entry: dict[str, Any] = {
            "steps": tensor.steps(mode=modes.GLOBAL, show_incomplete_steps=True),
            "reductions": {},
            "text": [],
        }
        for step in entry["steps"]:
            for worker in tensor.workers(step):
                key = f"{name}|{step}|{worker}"
                try:
                    value = np.asarray(tensor.value(step, worker=worker))
                except Exception:  # only its reductions or its shape were saved
                    value = None
                if value is not None and value.dtype.kind in "biufc":
                    values[key] = value
                elif value is not None:
                    entry["text"].append(key)
                found = tensor.reduction_values(step, worker=worker) or {}
                if found:
                    entry["reductions"][key] = {
                        f"{'abs_' if absolute else ''}{reduction}": float(number)
                        for (reduction, absolute), number in found.items()
                    }
        document["tensors"][name] = entry
    return document, values


def main() -> int:
    kind = sys.argv[1]
    out, description = FOLDER / f"smdebug_{kind}", FOLDER / f"smdebug_{kind}.json"
    if out.exists() or description.exists():
        print(f"{description} exists: a kept recording is never written again", file=sys.stderr)
        return 1
    if kind in REPORTS:
        with tempfile.TemporaryDirectory() as folder:
            description.write_text(json.dumps(REPORTS[kind](folder), indent=1, sort_keys=True) + "\n")
        return 0
    logging.disable(logging.CRITICAL)
    RECORDERS[kind](str(out))
    document, values = describe(str(out))
    description.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    np.savez_compressed(FOLDER / f"smdebug_{kind}.npz", **values)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
