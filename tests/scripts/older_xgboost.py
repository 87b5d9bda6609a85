"""XGBoost with the hook of smdebug as a callback, and an analysis of the run (tests/compat/test_shim.py)."""

import argparse
import json

import numpy as np
import xgboost
from smdebug import SaveConfig
from smdebug.trials import create_trial
from smdebug.xgboost import Hook


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out_dir")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    features = random.standard_normal((60, 3)).astype(np.float32)
    labels = (features[:, 0] + 0.1 * features[:, 1] > 0).astype(np.float32)
    train = xgboost.DMatrix(features[:40], labels[:40])
    test = xgboost.DMatrix(features[40:], labels[40:])
    params = {"objective": "binary:logistic", "max_depth": 3, "eval_metric": "logloss"}
    hook = Hook(
        out_dir=args.out_dir,
        save_config=SaveConfig(save_interval=2),
        include_collections=["metrics", "feature_importance", "average_shap"],
        train_data=train,
        validation_data=test,
        hyperparameters=params,
    )
    xgboost.train(
        params,
        train,
        num_boost_round=6,
        evals=[(train, "train"), (test, "validation")],
        callbacks=[hook],
        verbose_eval=False,
    )
    hook.close()
    trial = create_trial(args.out_dir)
    report = {
        "steps": [int(step) for step in trial.steps()],
        "metrics": sorted(trial.tensor_names(collection="metrics")),
        "shap": sorted(trial.tensor_names(regex="average_shap/f")),
        "importance": sorted(
            {name.split("/")[1] for name in trial.tensor_names(regex="feature_importance/")}
        ),
    }
    for name in report["metrics"]:
        values = trial.tensor(name).values()
        report[name] = {str(step): float(np.ravel(value)[0]) for step, value in sorted(values.items())}
    print("REPORT " + json.dumps(report))


if __name__ == "__main__":
    main()
