"""smdebug.core.tensor."""

from __future__ import annotations

from tdcore.smd import StepState, Tensor

__all__ = ["StepState", "Tensor"]
