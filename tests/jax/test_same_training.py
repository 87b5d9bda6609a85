"""A training has the same bits with and without the hook, whatever the hook saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax", reason="stage keras of .ci/run has JAX")

import tdcore as td
from tests.jax.cases import PROGRAMS, same, trained

MakeHook = Callable[..., Any]


def compare(name: str, make_hook: MakeHook, intervals: tuple[int, ...]) -> None:
    plain = trained(name)
    for interval in intervals:
        hook = make_hook(f"every_{interval}", save_config=td.SaveConfig(save_interval=interval))
        assert same(trained(name, hook), plain)
        hook.close()
        assert not hook._faults
        assert "not_captured" not in hook._notes
        assert td.create_trial(hook.out_dir).tensor_names()


@pytest.mark.shows("JAX: train steps", "same training")
@pytest.mark.parametrize("name", ["linen_sgd", "nnx_compiled", "plain_optax", "shard_map_of_two"])
def test_a_training_has_the_same_bits_at_every_interval(name: str, make_hook: MakeHook) -> None:
    compare(name, make_hook, (1, 3, 10))


@pytest.mark.shows("JAX: train steps", "same training")
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kind_of_program_has_the_same_bits(name: str, make_hook: MakeHook) -> None:
    compare(name, make_hook, (3,))
