"""Metrics of XGBoost: the scores of a round, and the metrics that are losses. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tdcore.hooks.boosting.ensemble import EvaluationScore

__all__ = ["is_loss", "round_scores"]

# Metrics of XGBoost that decrease while a model improves. The direction of a custom metric is unknown.
_LOSSES = frozenset(
    {
        "aft-nloglik",
        "cox-nloglik",
        "error",
        "expectile",
        "gamma-deviance",
        "gamma-nloglik",
        "logloss",
        "mae",
        "mape",
        "merror",
        "mlogloss",
        "mphe",
        "poisson-nloglik",
        "quantile",
        "rmse",
        "rmsle",
        "tweedie-nloglik",
    }
)


def is_loss(metric: str) -> bool:
    """Whether a metric is one of XGBoost's own losses, with or without a parameter: "error@0.7"."""
    return metric.partition("@")[0] in _LOSSES


def round_scores(evals_log: Mapping[str, Mapping[str, Any]], round_: int) -> Iterator[EvaluationScore]:
    """The metrics of a round.

    Args:
        evals_log: Set -> metric -> values of all rounds of a training.
        round_: Number of the round in the training, from 0.
    """
    for data_name, metrics in evals_log.items():
        for metric, values in metrics.items():
            if len(values) <= round_:
                continue
            value, name = values[round_], f"{data_name}-{metric}"
            if isinstance(value, tuple):  # mean and standard deviation over the folds of cv()
                yield EvaluationScore(f"{name}-std", float(value[1]), False)
                value = value[0]
            yield EvaluationScore(name, float(value), is_loss(metric))
