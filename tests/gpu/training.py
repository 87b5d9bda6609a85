"""A training on the GPU that records, on the host, the values that its run should contain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.gpu.conftest import same_bits

Wrap = Callable[[nn.Module], nn.Module]


class Net(nn.Module):
    """A convolution in channels_last, batch norm, in-place ReLU, a reused layer, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.again = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.relu(self.again(x) + x)
        out: torch.Tensor = self.head(x.flatten(1))
        return out


@dataclass(kw_only=True)
class Training:
    """Records of a training.

    Its losses, and (step, name of a parameter) -> weight and gradient before the optimizer's step.
    """

    losses: list[torch.Tensor]
    weights: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    gradients: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    def check(self, hook: Hook) -> None:
        """Check that the run contains the same values, bit by bit."""
        trial = td.create_trial(hook.out_dir)
        for (step, name), tensor in self.weights.items():
            assert same_bits(tensor, trial.tensor(name).value(step)), (step, name)
        for (step, name), tensor in self.gradients.items():
            assert same_bits(tensor, trial.tensor(f"gradient/{name}").value(step)), (step, name)


@contextmanager
def deterministic() -> Iterator[None]:
    """Make trainings deterministic: the same training gives the same bits."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def losses_of(
    hook: Hook | None,
    *,
    wrap: Wrap = lambda model: model,
    steps: int = 30,
    amp: torch.dtype | None = None,
    remember: bool = True,
    device: str = "cuda",
    around: Callable[[int], Any] = lambda step: None,
) -> Training:
    """Train Net from one seed; return the losses.

    around(step): called before each step and after the last.
    """
    torch.manual_seed(5)
    model = Net().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=amp is torch.float16)
    batches = [
        (torch.randn(16, 3, 8, 8, device=device), torch.randint(0, 10, (16,), device=device))
        for _ in range(4)
    ]
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    run = wrap(model)
    done = Training(losses=[])
    with deterministic():
        for step in range(steps):
            around(step)
            optimizer.zero_grad()
            data, target = batches[step % len(batches)]
            with torch.autocast(device, dtype=amp, enabled=amp is not None):
                loss = criterion(run(data), target)
            scaler.scale(loss).backward()
            if remember and amp is None:
                for name, parameter in model.named_parameters():
                    done.weights[step, _in_run(name)] = parameter.detach().to("cpu", copy=True)
                    assert parameter.grad is not None
                    done.gradients[step, _in_run(name)] = parameter.grad.to("cpu", copy=True)
            scaler.step(optimizer)
            scaler.update()
            done.losses.append(loss.detach().clone())
        around(steps)
    done.losses = [loss.cpu() for loss in done.losses]
    return done


def _in_run(name: str) -> str:
    """Return the name of a parameter in the run: "conv.weight" is "Net_conv.weight"."""
    module, _, parameter = name.rpartition(".")
    return f"Net_{module}.{parameter}"
