"""The planted faults: each changes one thing in a healthy training, and lists what a diagnosis must find.

A fault has a cause (a key of CAUSES), the tensors or layers that show it, and the number of steps within
which it must be found. Faults that leave no trace in a training (wrong labels of every class) are not in the
list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tests.faults.training.job import Job
from tests.faults.training.planting import (
    After,
    LogLoss,
    RootLoss,
    add_head,
    add_unused_layer,
    change_inputs,
    clear_before_step,
    clip_tightly,
    corrupt_batches,
    detach_middle,
    enlarge_recurrence,
    fill_weights,
    flatten_targets,
    freeze_middle,
    keep_in_eval,
    keep_one_class,
    keep_one_unit,
    keep_twelve_rows,
    leave_out,
    lower_biases,
    middle_layer,
    negate_loss,
    never_clear,
    pad_inputs,
    put_nan,
    raise_decay,
    raise_dropout,
    replace_loss,
    scale_rate,
    shuffle_targets,
    step_in_validation,
    stop_rate,
    thin_out_class,
    train_in_bfloat16,
    use_sigmoids,
    wrap_loss,
)

__all__ = ["ACCEPTED", "CAUSES", "FAULTS", "Fault"]

# Cause -> rules whose finding indicates it, when they fire alone.
CAUSES: Mapping[str, frozenset[str]] = {
    "learning rate too high": frozenset({"TDC126", "TDC118"}),
    "learning rate too low": frozenset({"TDC126", "TDC118"}),
    "gradients are never cleared": frozenset(),
    "gradients are cleared before the step": frozenset({"TDC119"}),
    "parameters without an optimizer": frozenset({"TDC121", "TDC128"}),
    "frozen parameters": frozenset({"TDC121"}),
    "the graph is cut": frozenset({"TDC128"}),
    "a layer is never called": frozenset({"TDC128"}),
    "a layer stays in eval mode": frozenset({"TDC129"}),
    "weights start too large": frozenset({"TDC117"}),
    "weights start too small": frozenset({"TDC117"}),
    "weights start alike": frozenset({"TDC117"}),
    "saturated activations": frozenset({"TDC122"}),
    "dead units": frozenset({"TDC104"}),
    "vanishing gradients": frozenset({"TDC101"}),
    "exploding gradients": frozenset({"TDC102", "TDC118", "TDC123"}),
    "softmax before the loss": frozenset({"TDC130"}),
    "sigmoid before the loss": frozenset({"TDC130"}),
    "logits before a likelihood loss": frozenset({"TDC130"}),
    "shapes of the loss are broadcast": frozenset({"TDC130"}),
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
    "weights change in evaluation": frozenset({"TDC129"}),
    "updates are lost in half precision": frozenset({"TDC124"}),
    "the loss is maximised": frozenset(),
    "the loss is scaled down": frozenset(),
    "logarithm or root of zero": frozenset({"TDC123", "TDC102"}),
    "corrupted batches": frozenset({"TDC109"}),
    "training has stopped in the middle": frozenset({"TDC121", "TDC118"}),
    "padding": frozenset({"TDC113"}),
}


# Faults with two correct causes: large weights saturate the activations behind them.
ACCEPTED: Mapping[str, frozenset[str]] = {
    "saturated tanh": frozenset({"saturated activations", "weights start too large"}),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    cause: a key of CAUSES. plant: changes a job. on: names of the trainings of both parts in which it can be
    planted. where: part of the names of tensors that show it, "" for the whole model; {first}, {middle} and
    {last} stand for layers of the job. since: the step from which the fault acts. within: the number of steps
    within which it must be found.
    """

    name: str
    cause: str
    plant: Callable[[Job], None]
    on: tuple[str, ...]
    where: str = ""
    since: int = 0
    within: int = 200


_CLASSIFIERS = ("mlp", "deep_tanh", "cnn", "resnet", "gru", "bag", "vit", "lstm", "graph", "mixer", "tabular")
_REGRESSIONS = ("regression", "recommender", "forecast")
_WITH_RELU = ("mlp", "regression", "cnn", "segmentation", "graph", "triplets", "autoencoder")
_ANY = ("mlp", "cnn", "gru", "transformer", "autoencoder", "vit", "lstm", "segmentation", "mixer", "forecast")
_LAYERED = ("mlp", "cnn", "resnet", "regression", "segmentation", "graph", "forecast", "tabular")

