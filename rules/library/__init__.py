"""The rules, one file each; RULES is the table of all of them, by code."""

from __future__ import annotations

from collections.abc import Mapping

from tdcore.rules.base import Rule
from tdcore.rules.library.dead_relu import DeadRelu
from tdcore.rules.library.exploding_tensor import ExplodingTensor
from tdcore.rules.library.loss_not_decreasing import LossNotDecreasing
from tdcore.rules.library.vanishing_gradient import VanishingGradient

__all__ = [
    "RULES",
    "DeadRelu",
    "ExplodingTensor",
    "LossNotDecreasing",
    "VanishingGradient",
]

RULES: Mapping[str, type[Rule]] = {
    "TDC101": VanishingGradient,
    "TDC102": ExplodingTensor,
    "TDC103": LossNotDecreasing,
    "TDC104": DeadRelu,
}
