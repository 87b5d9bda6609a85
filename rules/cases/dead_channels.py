"""Cases of DeadChannels."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.dead_channels import DeadChannels
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "Net_conv_output_0"


def _outputs(dead: int) -> Trace:
    """Outputs of a convolution with 20 channels for 8 inputs; the first `dead` channels are constant."""
    values = np.random.default_rng(0).normal(0.0, 1.0, (8, 20, 4, 4))
    values[:, :dead] = 0.1
    trace = Trace()
    trace.add(0, NAME, "output", values, origin="Conv2d", payload=True)
    return trace


FIRES = Case(
    story="3 of 20 channels hold only their bias at every position: 15 % are dead.",
    rule=DeadChannels(),
    trace=lambda: _outputs(3),
    found=((0, NAME),),
)
QUIET = Case(
    story="2 of 20 channels are constant: 10 %, which is allowed.",
    rule=DeadChannels(),
    trace=lambda: _outputs(2),
)