FAULTS: tuple[Fault, ...] = (
    Fault(name="rate x1000", cause="learning rate too high", plant=scale_rate(1000), on=_ANY),
    Fault(name="rate x60", cause="learning rate too high", plant=scale_rate(60), on=_LAYERED),
    Fault(name="rate /10000", cause="learning rate too low", plant=scale_rate(1e-4), on=_ANY),
    Fault(name="rate /1000", cause="learning rate too low", plant=scale_rate(1e-3), on=_ANY),
    Fault(
        name="never cleared",
        cause="gradients are never cleared",
        plant=never_clear,
        on=("mlp", "cnn", "regression", "lstm", "tabular", "graph"),
    ),
    Fault(
        name="cleared before the step",
        cause="gradients are cleared before the step",
        plant=clear_before_step,
        on=("mlp", "gru", "transformer", "vae", "segmentation", "forecast"),
        where="gradient/",
        within=120,
    ),
    Fault(
        name="a layer that no optimizer has",
        cause="parameters without an optimizer",
        plant=leave_out(middle_layer),
        on=_LAYERED,
        where="{middle}",
    ),
    Fault(
        name="a frozen layer", cause="frozen parameters", plant=freeze_middle, on=_LAYERED, where="{middle}"
    ),
    Fault(
        name="detached in the middle",
        cause="the graph is cut",
        plant=detach_middle,
        on=("mlp", "cnn", "resnet", "autoencoder", "vit", "segmentation", "tabular", "forecast"),
        where="{middle}",
    ),
    Fault(
        name="a layer that is never called",
        cause="a layer is never called",
        plant=add_unused_layer,
        on=_ANY,
        where="extra",
    ),
    Fault(
        name="normalisation in eval mode",
        cause="a layer stays in eval mode",
        plant=keep_in_eval((nn.BatchNorm2d,)),
        on=("cnn", "resnet"),
        where="norm",
    ),
    Fault(
        name="dropout in eval mode",
        cause="a layer stays in eval mode",
        plant=keep_in_eval((nn.Dropout,)),
        on=("cnn", "lstm"),
        where="drop",
    ),
    Fault(
        name="weights x30",
        cause="weights start too large",
        plant=fill_weights(None, 30),
        on=_LAYERED,
        within=60,
    ),
    Fault(
        name="weights /1000",
        cause="weights start too small",
        plant=fill_weights(None, 1e-3),
        on=_LAYERED,
        within=60,
    ),
    Fault(
        name="weights of zero", cause="weights start alike", plant=fill_weights(0.0), on=_LAYERED, within=60
    ),
    Fault(
        name="weights all 0.05", cause="weights start alike", plant=fill_weights(0.05), on=_LAYERED, within=60
    ),
    Fault(
        name="saturated tanh",
        cause="saturated activations",
        plant=fill_weights(None, 25),
        on=("deep_tanh",),
        where="layers",
        within=60,
    ),
    Fault(
        name="deep sigmoids",
        cause="vanishing gradients",
        plant=use_sigmoids,
        on=("deep_tanh",),
        where="{first}",
    ),
    Fault(
        name="recurrent weights x30",
        cause="exploding gradients",
        plant=enlarge_recurrence,
        on=("gru", "lstm"),
        where="weight_hh",
        within=100,
    ),
    Fault(name="dead units", cause="dead units", plant=lower_biases, on=_WITH_RELU, within=100),
    Fault(
        name="softmax before cross-entropy",
        cause="softmax before the loss",
        plant=add_head(lambda: nn.Softmax(1)),
        on=_CLASSIFIERS,
    ),
    Fault(
        name="NLL of logits",
        cause="logits before a likelihood loss",
        plant=replace_loss(nn.NLLLoss),
        on=_CLASSIFIERS,
    ),
    Fault(
        name="sigmoid before BCE with logits",
        cause="sigmoid before the loss",
        plant=add_head(nn.Sigmoid),
        on=("binary", "segmentation"),
    ),
    Fault(
        name="broadcast in the squared error",
        cause="shapes of the loss are broadcast",
        plant=flatten_targets,
        on=_REGRESSIONS,
    ),
    Fault(
        name="shuffled targets",
        cause="targets unrelated to the inputs",
        plant=shuffle_targets,
        on=(*_CLASSIFIERS, *_REGRESSIONS),
    ),
    Fault(
        name="one class only",
        cause="one class only",
        plant=keep_one_class,
        on=("mlp", "cnn", "lstm", "tabular"),
    ),
    Fault(
        name="a rare class",
        cause="class imbalance",
        plant=thin_out_class,
        on=("mlp", "cnn", "gru", "lstm", "vit", "tabular"),
    ),
    Fault(
        name="inputs x500",
        cause="inputs not normalised",
        plant=change_inputs(lambda x, step: x * 500),
        on=("mlp", "cnn", "regression", "resnet", "vit", "tabular", "segmentation"),
    ),
    Fault(
        name="inputs + 200",
        cause="inputs not normalised",
        plant=change_inputs(lambda x, step: x + 200),
        on=("mlp", "cnn", "autoencoder", "mixer", "forecast", "segmentation"),
    ),
    Fault(
        name="NaN in one batch",
        cause="inputs hold NaN",
        plant=put_nan(80),
        on=("mlp", "cnn", "gru", "vit", "forecast", "segmentation"),
        since=80,
        within=40,
    ),
    Fault(
        name="inputs of zeros",
        cause="inputs are constant",
        plant=change_inputs(lambda x, step: torch.zeros_like(x)),
        on=("mlp", "cnn", "gru", "vit", "mixer", "segmentation"),
    ),
    Fault(
        name="clipped to 1e-5",
        cause="clipping too tight",
        plant=clip_tightly,
        on=("mlp", "gru", "regression", "lstm", "tabular", "forecast"),
    ),
    Fault(
        name="decay of 25",
        cause="weight decay too high",
        plant=raise_decay,
        on=("mlp", "cnn", "transformer", "vit", "graph", "tabular"),
    ),
    Fault(
        name="twelve rows",
        cause="overfitting",
        plant=keep_twelve_rows,
        on=("mlp", "cnn", "regression", "vit", "tabular", "forecast"),
        within=400,
    ),
    Fault(
        name="one unit in a layer",
        cause="capacity too small",
        plant=keep_one_unit,
        on=("mlp", "regression", "tabular"),
        where="",
    ),
    Fault(
        name="dropout of 0.97", cause="dropout too high", plant=raise_dropout, on=("cnn", "lstm"), where=""
    ),
    Fault(
        name="steps in the evaluation",
        cause="weights change in evaluation",
        plant=step_in_validation,
        on=("mlp", "cnn", "regression", "lstm", "graph", "forecast"),
    ),
    Fault(
        name="updates below bfloat16",
        cause="updates are lost in half precision",
        plant=train_in_bfloat16,
        on=("mlp", "regression", "tabular"),
    ),
    Fault(
        name="a loss of the wrong sign",
        cause="the loss is maximised",
        plant=negate_loss,
        on=("mlp", "regression", "gru", "vit", "forecast", "graph"),
        within=100,
    ),
    Fault(
        name="a loss / 1e6",
        cause="the loss is scaled down",
        plant=wrap_loss(lambda inner: After(inner, lambda loss: loss * 1e-6)),
        on=("deep_tanh", "resnet", "binary", "tabular"),
    ),
    Fault(
        name="logarithm of zero",
        cause="logarithm or root of zero",
        plant=replace_loss(LogLoss),
        on=("mlp", "bag", "graph", "tabular"),
        within=60,
    ),
    Fault(
        name="root of zero",
        cause="logarithm or root of zero",
        plant=replace_loss(RootLoss),
        on=("regression", "forecast"),
        within=60,
    ),
    Fault(
        name="corrupted batches",
        cause="corrupted batches",
        plant=corrupt_batches,
        on=("mlp", "cnn", "regression", "vit", "tabular", "forecast"),
        since=100,
        within=120,
    ),
    Fault(
        name="a rate of zero from step 60",
        cause="training has stopped in the middle",
        plant=stop_rate,
        on=("mlp", "cnn", "gru", "vit", "lstm", "forecast"),
        since=60,
    ),
    Fault(name="padding", cause="padding", plant=pad_inputs, on=("bag", "lstm")),
)
