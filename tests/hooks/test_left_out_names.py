"""Names: a model may have any number of tensors, and readers report tensors without a record."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.rules import run as judge
from tdcore.trial.missing_text import missing_lines
from tests.hooks.conftest import MakeHook, ReadRun

LAYERS, EXPERTS = 48, 128


class Experts(torch.nn.Module):
    """A small mixture of experts: each expert is a separate module with its own parameters."""

    def __init__(self, layers: int, experts: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(experts)) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.stack([expert(x) for expert in layer.children()]).mean(0)
        return x


def train(model: torch.nn.Module, hook: Hook, steps: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 1)).square().mean()
        hook.save_scalar("loss_value", loss)
        hook.record_tensor_value("my_loss", loss)
        loss.backward()
        optimizer.step()


def test_a_model_of_many_experts_keeps_all_its_series(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Experts(LAYERS, EXPERTS)
    hook = td.watch(model, tmp_path / "run", save_interval=1)
    train(model, hook)
    report = hook.close()
    assert report is not None
    assert report.drained
    assert not report.counters.drops
    run = td.create_trial(str(tmp_path / "run"))
    names = set(run.tensor_names())
    wanted = {f"{kind}Experts_{name}" for name, _ in model.named_parameters() for kind in ("", "gradient/")}
    assert wanted <= names, len(wanted - names)
    assert sum(name.endswith("_output_0") for name in names) >= LAYERS * EXPERTS
    assert "my_loss_output_0" in names
    assert run.missing() == []
    assert "names_left_out" not in run.notes()
    assert not caplog.records


SMALL = td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=4096)


@pytest.fixture
def crowded(make_hook: MakeHook, read_run: ReadRun, caplog: pytest.LogCaptureFixture) -> td.Trial:
    """Run of a hook whose table of names is far too small for its model."""
    model = Experts(2, 30)
    hook = make_hook(
        ring=SMALL,
        include_collections=["weights", "biases", "gradients", "losses"],
        reduction_config=td.ReductionConfig(),
    )
    hook.register_module(model)
    with caplog.at_level(logging.WARNING, "tdcore"):
        train(model, hook, steps=2)
        return read_run(hook).trial


def test_losses_and_scalars_are_kept_when_names_are_left_out(crowded: td.Trial) -> None:
    names = crowded.tensor_names()
    assert {"my_loss_output_0", "scalar/loss_value"} <= set(names)
    assert len(names) < 100


def test_the_log_says_once_that_names_are_left_out(
    crowded: td.Trial, caplog: pytest.LogCaptureFixture
) -> None:
    (message,) = [
        each.getMessage()
        for each in caplog.get_records("setup")
        if "names cannot be stored" in each.getMessage()
    ]
    assert "Experts_layers" in message
    assert "names_bytes" in message


def test_the_notes_of_the_run_have_how_many_names_are_left_out_of_which_kinds(crowded: td.Trial) -> None:
    note = crowded.notes()["names_left_out"]
    kept = len([name for name in crowded.tensor_names() if name.startswith(("Experts", "gradient/"))])
    assert sum(note["kinds"].values()) == 4 * 60 - kept
    assert set(note["kinds"]) == {"bias", "gradient", "weight"}
    assert all("names_bytes" in why for why in note["examples"].values())
    assert not set(note["examples"]) & set(crowded.tensor_names())


def test_missing_and_its_lines_have_the_names_that_are_left_out(crowded: td.Trial) -> None:
    (missing,) = crowded.missing()
    assert missing.what == "names"
    assert missing.worker == "worker_0"
    assert missing.left_out is not None
    (line,) = missing_lines([missing])
    assert f"{missing.left_out.names:,} names" in line
    assert "gradient" in line


def test_verdicts_say_which_names_they_lack(crowded: td.Trial, tmp_path: Path) -> None:
    report = judge(tmp_path / "run", ["vanishing_gradient", "loss_not_decreasing"])
    by_rule = {verdict.rule: verdict for verdict in report.verdicts}
    gradients = crowded.notes()["names_left_out"]["kinds"]["gradient"]
    assert f"{gradients} not judged: names left out" in by_rule["VanishingGradient"].text or (
        f"{gradients:,} names" in by_rule["VanishingGradient"].text
    )
    assert "left out" not in by_rule["LossNotDecreasing"].text


def test_a_closed_hook_leaves_no_names_out(make_hook: MakeHook, read_run: ReadRun, tmp_path: Path) -> None:
    hook = make_hook()
    hook.save_scalar("a", 1.0)
    hook.close()
    hook.save_scalar("b", 1.0)
    assert "names_left_out" not in read_run(hook).trial.notes()


def test_a_note_of_left_out_names_that_makes_no_sense_is_ignored(crowded: td.Trial, tmp_path: Path) -> None:
    from tdcore.trial.left_out import left_out_of

    odd: list[Any] = [
        None,
        [],
        "x",
        {"kinds": {"a": -1}},
        {"kinds": {"a": True}},
        {"kinds": {"a": float("nan")}},
    ]
    assert [left_out_of({"names_left_out": each}) for each in odd] == [None] * len(odd)
