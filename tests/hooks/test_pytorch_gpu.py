"""A model on a GPU is captured as one on the CPU is, and trains as it does without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .conftest import MakeHook, ReadRun

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def losses_on_the_gpu(make_hook: MakeHook | None) -> tuple[list[float], object]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    hook = make_hook(save_all=True) if make_hook is not None else None
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(8, 16).cuda()), torch.randint(0, 4, (8,)).cuda())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, hook


def test_losses_on_the_gpu_are_the_same_with_capture_and_without(make_hook: MakeHook) -> None:
    assert losses_on_the_gpu(make_hook)[0] == losses_on_the_gpu(None)[0]


def test_nothing_of_a_model_on_a_gpu_is_left_out(make_hook: MakeHook, read_run: ReadRun) -> None:
    _, hook = losses_on_the_gpu(make_hook)
    assert dict(hook.counters().drops) == {}  # type: ignore[attr-defined]
    assert [report.error for report in hook.device_reports()] == [""]  # type: ignore[attr-defined]
    run = read_run(hook)  # type: ignore[arg-type]
    assert {row["status"] for row in run.rows} == {"ok"}
    assert {row["step"] for row in run.rows} == set(range(20))
