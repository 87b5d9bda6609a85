"""Requests to capture more: each of the next n steps is saved, and the training is not changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.actions import CaptureMore
from tdcore.config.collection import Collection
from tdcore.format.control import CaptureRequest
from tdcore.format.layout import TensorKind, capture_key, stop_key
from tdcore.hooks.pytorch import Hook
from tdcore.rules import VanishingGradient, run
from tdcore.sinks import LocalSink
from tests.waiting import PATIENCE_SECONDS, wait_until

from .conftest import MakeHook
from .models import Net, train

GRADIENT = "gradient/Net_fc1.weight"
Steps = Callable[[int], None]


def ask(hook: Hook, number: int, document: bytes) -> None:
    """Write a request as the action does, then wait until the flusher has passed it on."""
    LocalSink(Path(hook.out_dir)).put_new(capture_key(0, number), [document])
    wait_until(hook._control_changed, "the request arrived")


def request(*tensors: str, **settings: Any) -> bytes:
    return CaptureRequest(tensors=tensors, **{"steps": 3, **settings}).document(attempt=0)


def notes(hook: Hook) -> list[dict[str, Any]]:
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    found: list[dict[str, Any]] = document["attempts"]["0"]["capture_requests"]
    return found


@pytest.fixture
def training(make_hook: MakeHook) -> tuple[Hook, Steps]:
    """A hook that saves gradients at step 0 only, and a function that trains for some steps."""
    seldom = td.SaveConfig(save_interval=1000)
    hook, model = make_hook(include_collections=["gradients"], save_config=seldom), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps(count: int) -> None:
        train(model, optimizer, steps=count)

    return hook, steps


def saved(hook: Hook, name: str) -> list[int]:
    hook.close()
    trial = td.create_trial(hook.out_dir)
    return trial.tensor(name).steps() if name in trial.tensor_names() else []


def test_the_next_steps_are_saved_with_values_and_then_it_is_as_before(training: tuple[Hook, Steps]) -> None:
    hook, steps = training
    steps(4)
    ask(hook, 0, request(GRADIENT, "Net_fc1.weight", "nobody", by="rule X", reason="why"))
    steps(6)
    assert saved(hook, GRADIENT) == [0, 4, 5, 6]
    trial = td.create_trial(hook.out_dir)
    assert trial.tensor("Net_fc1.weight").steps() == [4, 5, 6]
    assert trial.tensor("Net_fc1.weight").value(5).shape == (8, 4)
    assert trial.tensor("gradient/Net_fc2.weight").steps() == [0]
    (note,) = notes(hook)
    assert (note["number"], note["collection"], note["by"], note["reason"]) == (
        0, "capture_more/0", "rule X", "why",
    )  # fmt: skip
    assert note["steps"]["TRAIN"] == [4, 7]
    assert set(trial.collection("capture_more/0").tensor_names) == {GRADIENT, "Net_fc1.weight"}


def test_statistics_are_saved_without_values(training: tuple[Hook, Steps]) -> None:
    hook, steps = training
    steps(1)
    ask(hook, 0, request(GRADIENT, level="statistics"))
    steps(4)
    assert saved(hook, GRADIENT) == [0, 1, 2, 3]
    tensor = td.create_trial(hook.out_dir).tensor(GRADIENT)
    assert tensor.reduction_value(2, "mean") is not None
    with pytest.raises(td.TdcoreError, match="statistics"):
        tensor.value(2)


def test_only_the_modes_that_are_named_are_saved(make_hook: MakeHook) -> None:
    hook, model = make_hook(save_config=td.SaveConfig(save_interval=1000)), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    ask(hook, 0, request("fc1_output_0", modes=("EVAL",)))
    train(model, optimizer, steps=2)
    model.eval()
    for _ in range(5):
        model(torch.randn(2, 4))
    hook.close()
    tensor = td.create_trial(hook.out_dir).tensor("fc1_output_0")
    assert tensor.steps(mode=td.modes.EVAL) == [0, 1, 2]
    assert tensor.steps(mode=td.modes.TRAIN) == []
    assert notes(hook)[0]["steps"] == {"EVAL": [0, 3]}


@pytest.mark.parametrize(
    "document", [b"", b"stop!", b"[]", b"\xff", b"x" * 9000, b'{"format": 9}', b"[" * 8000], ids=range(7)
)
def test_a_foreign_file_is_ignored_with_a_note_and_the_next_one_counts(
    training: tuple[Hook, Steps], document: bytes
) -> None:
    hook, steps = training
    steps(1)
    ask(hook, 0, document)
    steps(1)
    ask(hook, 1, request(GRADIENT))
    steps(4)
    assert saved(hook, GRADIENT) == [0, 2, 3, 4]
    first, second = notes(hook)
    assert set(first) == {"number", "ignored"}
    assert second["collection"] == "capture_more/1"


def test_many_requests_make_steps_no_dearer(make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither saved steps after the requests nor the step that takes a request cost more."""
    hook = make_hook(include_collections=["weights"], save_config=td.SaveConfig(save_interval=1))
    clock, mode = hook._clock, td.modes.TRAIN.value
    for number in range(50):
        hook._names.intern(f"layer{number}.weight", TensorKind.WEIGHT, "")
    clock.begin(mode)
    kinds_of_steps = len(clock._schedule(mode))
    looked: list[str] = []
    belongs = Collection.belongs

    def counted(collection: Collection, *given: Any) -> bool:
        looked.append(collection.name)
        return belongs(collection, *given)

    monkeypatch.setattr(Collection, "belongs", counted)
    for number in range(20):
        looked.clear()
        hook._requests.apply(request("layer1.weight", steps=2).decode())
        clock.begin(mode)
        assert looked == [f"capture_more/{number}"] * 50
        for _ in range(3):
            clock.begin(mode)
    assert len(clock._schedule(mode)) == kinds_of_steps


