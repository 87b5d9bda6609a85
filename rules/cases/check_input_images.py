"""Cases of CheckInputImages."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.check_input_images import CheckInputImages
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]


def _images(shift: float) -> Trace:
    """Ten batches of 64 images with three channels. The last channel is shifted."""
    random = np.random.default_rng(0)
    trace = Trace()
    for step in range(10):
        values = random.normal(0.0, 1.0, (64, 3, 8, 8)).astype(np.float32)
        values[:, 2] += shift
        trace.add(step, "Net_input_0", "input", values, origin="Net", payload=True)
    return trace


FIRES = Case(
    story="the mean of one channel was not subtracted.",
    rule=CheckInputImages(),
    trace=lambda: _images(0.45),
    found=((7, "Net_input_0"),),
)
QUIET = Case(
    story="all channels have mean 0 and standard deviation 1.",
    rule=CheckInputImages(),
    trace=lambda: _images(0.0),
)
