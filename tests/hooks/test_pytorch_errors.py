"""Stop requests reach the training; errors of tdcore never do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tdcore.errors import StopTraining
from tdcore.format.layout import stop_key
from tdcore.hooks.pytorch import Hook
from tdcore.session import StopRequest
from tests.waiting import wait_until

from .conftest import MakeHook
from .models import Net, train

REQUEST = {"reason": "loss is NaN", "rule": "TDC102", "step": 3, "by": "exploding_tensor"}


def ask_to_stop(hook: Hook, request: dict[str, Any] = REQUEST) -> None:
    """Request a stop as the stop action does, then wait until the flusher has read the request."""
    path = Path(hook.out_dir) / stop_key(0)
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".new")  # the flusher must not read a part of the request
    draft.write_text(json.dumps(request))
    draft.rename(path)
    assert hook._session is not None
    wait_until(hook._session.stop_request, "the request arrived")


def test_a_stop_request_ends_the_training_at_the_start_of_the_next_step(make_hook: MakeHook) -> None:
    hook, model = make_hook(), Net()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    ask_to_stop(hook)
    with pytest.raises(StopTraining) as stop:
        model(torch.randn(2, 4))
    assert (stop.value.reason, stop.value.step, stop.value.requested_by) == (
        "loss is NaN",
        1,
        "exploding_tensor",
    )
    # a script that catches the exception may continue: a last evaluation, a checkpoint
    model(torch.randn(2, 4))


def test_a_stop_request_is_seen_after_the_optimizers_step(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=["gradients"]), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.fc1.weight.detach().clone()
    model(torch.randn(2, 4)).sum().backward()
    ask_to_stop(hook)
    with pytest.raises(StopTraining):
        optimizer.step()
    assert not torch.equal(model.fc1.weight, before)


def test_a_stop_request_is_seen_by_a_step_by_hand(make_hook: MakeHook) -> None:
    hook = make_hook()
    ask_to_stop(hook)
    with pytest.raises(StopTraining):
        hook.step()


def test_on_stop_is_called_once_instead_of_raising(make_hook: MakeHook) -> None:
    asked: list[StopRequest] = []
    hook, model = make_hook(on_stop=asked.append), Net()
    hook.register_module(model)
    ask_to_stop(hook)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)
    assert [(request.reason, request.rule, request.by) for request in asked] == [
        ("loss is NaN", "TDC102", "exploding_tensor")
    ]


@pytest.mark.parametrize(
    "broken",
    [
        "pytorch.Hook._find_step",
        "pytorch.Hook._start_training",
        "pytorch.Hook._end_step",
        "pytorch.Hook._owns",
        "pytorch.forward.entries.Entries._is_entry",
        "pytorch.steps.root.Root._attach",
        "recorder.Recorder.capture",
        "pytorch.model.model_view.ModelView.matches",
        "pytorch.parameters.gradient_order.GradientOrder.start",
        "pytorch.forward.losses.LossHooks.attach",
        "pytorch.parameters.ownership.Ownership.look",
        "pytorch.parameters.parameter_capture.ParameterCapture.begin_forward",
        "pytorch.parameters.parameter_capture.ParameterCapture.before_step",
        "pytorch.forward.unhookable.UnhookableLayers.forward_ended",
    ],
)
def test_an_error_in_the_capture_never_reaches_the_training_and_is_said_once(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(f"tdcore.hooks.{broken}", fail)
    hook = make_hook(save_all=True)
    model, criterion = Net(), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=5, criterion=criterion)
    assert len(losses) == 5
    parts = [message for message in caplog.messages if "may record nothing more" in message]
    assert 1 <= len(parts) == len(set(parts)) <= 2
    hook.close()
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    assert "a fault of our own" in str(document["attempts"]["0"]["faults"])


def test_a_fault_in_one_part_leaves_the_others_on(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no names today")

    hook, model = make_hook(save_all=True), Net()
    hook.register_module(model)
    monkeypatch.setattr("tdcore.hooks.pytorch.forward.module_hooks.ModuleHook._spec_for", fail)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    assert "the part 'activations' of the hook failed" in caplog.text
    assert hook.counters().tensors >= 16  # weights and gradients of two steps


def test_wrong_values_of_the_script_are_not_its_end(
    make_hook: MakeHook, caplog: pytest.LogCaptureFixture
) -> None:
    hook, model = make_hook(), Net()
    hook.register_module(model)
    model(torch.randn(2, 4))
    hook.save_scalar("x", "not a number")
    hook.save_scalar("y", 2.0)
    hook.save_tensor("z", object())
    hook.record_tensor_value("loss", None)
    assert "the part 'save_scalar' of the hook failed" in caplog.text
    assert hook.counters().tensors >= 1


def test_a_module_that_takes_no_hooks_is_left_out_with_a_message(
    make_hook: MakeHook, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(nn.Linear):
        """A module that cannot have hooks."""

        @property
        def _forward_hooks(self) -> Any:
            raise RuntimeError("no hooks here")

        @_forward_hooks.setter
        def _forward_hooks(self, value: object) -> None:
            pass

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x)

    hook, model = make_hook(save_all=True), Net()
    model.fc1 = Odd(4, 8)
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    assert [message for message in caplog.messages if "Odd" in message] == [
        "tdcore: outputs of fc1 (Odd) cannot be captured: RuntimeError: no hooks here"
    ]
    hook.close()
    assert hook._names._ids.keys() >= {"fc2_output_0", "gradient/Net_fc1.weight"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module_does_not_end_the_training(make_hook: MakeHook) -> None:
    hook, model = make_hook(save_all=True), Net()
    setattr(model, "fc1", torch.jit.script(model.fc1))  # noqa: B010 -- a type of its own
    hook.register_module(model)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    assert len(losses) == 2
    hook.close()
    assert "gradient/Net_fc1.weight" in hook._names._ids


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_tracing_the_model_captures_nothing_of_it(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=["outputs"]), Net()
    hook.register_module(model)
    traced = torch.jit.trace(model, torch.randn(2, 4), check_trace=False)
    assert hook.counters().tensors == 0
    x = torch.randn(2, 4)
    assert torch.equal(traced(x), model.forward(x))
