"""Cases of MismatchedLoss."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.mismatched_loss import MismatchedLoss
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

NAME = "CrossEntropyLoss_input_0"


def _training(*, softmax: bool) -> Trace:
    """Six steps of a classifier of four classes, whose outputs go into a CrossEntropyLoss."""
    trace, random = Trace(), np.random.default_rng(0)
    for step in range(6):
        logits = random.normal(size=(8, 4))
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        trace.add(step, NAME, "input", shares if softmax else logits)
        trace.add(step, "CrossEntropyLoss_output_0", "loss", 1.4)
    return trace


FIRES = Case(
    story="a model that ends with a softmax, trained with CrossEntropyLoss, which takes a softmax itself.",
    rule=MismatchedLoss(),
    trace=lambda: _training(softmax=True),
    found=((4, NAME),),
)
QUIET = Case(
    story="the same model without its softmax: the loss gets logits.",
    rule=MismatchedLoss(),
    trace=lambda: _training(softmax=False),
)
