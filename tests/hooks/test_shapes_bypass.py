"""Modules that bypass hooks: fused paths remain in use, and the run has a reason for each missing tensor."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import tdcore as td
from tdcore.cli import main
from tdcore.errors import ConfigError, TensorUnavailable
from tdcore.hooks.pytorch import Hook

from .conftest import MakeHook, ReadRun

BYPASS = "modules that bypass hooks"

pytestmark = pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning")


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None = None) -> Any:
        return self.head(self.encoder(x, src_key_padding_mask=padding))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.spare, self.tied = nn.Linear(8, 8), nn.Linear(8, 8)
        self.parts = nn.ModuleList([nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> Any:
        y, _ = self.attention(x, x, x, need_weights=False)
        return functional.linear(self.parts[0](y), self.tied.weight)


def notes_of(hook: Hook) -> dict[str, Any]:
    hook.close()
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    notes: dict[str, Any] = document["attempts"]["0"]
    return notes


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    return torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def evaluated(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model.eval()(*padded())
    return output


@pytest.mark.supports(BYPASS, "losses")
def test_a_fused_encoder_gives_the_same_bits_with_capture_on(make_hook: MakeHook, read_run: ReadRun) -> None:
    torch.manual_seed(0)
    model = Encoder()
    plain = evaluated(model)
    hook = make_hook(include_collections=["inputs", "outputs", "weights"])
    hook.register_module(model)
    assert torch.equal(evaluated(model), plain)
    model.train()
    model(torch.randn(2, 5, 8)).sum().backward()
    assert torch.equal(evaluated(model), plain)
    run = read_run(hook)
    assert run.steps("encoder.layers.0.linear1_output_0") == [1]  # in training nothing is fused
    assert run.steps("head_output_0") == [0, 1, 2]
    assert run.steps("Encoder_encoder.layers.0.linear1.weight") == [0, 1, 2]


def test_a_frozen_fused_layer_in_a_model_that_trains_is_left_alone_too(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    losses = []
    for captured in (True, False):
        torch.manual_seed(1)
        model = Encoder()
        model.encoder.requires_grad_(False).eval()
        if captured:
            hook = make_hook(include_collections=["outputs"])
            hook.register_module(model)
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(*padded()).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]
    assert {name for name in read_run(hook).names() if "layers" in name} == set()


@pytest.mark.supports(BYPASS, "breaks")
def test_what_was_left_alone_is_told_with_the_reason(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=["outputs"]), Encoder()
    hook.register_module(model)
    evaluated(model)
    left = notes_of(hook)["not_tapped"]
    assert set(left) == {name for name, _ in model.named_modules() if name.startswith("encoder.layers.")}
    assert all("eval mode" in reason for reason in left.values())


def test_with_the_fused_path_turned_off_everything_is_captured(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
    hook, model = make_hook(include_collections=["outputs"]), Encoder()
    hook.register_module(model)
    evaluated(model)
    assert read_run(hook).steps("encoder.layers.1.linear2_output_0") == [0]


def test_a_pattern_for_a_fused_layer_waits_for_its_training(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_regex="layers.0_output_0|never_there"), Encoder()
    hook.register_module(model)
    hook.set_mode(td.modes.TRAIN)
    for _ in range(2):
        hook.step()
        evaluated(model)
    hook.step()
    model.train()(torch.randn(2, 5, 8))
    assert read_run(hook).steps("encoder.layers.0_output_0") == [2]


def test_a_fused_layer_as_the_root_is_refused_with_advice(make_hook: MakeHook) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(ConfigError, match=r"nn\.Sequential"):
        make_hook().register_module(layer)
    assert not layer._forward_pre_hooks


@pytest.mark.supports(BYPASS, "values")
def test_modules_that_no_forward_called_are_listed_with_the_reason(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["outputs", "inputs"]), Attention()
    hook.register_module(model)
    for _ in range(2):
        hook.step()
        model(torch.randn(2, 3, 8))
    never = notes_of(hook)["never_called"]
    assert set(never) == {"attention.out_proj", "spare", "tied"}
    assert "MultiheadAttention" in never["attention.out_proj"]
    assert "no saved forward called it" in never["spare"]
    assert "parts.0_output_0" in read_run(hook).names()


def test_a_module_that_is_called_later_leaves_the_list(make_hook: MakeHook) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.often, self.seldom = nn.Linear(4, 4), nn.Linear(4, 4)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            return self.seldom(x) if self.calls == 3 else self.often(x)

    hook, model, told = make_hook(include_collections=["outputs"]), Branches(), []
    hook.register_module(model)
    for _ in range(4):
        hook.step()
        model(torch.randn(2, 4))
        told.append(list(hook._notes["never_called"]))
    assert told == [["seldom"], ["seldom"], [], []]


def test_a_model_whose_modules_are_all_called_has_an_empty_list(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=["outputs"]), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    hook.register_module(model)
    model(torch.randn(2, 4))
    assert notes_of(hook)["never_called"] == {}


@pytest.mark.parametrize("make", [Attention, lambda: nn.MultiheadAttention(8, 2, batch_first=True)])
def test_attention_gives_the_same_bits_with_capture_on(
    make_hook: MakeHook, make: Callable[[], nn.Module]
) -> None:
    torch.manual_seed(0)
    model = make().eval()
    x = torch.randn(2, 3, 8)
    arguments = (x,) if isinstance(model, Attention) else (x, x, x)

    def answer() -> torch.Tensor:
        with torch.no_grad():
            found = model(*arguments)
        output: torch.Tensor = found[0] if isinstance(found, tuple) else found
        return output

    plain = answer()
    make_hook(include_collections=["inputs", "outputs"]).register_module(model)
    assert torch.equal(answer(), plain)


def test_a_reader_is_told_why_a_tensor_is_not_there(
    make_hook: MakeHook,
    read_run: ReadRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hook, model = make_hook(include_collections=["outputs", "gradients", "weights"]), Attention()
    model.spare.requires_grad_(False)
    hook.register_module(model)
    model(torch.randn(2, 3, 8)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    run = read_run(hook)
    assert set(run.trial.notes()["never_called"]) == {"attention.out_proj", "spare", "tied"}
    for name, reason in (
        ("attention.out_proj_output_0", "nn.MultiheadAttention reads its weights"),
        ("output_gradient/tied_output_0", "no saved forward called it"),
        ("gradient/Attention_spare.weight", "is frozen"),
    ):
        with pytest.raises(TensorUnavailable, match=reason):
            run.trial.tensor(name)
    monkeypatch.setattr(sys, "argv", ["tdcore", "show", hook.out_dir, "attention.out_proj_output_0"])
    with pytest.raises(SystemExit):
        main()
    assert "reads its weights" in " ".join(capsys.readouterr().err.split())
