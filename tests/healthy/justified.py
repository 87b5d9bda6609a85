"""Justified findings on healthy trainings: (training, code of the rule) -> justification."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["JUSTIFIED"]

JUSTIFIED: Mapping[tuple[str, str], str] = {
    ("words, padded, which document", "TDC111"): (
        "six to twelve words do not say which document they are from: four predictions in ten are wrong, and "
        "90 % of a class are expected"
    ),
}