def test_a_pattern_is_a_name_and_is_never_matched(training: tuple[Hook, Steps]) -> None:
    hook, steps = training
    steps(1)
    ask(hook, 0, request("gradient/.*", "(a+)+$"))
    steps(3)
    assert saved(hook, GRADIENT) == [0]


def test_an_error_of_our_own_never_reaches_the_training(
    training: tuple[Hook, Steps], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook, steps = training
    steps(1)

    def fail(text: str) -> None:
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(hook._requests, "apply", fail)
    ask(hook, 0, request(GRADIENT))
    steps(3)
    assert saved(hook, GRADIENT) == [0]
    assert "the part 'capture requests' of the hook failed" in caplog.text


def test_a_request_is_followed_beside_a_stop_that_the_script_does_not_follow(make_hook: MakeHook) -> None:
    stops: list[object] = []
    hook, model = make_hook(on_stop=stops.append, save_config=td.SaveConfig(save_interval=1000)), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    sink = LocalSink(Path(hook.out_dir))
    sink.put_new(stop_key(0), [b"{}"])
    sink.put_new(capture_key(0, 0), [request("fc1_output_0")])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "capture_requests" not in hook._notes or not stops:
        assert time.monotonic() < deadline
        train(model, optimizer)
        time.sleep(0.01)
    train(model, optimizer, steps=4)
    assert len(saved(hook, "fc1_output_0")) == 3
    assert len(stops) == 1


def test_a_step_without_a_request_looks_once_and_finds_nothing(make_hook: MakeHook) -> None:
    hook, model = make_hook(), Net()
    hook.register_module(model)
    looked: list[None] = []
    hook._check_control = lambda: looked.append(None)  # type: ignore[method-assign]
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)
    assert looked == []


def test_a_rule_that_fires_has_the_training_save_more(tmp_path: Path) -> None:
    """The whole path: hook, flusher, rule, action, control/, flusher, hook."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(10):
        layers += [nn.Linear(16, 16), nn.Sigmoid()]
    model, criterion = nn.Sequential(*layers, nn.Linear(16, 2)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statistics = td.ReductionConfig(reductions=["mean"])
    hook = Hook(
        tmp_path / "run",
        save_config=td.SaveConfig(save_interval=5),
        reduction_config=statistics,
        include_collections=["gradients"],
        ring=td.RingConfig(ring_bytes=1 << 22),
        flusher="thread",
    )
    hook.register_module(model)

    def some_steps() -> None:
        optimizer.zero_grad()
        criterion(model(torch.randn(8, 16)), torch.randint(0, 2, (8,))).backward()
        optimizer.step()

    for _ in range(21):
        some_steps()
    report = run(
        tmp_path / "run", [VanishingGradient()], live=True, actions=[CaptureMore(steps=4)],
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    assert report.findings
    assert report.problems == ()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "capture_requests" not in hook._notes:
        assert time.monotonic() < deadline
        some_steps()
    for _ in range(6):
        some_steps()
    hook.close()
    (note,) = hook._notes["capture_requests"]
    tensor = td.create_trial(str(tmp_path / "run")).tensor(report.findings[0].tensor)
    begin, end = note["steps"]["TRAIN"]
    assert end - begin == 4
    assert set(range(begin, end)) <= set(tensor.steps())
    for step in range(begin, end):
        assert tensor.value(step).size > 0
