"""A model on a GPU: this version captures host memory only, says so, and leaves the training alone."""

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


def test_gpu_tensors_are_rows_that_say_why_they_were_skipped(make_hook: MakeHook, read_run: ReadRun) -> None:
    _, hook = losses_on_the_gpu(make_hook)
    drops = hook.counters().drops["unsupported_device"].tensors  # type: ignore[attr-defined]
    rows = [row for row in read_run(hook).rows if row["status"] == "skipped"]  # type: ignore[arg-type]
    assert {row["reason"] for row in rows} == {"unsupported_device"}
    assert len(rows) == drops > 0
