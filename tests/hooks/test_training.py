"""Shared parts of the callbacks for trainers: how a trainer gets a stop request, and errors at the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tdcore as td
from tdcore.errors import ConfigError, StopTraining
from tdcore.hooks.pytorch.trainer_session import TrainerSession
from tdcore.session import StopRequest
from tests.hooks.models import Net
from tests.hooks.test_pytorch_errors import ask_to_stop


@pytest.fixture
def model() -> Net:
    return Net()


@pytest.fixture
def options() -> dict[str, Any]:
    ring = td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20)
    return {"flusher": "thread", "ring": ring}


@pytest.fixture
def make(tmp_path: Path, options: dict[str, Any]) -> Iterator[Any]:
    made: list[TrainerSession] = []

    def training(**more: Any) -> TrainerSession:
        made.append(TrainerSession(tmp_path / "run", {**options, **more}))
        return made[-1]

    yield training
    for one in made:
        one.end()


def test_alone_a_stop_request_is_kept_for_the_trainer_and_told_to_the_script(make: Any, model: Net) -> None:
    told: list[StopRequest] = []
    training = make(on_stop=told.append)
    ask_to_stop(training.begin(model, [], processes=1, resumed=None))
    model(torch.randn(2, 4))
    assert training.stop_requested
    assert [request.reason for request in told] == ["loss is NaN"]


def test_among_many_processes_a_stop_request_is_raised(make: Any, model: Net) -> None:
    # If one process ended through its trainer, the other processes would wait for it forever.
    training = make()
    ask_to_stop(training.begin(model, [], processes=2, resumed=None))
    with pytest.raises(StopTraining):
        model(torch.randn(2, 4))


def test_a_training_that_begins_again_is_a_new_attempt(make: Any, model: Net) -> None:
    training = make()
    first = training.begin(model, [], processes=1, resumed=None)
    model(torch.randn(2, 4))
    second = training.begin(model, [], processes=1, resumed=first.state_dict())
    assert training.hook is second
    assert (second.global_step, td.create_trial(second.out_dir).attempts) == (0, [0, 1])
    assert td.create_trial(second.out_dir).ends()["worker_0", 0].clean


def test_what_cannot_be_registered_closes_the_hook_and_is_said(make: Any, model: Net) -> None:
    training = make()
    stranger = torch.optim.SGD(Net().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="holds no parameter"):
        training.begin(model, [stranger], processes=1, resumed=None)
    assert training.hook is None
    assert not model._forward_pre_hooks
