"""For each rule of the table one trace on which it fires and one on which it stays quiet.

Used by docs and tests.
"""

from __future__ import annotations

from collections.abc import Mapping

from tdcore.rules.cases import dead_relu, exploding_tensor, loss_not_decreasing, vanishing_gradient
from tdcore.rules.cases.case import Case

__all__ = ["CASES", "Case"]

CASES: Mapping[str, tuple[Case, Case]] = {
    "TDC101": (vanishing_gradient.FIRES, vanishing_gradient.QUIET),
    "TDC102": (exploding_tensor.FIRES, exploding_tensor.QUIET),
    "TDC103": (loss_not_decreasing.FIRES, loss_not_decreasing.QUIET),
    "TDC104": (dead_relu.FIRES, dead_relu.QUIET),
}
