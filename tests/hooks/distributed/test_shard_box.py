"""The position of a DTensor's local part, computed without a process group, compared with slices by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tdcore.hooks.pytorch.distributed.sharding import shard_box

SIZES = st.integers(0, 9)
MESH = st.tuples(st.integers(1, 4), st.integers(1, 3))


def parts(shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any]) -> list[Any]:
    """Return shard_box() of every rank of a two-dimensional mesh."""
    return [shard_box(shape, mesh, place, placements) for place in np.ndindex(*mesh)]


@given(rows=SIZES, columns=SIZES, mesh=MESH, dims=st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_the_parts_of_all_ranks_cover_every_element_once(
    rows: int, columns: int, mesh: tuple[int, int], dims: tuple[int, int]
) -> None:
    covered = np.zeros((rows, columns), int)
    for part in parts((rows, columns), mesh, [Shard(dim) for dim in dims]):
        (height, width), shard = part
        y, x = shard.offset
        covered[y : y + height, x : x + width] += 1
    assert (covered == 1).all()


@given(rows=SIZES, mesh=MESH)
def test_a_strided_shard_is_cut_out_of_what_the_others_have_cut(rows: int, mesh: tuple[int, int]) -> None:
    found = parts((rows,), mesh, [_StridedShard(0, split_factor=mesh[1]), Shard(0)])
    whole = torch.arange(rows)
    for (outer, inner), (shape, shard) in zip(np.ndindex(*mesh), found, strict=True):
        piece = whole
        for place, count in ((inner, mesh[1]), (outer, mesh[0])):
            pieces = piece.chunk(count) if len(piece) else ()
            piece = pieces[place] if place < len(pieces) else piece[:0]
        assert shape == tuple(piece.shape)
        assert not len(piece) or shard.offset == (int(piece[0]),)


def test_a_strided_shard_that_no_other_cut_explains_has_no_place() -> None:
    assert shard_box((8,), (2, 2), (0, 0), [Replicate(), _StridedShard(0, split_factor=2)]) is None


@pytest.mark.parametrize(
    ("placements", "partials"),
    [
        ([Partial("avg"), Shard(0)], {"avg"}),
        ([Partial(), Partial("max")], {"mixed"}),
        ([Replicate(), Partial()], {"sum", "copy of sum"}),
        ([Replicate(), Replicate()], {None}),
    ],
)
def test_a_summand_says_of_what_and_a_copy_of_one_says_so_too(
    placements: list[Any], partials: set[str | None]
) -> None:
    assert {shard.partial for _, shard in parts((4,), (2, 2), placements)} == partials
