"""Subclasses of Hook that override forward_hook(), the extension point of smdebug."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tdcore as td
from tdcore.hooks.pytorch import Hook

OPTIONS: dict[str, Any] = {
    "flusher": "thread",
    "save_config": td.SaveConfig(save_interval=2),
    "include_collections": ["outputs", "gradients"],
    "ring": td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(checkpoint(self.first, x, use_reentrant=False))
        return found


def train(hook: Hook, model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    hook.register_module(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(steps):
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    hook.close()
    return losses


class Keeps(Hook):
    """Records its calls, and captures the outputs of linear layers only."""

    seen: list[tuple[str, int]]

    def forward_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        assert isinstance(inputs, tuple)
        self.seen.append((type(module).__name__, self.global_step))
        if type(module) is nn.Linear:
            super().forward_hook(module, inputs, outputs)


def test_an_override_is_called_for_every_captured_module_and_may_call_super(tmp_path: Path) -> None:
    hook, model = Keeps(tmp_path / "run", **OPTIONS), Net()
    hook.seen = []
    train(hook, model)
    once = ["Linear", "Linear", "Net"]
    assert hook.seen == [(name, step) for step in (0, 2) for name in once]
    trial = td.create_trial(str(tmp_path / "run"))
    assert trial.tensor("first_output_0").steps() == trial.tensor("second_output_0").steps() == [0, 2]
    assert "Net_output_0" not in trial.tensor_names()
    assert len(trial.rows("^first_output_0$").to_pylist()) == 2
    assert not trial.notes().get("faults")


def test_without_an_override_the_method_captures_nothing_twice(tmp_path: Path) -> None:
    hook, model = Hook(tmp_path / "run", **OPTIONS), Net()
    train(hook, model)
    trial = td.create_trial(str(tmp_path / "run"))
    assert len(trial.rows("^Net_output_0$").to_pylist()) == 2


class Breaks(Hook):
    def forward_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        raise ArithmeticError("of the subclass")


def test_an_exception_is_a_fault_of_the_hook_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    plain = train(Hook(tmp_path / "plain", **OPTIONS), Net())
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, "tdcore"):
        found = train(Breaks(tmp_path / "run", **OPTIONS), Net())
    assert list(map(torch.equal, found, plain)) == [True] * 3
    assert len([record for record in caplog.records if "forward_hook" in record.getMessage()]) == 1
    trial = td.create_trial(str(tmp_path / "run"))
    assert trial.notes()["faults"] == {"forward_hook": "ArithmeticError: of the subclass"}
    assert trial.tensor("gradient/Net_first.weight").steps() == [0, 2]
