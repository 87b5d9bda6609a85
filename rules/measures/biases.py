"""biases_of_weights: rows of biases of a layer whose weight has a row at the same step.

The gradient of a bias can be zero, or the same at each step, while its layer learns. Examples are a bias
before a normalisation, the bias of the keys in attention, and the last bias before a loss that uses only
differences of outputs. Plain values; any thread.
"""

from __future__ import annotations

import numpy as np

from tdcore.rules.columns import Columns, Mask
from tdcore.rules.measures.series import group_codes

__all__ = ["biases_of_weights"]


def biases_of_weights(columns: Columns, rows: Mask, weights: Mask) -> Mask:
    """Mask of the `rows` of biases of layers whose weight is in the rows `weights` at the same step."""
    found = np.zeros(len(rows), dtype=np.bool_)
    codes, texts = columns.codes("name")
    position = {text: code for code, text in enumerate(texts)}
    partner = np.array([position.get(_weight_of(text), -1) for text in texts], dtype=np.int64)[codes]
    biases, others = np.flatnonzero(rows & (partner >= 0)), np.flatnonzero(weights)
    if not biases.size or not others.size:
        return found
    both = np.concatenate([biases, others])
    place = group_codes(columns, both, "attempt", "worker", "step").astype(np.int64) * len(texts)
    found[biases] = np.isin(place[: biases.size] + partner[biases], place[biases.size :] + codes[others])
    return found


def _weight_of(name: str | None) -> str | None:
    """Name of the weight of the same layer; None if the name is not that of a bias."""
    return name.removesuffix("bias") + "weight" if name is not None and name.endswith("bias") else None
