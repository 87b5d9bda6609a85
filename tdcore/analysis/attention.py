"""Views of attention heads: where each head looks, and which heads look at the same tokens.

Weights are arrays (batch, heads, queries, keys) whose last axis sums to 1, as captured from a module output.
If a model does not return them, `weights_from` computes them from captured queries and keys. Stateless
functions; any thread.

Sources: K. Clark et al., What does BERT look at?, BlackboxNLP 2019 (Jensen-Shannon divergence of heads,
attention to special and neighbouring tokens). J. Vig, Y. Belinkov, Analyzing the structure of attention in a
transformer language model, BlackboxNLP 2019 (distance, entropy).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.analysis.matrices import Floats

__all__ = ["Head", "Redundant", "describe_heads", "head_distances", "redundant_heads", "weights_from"]

_TOLERANCE = 0.02  # of a sum of weights: float16 and bfloat16 round, and dropout is not undone


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where one head looks, as means over samples and queries.

    Attributes:
        head: Number of the head.
        entropy: Entropy of the weights of a query in bits. 0: one token. log2(keys): all tokens alike.
        distance: Distance between query and key, in tokens.
        future: Share of the weight on tokens after the query. 0 for a causal model.
        itself, previous, first: Share of the weight on the query's own token, the token before it, and the
            first token.
    """

    head: int
    entropy: float
    distance: float
    future: float
    itself: float
    previous: float
    first: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundant:
    """A head that looks at the same tokens as another head.

    Attributes:
        head: Number of the head.
        twin: Number of the head to keep.
        distance: Mean Jensen-Shannon divergence of the two heads, 0 to 1 bit.
    """

    head: int
    twin: int
    distance: float


