"""Views of attention heads, compared with PyTorch's attention and direct computations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import tdcore as td
from tdcore.analysis.attention import describe_heads, head_distances, redundant_heads, weights_from
from tdcore.hooks.pytorch import Hook

_MANY = settings(max_examples=30, deadline=None)


def some_weights(seed: int, batch: int = 2, heads: int = 3, queries: int = 5, keys: int = 5) -> Any:
    scores = np.random.default_rng(seed).normal(size=(batch, heads, queries, keys)) * 3
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_weights_from_queries_and_keys_are_those_of_pytorch(causal: bool, key_heads: int) -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 6, 32), torch.randn(2, 6, 8 * key_heads)
    query, key = (each.unflatten(-1, (-1, 8)).transpose(1, 2) for each in (queries, keys))
    key = key.repeat_interleave(4 // key_heads, dim=1)
    identity = torch.eye(6).expand(2, 4, -1, -1)
    expected = functional.scaled_dot_product_attention(query, key, identity, is_causal=causal)
    found = weights_from(queries.numpy(), keys.numpy(), 4, causal=causal)
    assert found == pytest.approx(expected.numpy(), abs=1e-6)


def test_a_mask_and_a_scale_are_applied() -> None:
    torch.manual_seed(0)
    queries, keys = torch.randn(1, 3, 4), torch.randn(1, 5, 4)
    mask = torch.rand(3, 5) > 0.3
    expected = functional.scaled_dot_product_attention(
        queries[None], keys[None], torch.eye(5)[None, None], attn_mask=mask, scale=2.0
    )
    found = weights_from(queries.numpy(), keys.numpy(), 1, causal=False, scale=2.0, mask=mask.numpy())
    assert found == pytest.approx(expected.numpy(), abs=1e-6)


def test_weights_of_a_module_that_returns_them_are_captured(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.attention(x, x, x, need_weights=True, average_attn_weights=False)[0]

    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(3, 4, 8)
    with Hook(tmp_path / "run", save_config=td.SaveConfig(save_interval=1), save_all=True) as hook:
        hook.register_module(model)
        with torch.no_grad():
            model(x)
            expected = model.attention(x, x, x, average_attn_weights=False)[1]
    weights = td.create_trial(tmp_path / "run").tensor("attention_output_1").value(0)
    assert weights == pytest.approx(expected.numpy())
    assert len(describe_heads(weights)) == 2


@_MANY
@given(st.integers(0, 999), st.integers(1, 6), st.integers(0, 3))
def test_a_description_equals_sums_over_all_pairs_of_tokens(seed: int, queries: int, more: int) -> None:
    weights = some_weights(seed, queries=queries, keys=queries + more)
    for found in describe_heads(weights):
        head = weights[:, found.head]
        sums = dict.fromkeys(("entropy", "distance", "future", "itself", "previous", "first"), 0.0)
        for sample, query, key in np.ndindex(head.shape):
            share, apart = head[sample, query, key], query + more - key
            sums["entropy"] -= share * np.log2(share)
            sums["distance"] += share * abs(apart)
            sums["future"] += share * (apart < 0)
            sums["itself"] += share * (apart == 0)
            sums["previous"] += share * (apart == 1)
            sums["first"] += share * (key == 0)
        for name, total in sums.items():
            assert getattr(found, name) == pytest.approx(total / (2 * queries)), name


@_MANY
@given(st.integers(0, 999))
def test_distances_of_heads_are_jensen_shannon_divergences(seed: int) -> None:
    distance = pytest.importorskip("scipy.spatial.distance")
    weights = some_weights(seed)
    found = head_distances(weights)
    assert found == pytest.approx(found.T)
    assert ((found >= 0) & (found <= 1)).all()
    expected = [
        distance.jensenshannon(weights[sample, 0, query], weights[sample, 1, query], base=2) ** 2
        for sample, query in np.ndindex(2, 5)
    ]
    assert found[0, 1] == pytest.approx(np.mean(expected))


@_MANY
@given(st.integers(0, 999), st.floats(0, 1))
def test_each_redundant_head_has_a_near_twin_and_kept_heads_are_apart(seed: int, limit: float) -> None:
    distances = head_distances(some_weights(seed, heads=6))
    found = redundant_heads(distances, limit)
    gone = {each.head for each in found}
    kept = [head for head in range(6) if head not in gone]
    assert len(gone) == len(found)
    assert kept
    for each in found:
        assert each.twin in kept
        assert each.distance == distances[each.head, each.twin] == min(distances[each.head, kept])
        assert each.distance < limit
    assert all(distances[one, other] >= limit for one in kept for other in kept if one != other)


def test_equal_heads_are_redundant_and_heads_on_different_tokens_are_not() -> None:
    previous, itself = np.eye(4, k=-1), np.eye(4)
    previous[0, 0] = 1
    weights = np.stack([previous, itself, previous])[None]
    (found,) = redundant_heads(head_distances(weights), 0.1)
    assert {found.head, found.twin} == {0, 2}
    assert found.distance == 0
    assert head_distances(weights)[0, 1] == pytest.approx(0.75)  # the first query has only one token


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 3, 4)), "batch, heads, queries, keys"),
        (np.ones((1, 1, 2, 2)), "a sum is 2"),
        (np.full((1, 1, 1, 2), np.nan), "a sum is nan"),
        (np.ones((0, 1, 1, 1)), "no elements"),
        (np.array([[[[1.5, -0.5]]]]), "one is -0.5"),
    ],
)
def test_arrays_that_are_not_weights_are_refused(weights: Any, message: str) -> None:
    for measure in (describe_heads, head_distances):
        with pytest.raises(ValueError, match=message):
            measure(weights)


@pytest.mark.parametrize(("queries", "keys", "heads"), [(5, 5, 2), (4, 3, 2), (12, 8, 3), (4, 0, 2)])
def test_features_that_do_not_fit_to_the_heads_are_refused(queries: int, keys: int, heads: int) -> None:
    with pytest.raises(ValueError, match="heads"):
        weights_from(np.ones((1, 2, queries)), np.ones((1, 2, keys)), heads, causal=True)
