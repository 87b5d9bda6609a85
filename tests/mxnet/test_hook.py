"""What a script makes of the hook: arguments, rules, stop requests, several hooks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

import tdcore as td
from tdcore.actions import RequestStop
from tdcore.errors import ConfigError, StopTraining
from tdcore.hooks.mxnet import Hook, get_hook
from tdcore.rules import Status, run
from tests.mxnet.networks import Training, batches, trained


def test_a_network_that_is_no_block_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    with Hook(tmp_path, dry_run=True) as hook:
        with pytest.raises(ConfigError, match=r"register_block needs a gluon\.Block.*; got int"):
            hook.register_block(3)
        with pytest.raises(ConfigError, match="register_loss needs a loss block"):
            hook.register_loss(lambda: None)


def test_the_older_way_of_registering_a_loss_works(tmp_path: Path) -> None:
    training = Training("dense")
    with Hook(tmp_path, flusher="thread", save_config=td.SaveConfig(save_interval=1)) as hook:
        hook.register_hook(training.net)
        hook.register_hook(training.criterion)
        trained(training, steps=2)
    assert td.create_trial(tmp_path).tensor(f"{training.criterion.name}_output_0").steps(mode=td.modes.TRAIN)


def _deep(activation: str) -> nn.HybridSequential:
    net = nn.HybridSequential()
    for _ in range(12):
        net.add(nn.Dense(12, activation=activation))
    net.add(nn.Dense(3))
    return net


@pytest.mark.shows("MXNet: rules on real models", "values right")
@pytest.mark.parametrize(("activation", "status"), [("sigmoid", Status.ISSUE), ("relu", Status.NO_ISSUE)])
def test_vanishing_gradients_are_found_in_a_deep_network_of_sigmoids_only(
    tmp_path: Path, activation: str, status: Status
) -> None:
    mx.random.seed(0)
    training = Training("dense")
    training.net = _deep(activation)
    training.net.initialize(mx.init.Xavier(magnitude=2))
    training.trainer = gluon.Trainer(training.net.collect_params(), "adam", {"learning_rate": 0.01})
    with Hook(tmp_path, rules=["vanishing_gradient", "loss_not_decreasing"], flusher="thread") as hook:
        hook.register_block(training.net)
        hook.register_loss(training.criterion)
        for x, y in batches(60, 32):
            training.step(x, y)
    vanishing, flat = run(tmp_path, write_findings=False).verdicts
    assert vanishing.status is status
    assert flat.judged > 0
    assert not flat.missing  # the losses of the samples, whose mean is judged


@pytest.mark.shows("MXNet: stop request", "values right")
def test_a_rule_that_stops_the_training_raises_at_a_following_step(tmp_path: Path) -> None:
    training = Training("shared")
    with Hook(tmp_path, save_config=td.SaveConfig(save_interval=1), flusher="thread") as hook:
        hook.register_block(training.net)
        hook.register_loss(training.criterion)
        data = batches(20)
        for x, y in data[:10]:
            training.step(nd.full(x.shape, float("nan")), y)
        assert hook.flush()
        report = run(tmp_path, ["exploding_tensor"], actions=[RequestStop()], write_findings=False)
        assert report.findings
        with pytest.raises(StopTraining, match="ExplodingTensor"):
            _until_stopped(training)
        trained(training, steps=2)  # raised once


def _until_stopped(training: Training) -> None:
    for x, y in batches(20) * 500:
        training.step(x, y)
        time.sleep(0.001)


@pytest.mark.shows("MXNet: several hooks", "nothing left behind")
def test_a_second_hook_on_a_block_closes_the_first(tmp_path: Path) -> None:
    training = Training("dense")
    first, second = (Hook(tmp_path / name, flusher="thread") for name in ("a", "b"))
    first.register_block(training.net)
    second.register_block(training.net)
    assert "closed" in repr(first)
    trained(training, steps=1)
    second.close()
    assert td.create_trial(tmp_path / "a").notes()["taken_over_by"] == str(tmp_path / "b")


def test_get_hook_returns_the_newest_open_hook(tmp_path: Path) -> None:
    with Hook(tmp_path, dry_run=True) as hook:
        assert get_hook() is hook


@pytest.mark.shows("MXNet: NumPy interface", "values right")
def test_arrays_of_the_numpy_interface_are_recorded(tmp_path: Path) -> None:
    script = """
import sys
import numpy as onp
import mxnet as mx
from mxnet import autograd, gluon
import tdcore as td
from tdcore.hooks.mxnet import Hook

mx.npx.set_np()
net = gluon.nn.Dense(2, in_units=3)
net.initialize()
loss = gluon.loss.L2Loss()
hook = Hook(sys.argv[1], save_all=True, save_config=td.SaveConfig(save_interval=1))
hook.register_block(net)
hook.register_loss(loss)
trainer = gluon.Trainer(net.collect_params(), "sgd")
x = mx.np.array(onp.arange(6).reshape(2, 3), dtype="float32")
with autograd.record():
    value = loss(net(x), mx.np.zeros((2, 2)))
value.backward()
expected = net.weight.grad().asnumpy()
trainer.step(2)
hook.close()
found = td.create_trial(sys.argv[1]).tensor("gradient/" + net.weight.name).value(0)
assert (found == expected).all()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True)


def test_a_script_runs_unchanged_when_tdcore_is_switched_off(tmp_path: Path) -> None:
    script = """
import sys
from mxnet import gluon
from tdcore.hooks.mxnet import Hook
hook = Hook(sys.argv[1])
net = gluon.nn.Dense(2)
hook.register_block(net)
hook.register_loss(gluon.loss.L2Loss())
assert not net._forward_pre_hooks
hook.close()
"""
    environment = {**os.environ, "TDCORE_DISABLED": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "run")]
    subprocess.run(command, check=True, env=environment)
    assert not (tmp_path / "run").exists()


@pytest.mark.shows("MXNet: losses", "values right")
def test_losses_of_functions_and_scalars_are_recorded(tmp_path: Path) -> None:
    net = nn.Dense(1, in_units=2)
    net.initialize()
    with Hook(tmp_path, save_config=td.SaveConfig(save_interval=1), flusher="thread") as hook:
        hook.register_block(net)
        trainer = gluon.Trainer(net.collect_params(), "sgd")
        with autograd.record():
            loss = net(nd.ones((4, 2))).square().mean()
        hook.record_tensor_value("square_loss", loss)
        hook.save_scalar("accuracy", 0.5)
        loss.backward()
        trainer.step(1)
    trial = td.create_trial(tmp_path)
    assert trial.tensor("square_loss_output_0").value(0) == loss.asscalar()
    assert trial.tensor("scalar/accuracy").value(0) == 0.5
