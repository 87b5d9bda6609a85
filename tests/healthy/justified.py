"""Findings on healthy trainings that are right: (training, code of the rule) -> why."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["JUSTIFIED"]

JUSTIFIED: Mapping[tuple[str, str], str] = {}
