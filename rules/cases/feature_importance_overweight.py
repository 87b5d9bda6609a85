"""Cases of FeatureImportanceOverweight."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.feature_importance_overweight import FeatureImportanceOverweight
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _importances(*values: float) -> Trace:
    """One scalar per feature at step 10."""
    trace = Trace()
    for at, value in enumerate(values):
        trace.add(10, f"feature_importance/weight/f{at}", "custom", np.float64(value))
    return trace


FIRES = Case(
    story="three of five features carry 85 % of all importance.",
    rule=FeatureImportanceOverweight(),
    trace=lambda: _importances(0.1, 0.4, 0.3, 0.15, 0.05),
    found=((10, "feature_importance/weight/f1"),),
)
QUIET = Case(
    story="three of five features carry 65 %.",
    rule=FeatureImportanceOverweight(),
    trace=lambda: _importances(0.2, 0.25, 0.2, 0.2, 0.15),
)
