"""The table of XGBoost and LightGBM in docs/frameworks.md, made by the tests with the mark `boosts`.

    pytest tests/boosting --proofs write     writes the table between its two comments

A test names the cells that it shows by `@pytest.mark.boosts("XGBoost: train()", "values right")`.
tests/hooks/support.py makes the page, and tests/shown.py counts.
"""

from __future__ import annotations

from tests.hooks.support import DOCS, matrix

__all__ = ["BOOSTING"]

COLUMNS = ("values right", "same model", "nothing left behind", "cost")
_ROWS = {
    "Ways to train": ("train()", "cv()", "estimators of scikit-learn", "early stopping", "stop request"),
    "Recorded": (
        "metrics",
        "hyper-parameters",
        "predictions and labels",
        "feature importance",
        "trees",
        "categorical features",
        "SHAP values",
    ),
    "Further": ("errors in the hook", "rounds that save nothing", "rules on real models"),
}
_ONLY = {
    "XGBoost": ("QuantileDMatrix", "boosters dart and gblinear", "workers of dask"),
    "LightGBM": ("boosting dart and rf",),
}
GROUPS = {
    library: tuple(f"{library}: {row}" for rows in (*_ROWS.values(), _ONLY[library]) for row in rows)
    for library in ("XGBoost", "LightGBM")
}
BOOSTING = matrix("boosts", DOCS / "frameworks.md", GROUPS, COLUMNS)
