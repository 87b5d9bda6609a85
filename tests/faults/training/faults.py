"""The planted faults: each changes one thing in a healthy training, and says what a diagnosis must name.

A fault is told by its cause (a word of CAUSES), by the tensors or layers that show it, and by the step before
which it must be named. What cannot be told from a training that looks as it should (wrong labels of every
class) is not in the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.faults.training.job import Batch, Job, sgd

__all__ = ["CAUSES", "FAULTS", "Fault", "layers_of"]

# Cause -> rules whose finding names it, as long as nothing else does.
CAUSES: Mapping[str, frozenset[str]] = {
    "learning rate too high": frozenset({"TDC126", "TDC118"}),
    "learning rate too low": frozenset({"TDC126", "TDC118"}),
    "gradients are never cleared": frozenset(),
    "gradients are cleared before the step": frozenset({"TDC119"}),
    "parameters without an optimizer": frozenset({"TDC121"}),
    "frozen parameters": frozenset({"TDC121"}),
    "the graph is cut": frozenset(),
    "a layer is never called": frozenset(),
    "a layer stays in eval mode": frozenset(),
    "weights start too large": frozenset({"TDC117"}),
    "weights start too small": frozenset({"TDC117"}),
    "weights start alike": frozenset({"TDC117"}),
    "saturated activations": frozenset({"TDC122"}),
    "dead units": frozenset({"TDC104"}),
    "vanishing gradients": frozenset({"TDC101"}),
    "exploding gradients": frozenset({"TDC102", "TDC123"}),
    "softmax before the loss": frozenset(),
    "sigmoid before the loss": frozenset(),
    "shapes of the loss are broadcast": frozenset(),
    "targets unrelated to the inputs": frozenset({"TDC103", "TDC106"}),
    "one class only": frozenset({"TDC110"}),
    "class imbalance": frozenset({"TDC110"}),
    "inputs not normalised": frozenset({"TDC112"}),
    "inputs hold NaN": frozenset({"TDC102", "TDC123"}),
    "inputs are constant": frozenset({"TDC119", "TDC121"}),
    "clipping too tight": frozenset(),
    "weight decay too high": frozenset(),
    "overfitting": frozenset({"TDC105"}),
    "capacity too small": frozenset({"TDC106"}),
    "dropout too high": frozenset({"TDC106"}),
    "weights change in evaluation": frozenset(),
    "updates are lost in half precision": frozenset({"TDC124"}),
    "the loss is maximised": frozenset(),
    "the loss is scaled down": frozenset(),
    "logarithm or root of zero": frozenset({"TDC123", "TDC102"}),
    "corrupted batches": frozenset({"TDC109"}),
    "training has stopped in the middle": frozenset({"TDC121", "TDC118"}),
    "padding": frozenset({"TDC113"}),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. plant: changes a job. on: names of trainings of both parts that it can be planted in.

    cause: a key of CAUSES. where: part of the names of tensors that show it, "" for the whole model; {first},
    {middle} and {last} stand for the job's layers. within: steps in which it must be named. since: the step
    from which the fault acts.
    """

    name: str
    cause: str
    plant: Callable[[Job], None]
    on: tuple[str, ...]
    where: str = ""
    since: int = 0
    within: int = 200


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules with a weight matrix of their own, in order of registration."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
    return [(name, one) for name, one in model.named_modules() if type(one) in kinds]


