"""Ensemble: the interface of a gradient boosting model for RoundRecorder. Threads: the training thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Ensemble", "EvaluationScore", "UnavailableError"]

Array = npt.NDArray[Any]


class UnavailableError(Exception):
    """Raised if a model does not have the requested values. The message is stored in the notes of the run."""


class EvaluationScore(NamedTuple):
    """One metric of one evaluation set after a round.

    Attributes:
        name: "<set>-<metric>".
        value: The number that the library reports.
        is_loss: Whether smaller values are better.
    """

    name: str
    value: float
    is_loss: bool


class Ensemble(Protocol):
    """A model after a round. No method changes the model. Each method may raise UnavailableError."""

    @property
    def features(self) -> Sequence[str]:
        """Names of the features, in the order of the columns of the data."""
        ...

    @property
    def importance_types(self) -> Sequence[str]:
        """Types of feature importance that the library computes for this model."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """Hyper-parameters by name: numbers or text."""
        ...

    def importance(self, kind: str) -> Array:
        """Importance of one type per feature, as the library returns it; 0 for unused features."""
        ...

    def trees(self) -> Mapping[str, Array]:
        """Columns of the table of all trees; see tables.py."""
        ...

    def labels(self, data: Any) -> Array:
        """Labels of the data."""
        ...

    def predictions(self, data: Any) -> Array:
        """Predictions for the data, as the library returns them to the user."""
        ...

    def shap(self, data: Any) -> npt.NDArray[np.floating[Any]]:
        """SHAP values of the shape (rows, features + 1) or (rows, classes, features + 1), the bias last."""
        ...
