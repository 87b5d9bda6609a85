"""Functions that plant faults: each changes one thing of a job. faults.py uses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.faults.training.job import Batch, Job, sgd

__all__ = [
    "After",
    "Before",
    "Head",
    "LogLoss",
    "RootLoss",
    "add_event",
    "add_head",
    "add_unused_layer",
    "change_batches",
    "change_inputs",
    "clear_before_step",
    "clip_tightly",
    "corrupt_batches",
    "detach_middle",
    "enlarge_recurrence",
    "fill_weights",
    "first_layer",
    "flatten_targets",
    "freeze_middle",
    "keep_in_eval",
    "keep_one_class",
    "keep_one_unit",
    "keep_twelve_rows",
    "layers_of",
    "leave_out",
    "lower_biases",
    "middle_layer",
    "negate_loss",
    "never_clear",
    "pad_inputs",
    "put_nan",
    "raise_decay",
    "raise_dropout",
    "replace_loss",
    "replace_modules",
    "scale_rate",
    "shuffle_targets",
    "step_in_validation",
    "stop_rate",
    "thin_out_class",
    "train_in_bfloat16",
    "use_sigmoids",
    "wrap_loss",
]


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that have a weight matrix, in order of registration."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
    return [(name, one) for name, one in model.named_modules() if type(one) in kinds]


def middle_layer(model: nn.Module) -> tuple[str, Any]:
    found = layers_of(model)
    return found[len(found) // 2]


def first_layer(model: nn.Module) -> tuple[str, Any]:
    return layers_of(model)[0]


def scale_rate(factor: float) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        make = job.optimizer

        def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            made = make(parameters)
            for group in made.param_groups:
                group["lr"] *= factor
            return made

        job.optimizer = optimizer

    return plant


def enlarge_recurrence(job: Job) -> None:
    with torch.no_grad():
        for name, parameter in job.model.named_parameters():
            if "weight_hh" in name:
                parameter.mul_(30)
    job.clip, job.optimizer = None, sgd(0.3)


def never_clear(job: Job) -> None:
    job.clears = False


def clip_tightly(job: Job) -> None:
    job.clip, job.optimizer = 1e-5, sgd(0.1)


def add_head(make: Callable[[], nn.Module]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        job.model = Head(job.model, make())

    return plant


def replace_loss(make: Callable[[], nn.Module]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        job.loss = make()

    return plant


def change_batches(job: Job, change: Callable[[Batch, int], Batch]) -> None:
    batch = job.batch
    job.batch = lambda step: change(batch(step), step)
    job.held_out = [change(one, -1) for one in job.held_out]


def change_inputs(change: Callable[[Tensor, int], Tensor]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        change_batches(job, lambda batch, step: (change(batch[0], step), batch[1]))

    return plant


def wrap_loss(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        job.loss = wrap(job.loss)

    return plant


class Before(nn.Module):
    """A loss whose outputs are changed first. The inner loss is a module that is called."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        result: Tensor = self.inner(self.change(outputs), targets)
        return result


class After(nn.Module):
    """A loss whose result is changed."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.change(self.inner(outputs, targets))


class Head(nn.Module):
    """A model with an activation after its last layer, such as a softmax."""

    def __init__(self, inner: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, last

    def forward(self, *inputs: Any) -> Tensor:
        result: Tensor = self.last(self.inner(*inputs))
        return result


class LogLoss(nn.Module):
    """A hand-written cross-entropy whose logarithm gets zeros."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        likely = torch.softmax(outputs * 400, 1)
        return -likely.gather(1, targets[:, None]).log().mean()