def _middle(model: nn.Module) -> tuple[str, Any]:
    found = layers_of(model)
    return found[len(found) // 2]


def _first(model: nn.Module) -> tuple[str, Any]:
    return layers_of(model)[0]


def _scaled(job: Job, factor: float) -> None:
    make = job.optimizer

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made = make(parameters)
        for group in made.param_groups:
            group["lr"] *= factor
        return made

    job.optimizer = optimizer


def _mapped(job: Job, change: Callable[[Batch, int], Batch]) -> None:
    batch = job.batch
    job.batch = lambda step: change(batch(step), step)
    job.held_out = [change(one, -1) for one in job.held_out]


def _inputs(change: Callable[[Tensor, int], Tensor]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        _mapped(job, lambda batch, step: (change(batch[0], step), batch[1]))

    return plant


def _loss(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        job.loss = wrap(job.loss)

    return plant


class Before(nn.Module):
    """A loss whose outputs are changed first. The loss itself is a module that is called."""

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
    """A model whose last values pass through an activation, as a model that ends in softmax has it."""

    def __init__(self, inner: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, last

    def forward(self, *inputs: Any) -> Tensor:
        result: Tensor = self.last(self.inner(*inputs))
        return result


class FlatMse(nn.Module):
    """The mean squared error of (N, 1) and (N,), which broadcasts to (N, N)."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.reshape(-1)).square().mean()


class LogLoss(nn.Module):
    """A cross-entropy written by hand, whose logarithm meets zero."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        likely = torch.softmax(outputs * 40, 1)
        return -likely.gather(1, targets[:, None]).log().mean()


class RootLoss(nn.Module):
    """The root of a squared error, whose gradient is infinite at zero."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - outputs.detach()).square() + 0 * targets.mean()).sqrt().mean()


def _fill(value: float | None, scale: float = 1.0) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        with torch.no_grad():
            for _, layer in layers_of(job.model):
                if value is not None:
                    layer.weight.fill_(value)  # type: ignore[union-attr, operator]
                else:
                    layer.weight.mul_(scale)  # type: ignore[union-attr, operator]

    return plant


def _event(where: str, event: Callable[[Job, int], None]) -> Callable[[Job], None]:
    return lambda job: getattr(job, where).append(event)


def _without(pick: Callable[[nn.Module], tuple[str, Any]]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        left_out = {id(one) for one in pick(job.model)[1].parameters()}
        job.trained = lambda model: [one for one in model.parameters() if id(one) not in left_out]

    return plant


def _freeze(job: Job) -> None:
    for one in _middle(job.model)[1].parameters():
        one.requires_grad_(False)


def _cut(job: Job) -> None:
    _middle(job.model)[1].register_forward_hook(lambda module, inputs, output: output.detach())


def _skip(job: Job) -> None:
    job.model.register_module("extra", nn.Linear(8, 8))


def _eval(kinds: tuple[type[nn.Module], ...]) -> Callable[[Job], None]:
    def event(job: Job, step: int) -> None:
        for one in job.model.modules():
            if isinstance(one, kinds):
                one.eval()

    return _event("before_forward", event)


def _dead(job: Job) -> None:
    with torch.no_grad():
        for name, layer in layers_of(job.model)[:-1]:
            del name
            layer.bias.fill_(-30.0)  # type: ignore[union-attr, operator]


def _swap(old: type[nn.Module], new: Callable[[], nn.Module]) -> Callable[[Job], None]:
    def plant(job: Job) -> None:
        for module in list(job.model.modules()):
            for key, child in list(module.named_children()):
                if isinstance(child, old):
                    setattr(module, key, new())

    return plant


def _deep_sigmoid(job: Job) -> None:
    _swap(nn.Tanh, nn.Sigmoid)(job)
    with torch.no_grad():
        for _, layer in layers_of(job.model):
            layer.weight.mul_(0.3)  # type: ignore[union-attr, operator]


def _drop(job: Job) -> None:
    found = [one for one in job.model.modules() if isinstance(one, nn.Dropout)]
    for one in found:
        one.p = 0.97


def _relabel(job: Job) -> None:
    noise = torch.Generator().manual_seed(5)

    def change(batch: Batch, step: int) -> Batch:
        inputs, targets = batch
        return inputs, targets[torch.randperm(len(targets), generator=noise)]

    _mapped(job, change)


def _one_class(job: Job) -> None:
    _mapped(job, lambda batch, step: (batch[0], torch.zeros_like(batch[1])))


def _imbalance(job: Job) -> None:
    batch = job.batch

    def rare(step: int) -> Batch:
        inputs, targets = batch(step)
        keep = (targets != 1) | (torch.arange(len(targets)) == step % 64)
        return inputs[keep], targets[keep]

    job.batch = rare


def _few(job: Job) -> None:
    first = job.batch(0)
    rows = slice(0, 12)
    job.batch = lambda step: (first[0][rows], first[1][rows])
    job.steps = 400


def _nan_at(step: int) -> Callable[[Job], None]:
    def change(inputs: Tensor, now: int) -> Tensor:
        if now != step:
            return inputs
        found = inputs.clone()
        found.view(-1)[3] = math.nan
        return found

    return _inputs(change)


def _maximised(job: Job) -> None:
    job.loss = After(job.loss, lambda loss: -loss)


def _clear_first(job: Job) -> None:
    job.after_backward.append(lambda job, step: job.current.zero_grad(set_to_none=False))  # type: ignore[union-attr]


def _step_in_evaluation(job: Job) -> None:
    def event(job: Job, step: int) -> None:
        inputs, targets = job.held_out[0]
        with torch.enable_grad():
            outputs = job.model(*inputs) if isinstance(inputs, tuple) else job.model(inputs)
            job.loss(outputs, targets).backward()
        job.current.step()  # type: ignore[union-attr]
        job.current.zero_grad()  # type: ignore[union-attr]

    job.in_validation.append(event)


def _half(job: Job) -> None:
    job.model.to(torch.bfloat16)
    inner = job.loss
    job.loss = Before(inner, lambda outputs: outputs.float())
    job.optimizer = sgd(2e-4)
    _inputs(lambda inputs, step: inputs.to(torch.bfloat16) if inputs.is_floating_point() else inputs)(job)


def _corrupted(job: Job) -> None:
    def change(inputs: Tensor, step: int) -> Tensor:
        return inputs * 30 + 20 if step >= 100 and step % 25 < 4 else inputs

    batch = job.batch
    job.batch = lambda step: (change(batch(step)[0], step), batch(step)[1])


def _stops(job: Job) -> None:
    rate = job.rate
    job.rate = lambda step: rate(step) if step < 60 else 0.0


def _decay(job: Job) -> None:
    make = job.optimizer

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        rate = make(parameters).param_groups[0]["lr"]
        return torch.optim.AdamW(parameters, lr=max(rate, 5e-3), weight_decay=25.0)

    job.optimizer = optimizer


def _tiny(job: Job) -> None:
    with torch.no_grad():
        name, layer = _middle(job.model)
        del name
        layer.weight[1:] = 0
        layer.bias.zero_()
    layer.weight.register_hook(lambda gradient: torch.cat([gradient[:1], 0 * gradient[1:]]))
    layer.bias.register_hook(lambda gradient: torch.cat([gradient[:1], 0 * gradient[1:]]))


def _padded(job: Job) -> None:
    def change(inputs: Tensor, step: int) -> Tensor:
        found = inputs.clone()
        found[:, 3:] = 0
        return found

    _inputs(change)(job)


_CLASSIFIERS = ("mlp", "deep_tanh", "cnn", "resnet", "gru", "bag", "vit", "lstm", "graph", "mixer", "tabular")
_REGRESSIONS = ("regression", "recommender", "forecast")
_WITH_RELU = ("mlp", "regression", "cnn", "segmentation", "graph", "triplets", "autoencoder")
_ANY = ("mlp", "cnn", "gru", "transformer", "autoencoder", "vit", "lstm", "segmentation", "mixer", "forecast")
_LAYERED = ("mlp", "cnn", "resnet", "regression", "segmentation", "graph", "forecast", "tabular")

FAULTS: tuple[Fault, ...] = (
    Fault(name="rate x1000", cause="learning rate too high", plant=lambda job: _scaled(job, 1000), on=_ANY),
    Fault(name="rate x60", cause="learning rate too high", plant=lambda job: _scaled(job, 60), on=_LAYERED),
    Fault(name="rate /10000", cause="learning rate too low", plant=lambda job: _scaled(job, 1e-4), on=_ANY),
    Fault(
        name="never cleared", cause="gradients are never cleared",
        plant=lambda job: setattr(job, "clears", False), on=("mlp", "cnn", "regression", "lstm", "tabular", "graph"),
    ),
    Fault(
        name="cleared before the step", cause="gradients are cleared before the step", plant=_clear_first,
        on=("mlp", "gru", "transformer", "vae", "segmentation", "forecast"), where="gradient/", within=120,
    ),
    Fault(
        name="a layer that no optimizer has", cause="parameters without an optimizer",
        plant=_without(_middle), on=_LAYERED, where="{middle}",
    ),
    Fault(name="a frozen layer", cause="frozen parameters", plant=_freeze, on=_LAYERED, where="{middle}"),
    Fault(
        name="detached in the middle", cause="the graph is cut", plant=_cut,
        on=("mlp", "cnn", "resnet", "autoencoder", "vit", "segmentation", "tabular", "forecast"), where="{first}",
    ),
    Fault(
        name="a layer that is never called", cause="a layer is never called", plant=_skip, on=_ANY, where="extra",
    ),
    Fault(
        name="normalisation in eval mode", cause="a layer stays in eval mode",
        plant=_eval((nn.BatchNorm2d,)), on=("cnn", "resnet"), where="norm",
    ),
    Fault(
        name="dropout in eval mode", cause="a layer stays in eval mode",
        plant=_eval((nn.Dropout,)), on=("cnn", "lstm"), where="drop",
    ),
    Fault(name="weights x30", cause="weights start too large", plant=_fill(None, 30), on=_LAYERED, within=60),
    Fault(name="weights /1000", cause="weights start too small", plant=_fill(None, 1e-3), on=_LAYERED, within=60),
    Fault(name="weights of zero", cause="weights start alike", plant=_fill(0.0), on=_LAYERED, within=60),
    Fault(name="weights all 0.05", cause="weights start alike", plant=_fill(0.05), on=_LAYERED, within=60),
    Fault(
        name="saturated tanh", cause="saturated activations", plant=_fill(None, 25), on=("deep_tanh",),
        where="layers", within=60,
    ),
    Fault(
        name="deep sigmoids", cause="vanishing gradients", plant=_deep_sigmoid, on=("deep_tanh",),
        where="{first}",
    ),
    Fault(name="dead units", cause="dead units", plant=_dead, on=_WITH_RELU, within=100),
    Fault(
        name="softmax before cross-entropy", cause="softmax before the loss",
        plant=lambda job: setattr(job, "model", Head(job.model, nn.Softmax(1))), on=_CLASSIFIERS,
    ),
    Fault(
        name="sigmoid before BCE with logits", cause="sigmoid before the loss",
        plant=lambda job: setattr(job, "model", Head(job.model, nn.Sigmoid())), on=("binary", "segmentation"),
    ),
    Fault(
        name="broadcast in the squared error", cause="shapes of the loss are broadcast",
        plant=lambda job: setattr(job, "loss", FlatMse()), on=_REGRESSIONS,
    ),
    Fault(name="shuffled targets", cause="targets unrelated to the inputs", plant=_relabel, on=(*_CLASSIFIERS, *_REGRESSIONS)),
    Fault(name="one class only", cause="one class only", plant=_one_class, on=("mlp", "cnn", "lstm", "tabular")),
    Fault(name="a rare class", cause="class imbalance", plant=_imbalance, on=("mlp", "cnn", "gru", "lstm", "vit", "tabular")),
    Fault(
        name="inputs x500", cause="inputs not normalised", plant=_inputs(lambda x, step: x * 500),
        on=("mlp", "cnn", "regression", "resnet", "vit", "tabular", "segmentation"),
    ),
    Fault(
        name="inputs + 200", cause="inputs not normalised", plant=_inputs(lambda x, step: x + 200),
        on=("mlp", "cnn", "autoencoder", "mixer", "forecast", "segmentation"),
    ),
    Fault(
        name="NaN in one batch", cause="inputs hold NaN", plant=_nan_at(80),
        on=("mlp", "cnn", "gru", "vit", "forecast", "segmentation"), since=80, within=40,
    ),
    Fault(
        name="inputs of zeros", cause="inputs are constant", plant=_inputs(lambda x, step: torch.zeros_like(x)),
        on=("mlp", "cnn", "gru", "vit", "mixer", "segmentation"),
    ),
    Fault(
        name="clipped to 1e-5", cause="clipping too tight", plant=lambda job: (setattr(job, "clip", 1e-5), setattr(job, "optimizer", sgd(0.1)))[0],
        on=("mlp", "gru", "regression", "lstm", "tabular", "forecast"),
    ),
    Fault(name="decay of 25", cause="weight decay too high", plant=_decay, on=("mlp", "cnn", "transformer", "vit", "graph", "tabular")),
    Fault(name="twelve rows", cause="overfitting", plant=_few, on=("mlp", "cnn", "regression", "vit", "tabular", "forecast"), within=400),
    Fault(name="one unit in a layer", cause="capacity too small", plant=_tiny, on=("mlp", "regression", "tabular"), where=""),
    Fault(name="dropout of 0.97", cause="dropout too high", plant=_drop, on=("cnn", "lstm"), where=""),
    Fault(
        name="steps in the evaluation", cause="weights change in evaluation", plant=_step_in_evaluation,
        on=("mlp", "cnn", "regression", "lstm", "graph", "forecast"),
    ),
    Fault(
        name="updates below bfloat16", cause="updates are lost in half precision", plant=_half,
        on=("mlp", "regression", "tabular"),
    ),
    Fault(name="a loss of the wrong sign", cause="the loss is maximised", plant=_maximised, on=("mlp", "regression", "gru", "vit", "forecast", "graph"), within=100),
    Fault(
        name="a loss / 1e6", cause="the loss is scaled down", plant=_loss(lambda inner: After(inner, lambda loss: loss * 1e-6)),
        on=("deep_tanh", "resnet", "binary", "tabular"),
    ),
    Fault(name="logarithm of zero", cause="logarithm or root of zero", plant=lambda job: setattr(job, "loss", LogLoss()), on=("mlp", "bag", "graph", "tabular"), within=60),
    Fault(name="root of zero", cause="logarithm or root of zero", plant=lambda job: setattr(job, "loss", RootLoss()), on=("regression", "forecast"), within=60),
    Fault(name="corrupted batches", cause="corrupted batches", plant=_corrupted, on=("mlp", "cnn", "regression", "vit", "tabular", "forecast"), since=100, within=120),
    Fault(name="a rate of zero from step 60", cause="training has stopped in the middle", plant=_stops, on=("mlp", "cnn", "gru", "vit", "lstm", "forecast"), since=60),
    Fault(name="padding", cause="padding", plant=_padded, on=("bag", "lstm")),
)  # fmt: skip
