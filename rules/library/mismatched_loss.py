"""TDC130: a loss module with inputs of the wrong kind or shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.diagnosis.captures import DIAGNOSIS_CAPTURES
from tdcore.rules.diagnosis.signs_loss import (
    broadcast,
    logits_before_nll,
    sigmoid_before_loss,
    softmax_before_loss,
)
from tdcore.rules.measures.first_facts import FACT_COLUMNS, first_facts, trained_rows
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["MismatchedLoss"]

_SIGNS = (
    ("softmax_twice", softmax_before_loss, "remove the softmax: CrossEntropyLoss takes logits"),
    ("sigmoid_twice", sigmoid_before_loss, "remove the sigmoid, or use BCELoss with it"),
    ("not_logarithms", logits_before_nll, "apply log_softmax before NLLLoss, or use CrossEntropyLoss"),
    (
        "broadcast",
        broadcast,
        "give outputs and targets the same shape: outputs.squeeze(1), or targets.unsqueeze(1)",
    ),
)
(_LOSS_INPUTS,) = (capture for capture in DIAGNOSIS_CAPTURES if capture.name == "loss_inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchedLoss:
    """Loss modules with inputs of the wrong kind or shape, such as probabilities in place of logits.

    What it does:
        Reads the shape, and the smallest, largest and mean value, of each input of loss modules.

    Why it matters:
        PyTorch computes these losses without an error. A second softmax or sigmoid makes gradients so small
        that the training is slow. A negative log-likelihood of logits has no lower bound. A broadcast squared
        error compares each output with each target, so the model learns the mean of all targets.

    Decides by:
        The rule judges the inputs of loss modules at the first `patience` saved steps of TRAIN or GLOBAL
        mode, for each attempt (start of the training) and worker. If the training ended earlier, three such
        steps are enough.

        - `softmax_twice`: input 0 of a CrossEntropyLoss is between 0 and 1, and has the mean 1 / classes at
          each step.
        - `sigmoid_twice`: input 0 of a BCEWithLogitsLoss is between 0 and 1 at each step, and not constant.
        - `not_logarithms`: input 0 of an NLLLoss has elements above 0 (by more than 0.001) at more than half
          of the steps.
        - `broadcast`: outputs and floating-point targets have different shapes that broadcast to a larger
          shape.

        The rule cannot judge losses that are functions, such as F.cross_entropy, because they are not
        modules.

    Parameters:
        patience: number of saved training steps after which the rule judges.

    False alarms:
        - A model whose logits are intended to be between 0 and 1.
        - Targets that are broadcast on purpose.

    Do:
        Remove the softmax or sigmoid before the loss, apply log_softmax before NLLLoss, and give outputs and
        targets the same shape.

    Source:
        J. Zhang et al., AUTOTRAINER: an automatic DNN training problem detection and repair system, ICSE
        2021. A. Nikanjam et al., Automatic fault detection for deep learning programs using graph
        transformations (NeuraLint), TOSEM 2022. PyTorch's documentation of its losses.
    """

    code: ClassVar[str] = "TDC130"
    judged_by: ClassVar[JudgedBy] = "worker"
    columns: ClassVar[tuple[str, ...]] = FACT_COLUMNS

    patience: int = 5

    def __post_init__(self) -> None:
        require(self.patience >= 3, self, "patience", self.patience, "3 or more")

    def needs(self) -> Need:
        """Statistics of the inputs of loss modules."""
        return Need(
            what=f"the inputs of a loss module with statistics at {self.patience} steps",
            captures=(_LOSS_INPUTS,),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """At most one finding per worker, kind and loss."""
        inputs = trained_rows(window, "input") & window.ok
        inputs &= window.columns.where("name", _is_of_loss)
        window.missing("input of a loss saved without statistics", int(np.sum(inputs & ~window.counted)))
        for first, facts in first_facts(window, inputs & window.counted, self.patience):
            for kind, sign, do in _SIGNS:
                for evidence in sign(facts):
                    yield first.finding(self, evidence, kind=kind, do=do)


def _is_of_loss(name: str) -> bool:
    module, mark, number = name.rpartition("_input_")
    return bool(mark and number in ("0", "1") and module.endswith("Loss"))
