"""Cases of NLPSequenceRatio."""

from __future__ import annotations

import numpy as np

from tdcore.rules.cases.case import Case
from tdcore.rules.library.nlp_sequence_ratio import NLPSequenceRatio
from tdcore.rules.trace import Trace

__all__ = ["FIRES", "QUIET"]

TOKENS = "Net_embedding_input_0"


def _tokens(*padding: int) -> Trace:
    """Batches of 8 sequences of 20 ids. The last `padding` ids of each sequence are 0."""
    trace = Trace()
    for step, number in enumerate(padding):
        ids = np.tile(np.arange(1, 21), (8, 1))
        ids[:, 20 - number :] = 0
        trace.add(step, TOKENS, "input", ids, origin="Embedding")
    return trace


FIRES = Case(
    story="60 % of the second batch is padding.",
    rule=NLPSequenceRatio(),
    trace=lambda: _tokens(4, 12),
    found=((1, TOKENS),),
)
QUIET = Case(
    story="20 % of the first batch and 50 % of the second are padding.",
    rule=NLPSequenceRatio(),
    trace=lambda: _tokens(4, 10),
)
