"""Errors of tdcore inside hooks that PyTorch calls do not reach the training.

The test trains once and records pairs of functions: an entry, which is a function of tdcore that other code
calls, and a function that the entry calls. Then it trains once for each pair and raises an error in the
second function.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tdcore as td
import tdcore.hooks
from tdcore.hooks.pytorch import Hook
from tdcore.modes import ModeKeys

from .conftest import MakeHook

# Folders of the package, and functions that check arguments: their errors may reach the script.
_FOLDERS = tuple(str(Path(one.__file__ or "").parent) for one in (td, tdcore.hooks))
_PUBLIC = {"register_module", "register_loss", "set_epoch", "close", "step", "__init__", "__new__"}
# Functions to which an entry delegates all its work. They count as entries.
_GUARDS = {"_guarded", "_save", "_check_control_guarded", "_next_step", "observed"}
_STEPS = 3

Pair = tuple[str, str]


class PlantedError(Exception):
    """The error that the test raises."""


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_FOLDERS)


def name_of(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", f"{Path(code.co_filename).stem}:{code.co_firstlineno}"))


def is_entry(frame: FrameType) -> bool:
    """Return whether a function of tdcore was called from outside, directly or through delegation."""
    caller = frame.f_back
    if caller is None or not is_ours(caller.f_code):
        return True
    return _hands_on(caller.f_code, frame.f_code) and is_entry(caller)


def _hands_on(caller: CodeType, code: CodeType) -> bool:
    return code.co_name in (caller.co_name, *_GUARDS)


@dataclass
class Tracer:
    """A trace function. plant: the pair at which to raise once; None records the pairs without raising."""

    plant: Pair | None = None
    pairs: dict[Pair, None] = field(default_factory=dict)
    raised: bool = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        caller = frame.f_back
        if event != "call" or caller is None or not is_ours(frame.f_code) or not is_ours(caller.f_code):
            return
        if not is_entry(caller) or is_entry(frame) or caller.f_code.co_name in _PUBLIC:
            return
        pair = name_of(caller.f_code), name_of(frame.f_code)
        self.pairs[pair] = None
        if pair == self.plant:
            self.raised = True
            raise PlantedError  # also ends the tracing


class Model(nn.Module):
    """Has a part that is recomputed in backward, a layer that runs twice and a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.spare = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(self.first(x))
        z: torch.Tensor = checkpoint(self.again, y, use_reentrant=False)
        return z

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)


Loop = Callable[[nn.Module, nn.Module, Hook | None], list[float]]


def plain_loop(model: nn.Module, criterion: nn.Module, hook: Hook | None) -> list[float]:
    """Train with an evaluation in each step, and a loss recorded by the script."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.1), []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(2, 4)), torch.randn(2, 4))
        if hook is not None:
            hook.record_tensor_value("own_loss", loss)
        with torch.no_grad():
            model.eval()(torch.randn(2, 4))
        model.train()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def scaled_loop(model: nn.Module, criterion: nn.Module, hook: Hook | None) -> list[float]:
    """Accumulate two micro-batches per step, and scale the loss."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for _ in range(_STEPS):
        for _ in range(2):
            loss = criterion(model(torch.randn(2, 4)), torch.randn(2, 4))
            scaler.scale(loss).backward()
            losses.append(loss.item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses


def closure_loop(model: nn.Module, criterion: nn.Module, hook: Hook | None) -> list[float]:
    """Train with an optimizer that evaluates its closure several times."""
    optimizer, losses = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2), list[float]()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = criterion(model(x), y)
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(_STEPS):
        x, y = torch.randn(2, 4), torch.randn(2, 4)
        optimizer.step(closure)
    return losses


def method_loop(model: nn.Module, criterion: nn.Module, hook: Hook | None) -> list[float]:
    """Train through a method other than forward, updating by hand; the last steps set mode, epoch, step."""
    losses = []
    for step in range(_STEPS + 2):
        if hook is not None and step >= _STEPS:
            hook.set_mode(ModeKeys.TRAIN)
            hook.set_epoch(0)
            hook.step()
        loss = criterion(model.compute(torch.randn(2, 4)), torch.randn(2, 4))  # type: ignore[operator]
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-0.1)
                parameter.grad = None
        losses.append(loss.item())
    return losses


def compute(loop: Loop, hook: Hook | None, tracer: Any = None) -> tuple[list[float], list[torch.Tensor]]:
    """Run a loop; return its losses and the final weights."""
    torch.manual_seed(0)
    model, criterion = Model(), nn.MSELoss()
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    sys.settrace(tracer)
    try:
        losses = loop(model, criterion, hook)
    finally:
        sys.settrace(None)
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def hook_for(make_hook: MakeHook, folder: Path) -> Hook:
    series = ["backward_gradients", "microbatch_gradients", "update_ratios", "output_gradients"]
    return make_hook(out_dir=folder, save_all=True, include_collections=[*series, "all"])


@pytest.mark.parametrize("loop", [plain_loop, scaled_loop, closure_loop, method_loop])
def test_an_error_anywhere_in_a_call_of_torch_stays_in_the_hook(
    make_hook: MakeHook, tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: Loop
) -> None:
    gc.collect()  # hooks that other tests left would be closed during a training, and would be recorded
    expected = compute(loop, None)
    notes = Tracer()
    with hook_for(make_hook, tmp_path / "noted") as hook:
        compute(loop, hook, notes)
    assert len(notes.pairs) > 10
    wrong = []
    for number, pair in enumerate(notes.pairs):
        planted = Tracer(pair)
        caplog.clear()
        with hook_for(make_hook, tmp_path / str(number)) as hook, caplog.at_level(logging.WARNING, "tdcore"):
            try:
                losses, weights = compute(loop, hook, planted)
            except PlantedError:
                wrong.append(f"{pair}: the error left the hook")
                continue
            if losses != expected[0] or not all(map(torch.equal, weights, expected[1])):
                wrong.append(f"{pair}: the training differs")
            told = sum("PlantedError" in str(record.getMessage()) for record in caplog.records)
            if not planted.raised:
                wrong.append(f"{pair}: the error was not planted")
            if not hook._faults and not told:
                wrong.append(f"{pair}: neither a fault nor a log message contains the error")
            if told > 1:
                wrong.append(f"{pair}: the error is logged {told} times")
    assert not wrong, "\n".join(wrong)