class RootLoss(nn.Module):
    """The root of a squared error, whose gradient is infinite at zero."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - outputs.detach()).square() + 0 * targets.mean()).sqrt().mean()


def fill_weights(value: float | None, scale: float = 1.0) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        with torch.no_grad():
            for _, layer in layers_of(job.model):
                if value is not None:
                    layer.weight.fill_(value)  # type: ignore[operator]
                else:
                    layer.weight.mul_(scale)  # type: ignore[operator]

    return plant


def add_event(where: str, event: Callable[[Job, int], None]) -> Callable[[Job], None]:
    return lambda job: getattr(job, where).append(event)


def leave_out(pick: Callable[[nn.Module], tuple[str, Any]]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        left_out = {id(one) for one in pick(job.model)[1].parameters()}
        job.trained = lambda model: [one for one in model.parameters() if id(one) not in left_out]

    return plant


def freeze_middle(job: Job) -> None:
    for one in middle_layer(job.model)[1].parameters():
        one.requires_grad_(False)


def detach_middle(job: Job) -> None:
    middle_layer(job.model)[1].register_forward_hook(lambda module, inputs, output: output.detach())


def add_unused_layer(job: Job) -> None:
    job.model.register_module("extra", nn.Linear(8, 8))


def keep_in_eval(kinds: tuple[type[nn.Module], ...]) -> Callable[[Job], None]:
    def event(job: Job, step: int) -> None:
        for one in job.model.modules():
            if isinstance(one, kinds):
                one.eval()

    return add_event("before_forward", event)


def lower_biases(job: Job) -> None:
    with torch.no_grad():
        for name, layer in layers_of(job.model)[:-1]:
            del name
            layer.bias.fill_(-30.0)  # type: ignore[operator]


def replace_modules(old: type[nn.Module], new: Callable[[], nn.Module]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        for module in list(job.model.modules()):
            for key, child in list(module.named_children()):
                if isinstance(child, old):
                    setattr(module, key, new())

    return plant


def use_sigmoids(job: Job) -> None:
    replace_modules(nn.Tanh, nn.Sigmoid)(job)
    with torch.no_grad():
        for _, layer in layers_of(job.model):
            layer.weight.mul_(0.3)  # type: ignore[operator]


def raise_dropout(job: Job) -> None:
    found = [one for one in job.model.modules() if isinstance(one, nn.Dropout)]
    for one in found:
        one.p = 0.97


def flatten_targets(job: Job) -> None:
    """Flatten targets to (N,) for outputs of shape (N, 1): the squared error broadcasts each with each."""
    change_batches(job, lambda batch, step: (batch[0], batch[1].reshape(len(batch[1]), -1)[:, 0]))


def shuffle_targets(job: Job) -> None:
    noise = torch.Generator().manual_seed(5)

    def change(batch: Batch, step: int) -> Batch:
        inputs, targets = batch
        return inputs, targets[torch.randperm(len(targets), generator=noise)]

    change_batches(job, change)


def keep_one_class(job: Job) -> None:
    change_batches(job, lambda batch, step: (batch[0], torch.zeros_like(batch[1])))


def thin_out_class(job: Job) -> None:
    batch = job.batch

    def rare(step: int) -> Batch:
        inputs, targets = batch(step)
        keep = (targets != 1) | (torch.arange(len(targets)) == step % 64)
        return inputs[keep], targets[keep]

    job.batch = rare


def keep_twelve_rows(job: Job) -> None:
    first = job.batch(0)
    rows = slice(0, 12)
    job.batch = lambda step: (first[0][rows], first[1][rows])
    job.steps = 400


def put_nan(step: int) -> Callable[[Job], None]:
    def change(inputs: Tensor, now: int) -> Tensor:
        if now != step:
            return inputs
        found = inputs.clone()
        found.view(-1)[3] = math.nan
        return found

    return change_inputs(change)


def negate_loss(job: Job) -> None:
    job.loss = After(job.loss, lambda loss: -loss)


def clear_before_step(job: Job) -> None:
    job.after_backward.append(lambda job, step: job.current.zero_grad(set_to_none=False))  # type: ignore[union-attr]


def step_in_validation(job: Job) -> None:
    def event(job: Job, step: int) -> None:
        inputs, targets = job.held_out[0]
        with torch.enable_grad():
            outputs = job.model(*inputs) if isinstance(inputs, tuple) else job.model(inputs)
            job.loss(outputs, targets).backward()
        job.current.step()  # type: ignore[union-attr]
        job.current.zero_grad()  # type: ignore[union-attr]

    job.in_validation.append(event)


def train_in_bfloat16(job: Job) -> None:
    job.model.to(torch.bfloat16)
    inner = job.loss
    job.loss = Before(inner, lambda outputs: outputs.float())
    job.optimizer = sgd(2e-4)
    change_inputs(lambda inputs, step: inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs)(
        job
    )


def corrupt_batches(job: Job) -> None:
    def change(inputs: Tensor, step: int) -> Tensor:
        return inputs * 30 + 20 if step >= 100 and step % 25 < 4 else inputs

    batch = job.batch
    job.batch = lambda step: (change(batch(step)[0], step), batch(step)[1])


def stop_rate(job: Job) -> None:
    rate = job.rate
    job.rate = lambda step: rate(step) if step < 60 else 0.0


def raise_decay(job: Job) -> None:
    make = job.optimizer

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        rate = make(parameters).param_groups[0]["lr"]
        return torch.optim.AdamW(parameters, lr=max(rate, 5e-3), weight_decay=25.0)

    job.optimizer = optimizer


def keep_one_unit(job: Job) -> None:
    with torch.no_grad():
        name, layer = middle_layer(job.model)
        del name
        layer.weight[1:] = 0
        layer.bias.zero_()
    layer.weight.register_hook(lambda gradient: torch.cat([gradient[:1], 0 * gradient[1:]]))
    layer.bias.register_hook(lambda gradient: torch.cat([gradient[:1], 0 * gradient[1:]]))


def pad_inputs(job: Job) -> None:
    def change(inputs: Tensor, step: int) -> Tensor:
        found = inputs.clone()
        found[:, 3:] = 0
        return found

    change_inputs(change)(job)
