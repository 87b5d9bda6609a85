"""The hook changes nothing: losses, predictions and weights are equal to the bit, and no hook is left."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from mxnet import gluon

import tdcore as td
from tdcore.hooks.mxnet import Hook
from tdcore.hooks.mxnet.block_values import BlockValues
from tests.mxnet.networks import NETWORKS, Training, trained

_UPDATE = gluon.Trainer._update


@pytest.mark.shows("MXNet: loops of autograd.record()", "same training")
@pytest.mark.shows("MXNet: validation within a step", "same training")
@pytest.mark.shows("MXNet: hybridized blocks", "same training")
@pytest.mark.parametrize("interval", [1, 3, 100])
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_training_with_a_hook_is_equal_to_the_bit(
    tmp_path: Path, network: str, hybrid: bool, interval: int
) -> None:
    expected = trained(Training(network, hybrid=hybrid))
    training = Training(network, hybrid=hybrid)
    with Hook(tmp_path, save_all=True, save_config=td.SaveConfig(save_interval=interval)) as hook:
        hook.register_block(training.net)
        hook.register_loss(training.criterion)
        assert trained(training) == expected
        assert not hook._faults


@pytest.mark.shows("MXNet: errors in the hook", "same training")
@pytest.mark.parametrize("method", ["parameters", "gradients", "of_block", "loss", "learning_rate"])
def test_an_error_in_the_hook_does_not_reach_the_training(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(*arguments: Any) -> None:
        raise RuntimeError("planted")

    expected = trained(Training("dense"))
    monkeypatch.setattr(BlockValues, method, planted)
    training = Training("dense")
    with Hook(tmp_path, save_all=True, save_config=td.SaveConfig(save_interval=1)) as hook:
        hook.register_block(training.net)
        hook.register_loss(training.criterion)
        assert trained(training) == expected
    assert "planted" in str(td.create_trial(tmp_path).notes()["faults"])


@pytest.mark.shows("MXNet: loops of autograd.record()", "nothing left behind")
def test_after_close_no_hook_is_left_on_blocks_and_trainers(tmp_path: Path) -> None:
    training = Training("shared")
    hook = Hook(tmp_path, save_all=True, save_config=td.SaveConfig(save_interval=1))
    hook.register_block(training.net)
    hook.register_loss(training.criterion)
    assert gluon.Trainer._update is not _UPDATE
    trained(training, steps=2)
    hook.close()
    left: list[int] = []
    training.net.apply(lambda block: left.append(len(block._forward_hooks) + len(block._forward_pre_hooks)))
    assert set(left) == {0}
    assert not training.criterion._forward_hooks
    assert gluon.Trainer._update is _UPDATE


@pytest.mark.shows("MXNet: loops of autograd.record()", "nothing left behind")
def test_a_hook_ends_with_its_network(tmp_path: Path) -> None:
    training = Training("dense")
    hook = Hook(tmp_path, flusher="thread")
    hook.register_block(training.net)
    hook.register_loss(training.criterion)
    trained(training, steps=2)
    alive = weakref.ref(hook)
    del hook
    gc.collect()
    assert alive() is not None
    alive().close()  # type: ignore[union-attr]
    del training
    gc.collect()
    assert alive() is None


@pytest.mark.shows("MXNet: errors in the hook", "same training")
def test_an_update_that_fails_raises_the_error_of_mxnet(tmp_path: Path) -> None:
    training = Training("dense")
    with Hook(tmp_path, save_all=True) as hook:
        hook.register_block(training.net)
        trained(training, steps=1)
        with pytest.raises(UserWarning, match="has not been updated by backward"):
            training.trainer.step(1)