def weights_from(
    queries: Any,
    keys: Any,
    heads: int,
    *,
    causal: bool,
    scale: float | None = None,
    mask: Any = None,
) -> Floats:
    """Attention weights, computed from the outputs of the query and key projections: softmax(q k' scale).

    This is the formula of scaled_dot_product_attention without dropout. Causality, mask and scale are not
    stored in a run and must be those of the model. Models that change queries or keys after the projection
    (rotary positions, normalisation) need the changed values.

    Args:
        queries: Array (batch, queries, heads * size).
        keys: Array (batch, keys, key_heads * size). With grouped queries, key_heads divides heads.
        heads: Number of heads.
        causal: A query looks only at keys up to its own position. The first query and the first key are the
            same token, as for is_causal of PyTorch.
        scale: Factor of the products. None: 1 / sqrt(size).
        mask: Boolean array, True where a query may look; its shape broadcasts to the result.

    Returns:
        Array (batch, heads, queries, keys). A query that may look nowhere has NaN.

    Raises:
        ValueError: The shapes do not fit.
    """
    q, k = (np.asarray(each).astype(np.float64) for each in (queries, keys))
    if q.ndim != 3 or k.ndim != 3 or len(q) != len(k):
        raise ValueError(f"queries {q.shape} and keys {k.shape} must be (batch, tokens, features)")
    if heads < 1 or q.shape[2] % heads:
        raise ValueError(f"{q.shape[2]} features of queries cannot be split into {heads} heads")
    size = q.shape[2] // heads
    if not size or k.shape[2] % size or not k.shape[2] or heads % (k.shape[2] // size):
        raise ValueError(f"{k.shape[2]} features of keys do not fit to {heads} heads of size {size}")
    q, k = (each.reshape(*each.shape[:2], -1, size).swapaxes(1, 2) for each in (q, k))
    k = np.repeat(k, heads // k.shape[1], axis=1)
    scores = q @ k.swapaxes(2, 3) * (size**-0.5 if scale is None else scale)
    allowed = np.ones(scores.shape, dtype=np.bool_)
    if causal:
        allowed &= np.tril(np.ones(scores.shape[2:], dtype=np.bool_))
    if mask is not None:
        allowed &= np.asarray(mask, dtype=np.bool_)
    scores = np.where(allowed, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        found: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return found


def describe_heads(weights: Any) -> list[Head]:
    """Describe where each head looks.

    Args:
        weights: Array (batch, heads, queries, keys). If there are more keys than queries, the queries are the
            last tokens, as when a model continues a text.

    Raises:
        ValueError: The array has another number of axes, or its last axis does not sum to 1.
    """
    shares = _checked(weights)
    queries, keys = shares.shape[2:]
    places = np.arange(queries)[:, None] + max(0, keys - queries)
    apart = places - np.arange(keys)
    shown: dict[str, Floats] = {
        "distance": np.abs(apart).astype(np.float64),
        "future": (apart < 0).astype(np.float64),
        "itself": (apart == 0).astype(np.float64),
        "previous": (apart == 1).astype(np.float64),
        "first": np.broadcast_to(np.arange(keys) == 0, apart.shape).astype(np.float64),
    }
    means = shares.mean(axis=0)
    sums = {name: (means * each).sum(axis=2).mean(axis=1) for name, each in shown.items()}
    sums["entropy"] = _entropy(shares).mean(axis=(0, 2))
    return [
        Head(head=head, **{name: float(each[head]) for name, each in sums.items()})
        for head in range(shares.shape[1])
    ]


def head_distances(weights: Any) -> Floats:
    """Mean Jensen-Shannon divergence in bits between the weights of all pairs of heads.

    Args:
        weights: Array (batch, heads, queries, keys).

    Returns:
        A symmetric matrix (heads, heads). 0: the heads always look at the same tokens. 1: never.

    Raises:
        ValueError: See describe_heads().
    """
    shares = _checked(weights)
    own = _entropy(shares).mean(axis=(0, 2))
    heads = shares.shape[1]
    found = np.zeros((heads, heads))
    for head in range(heads):
        for other in range(head):
            both = _entropy((shares[:, head] + shares[:, other]) / 2).mean()
            found[head, other] = found[other, head] = max(0.0, float(both - (own[head] + own[other]) / 2))
    return found


def redundant_heads(distances: Any, limit: float) -> list[Redundant]:
    """Heads that can be left out because a kept head looks at almost the same tokens.

    The heads are visited in the order of their mean distance from the other heads, the most distinct head
    first. A head is kept if no kept head is nearer than the limit.

    Args:
        distances: Matrix (heads, heads) of head_distances(), or another symmetric distance.
        limit: Distance in bits below which heads count as alike.

    Returns:
        The heads that are not kept, nearest to their twin first.

    Raises:
        ValueError: The matrix is not square, or contains NaN.
    """
    apart = np.asarray(distances, dtype=np.float64)
    if apart.ndim != 2 or apart.shape[0] != apart.shape[1]:
        raise ValueError(f"distances has the shape {apart.shape}; a square matrix is needed")
    if np.isnan(apart).any():
        raise ValueError("distances contains NaN")
    kept: list[int] = []
    for head in np.argsort(-apart.sum(axis=1), kind="stable").tolist():
        if not kept or apart[head, kept].min() >= limit:
            kept.append(head)
    found = []
    for head in sorted({*range(len(apart))} - {*kept}):
        twin = kept[int(apart[head, kept].argmin())]
        found.append(Redundant(head=head, twin=twin, distance=float(apart[head, twin])))
    return sorted(found, key=lambda each: each.distance)


def _checked(weights: Any) -> Floats:
    shares: npt.NDArray[Any] = np.asarray(weights).astype(np.float64)
    if shares.ndim != 4:
        raise ValueError(f"weights has the shape {shares.shape}; (batch, heads, queries, keys) is needed")
    if not shares.size:
        raise ValueError(f"weights of the shape {shares.shape} has no elements")
    sums = shares.sum(axis=-1)
    wrong = ~(np.abs(sums - 1) <= _TOLERANCE)
    if wrong.any():
        raise ValueError(
            f"the weights of a query must be shares that sum to 1; a sum is {sums[wrong][0]:.4g}"
        )
    if (shares < 0).any():
        raise ValueError(f"the weights of a query must be shares; one is {shares.min():.4g}")
    normalised: Floats = shares / sums[..., None]
    return normalised


def _entropy(shares: Floats) -> Floats:
    """Entropy in bits over the last axis."""
    logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
    entropy: Floats = -(shares * logs).sum(axis=-1)
    return entropy
