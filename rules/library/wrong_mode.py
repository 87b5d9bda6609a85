"""TDC129: layers in eval mode while training, and weights that change in an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Mask
from tdcore.rules.diagnosis.signs_graph import stays_in_eval
from tdcore.rules.measures.first_facts import FACT_COLUMNS, first_facts, trained_rows
from tdcore.rules.measures.previous_step import step_pairs
from tdcore.rules.measures.series import groups
from tdcore.rules.measures.streaks import streaks
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window
from tdcore.text.short_repr import how_many

__all__ = ["WrongMode"]

_COLUMNS = ("step", "mode_step", "mean", "square_sum")
_CHANGES = 2  # consecutive changes; a single change is a load of weights
_DO_TRAIN = "call model.train() before each training epoch; if a layer must stay in eval mode, freeze it too"
_DO_EVAL = "take backward() and optimizer.step() out of the evaluation, and run it under torch.no_grad()"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongMode:
    """Layers in eval mode while the model is trained, and weights that change in an evaluation.

    What it does:
        Compares the mode of each step with the mode of the model. Reports layers in eval mode in training
        steps, and gradients and updates in EVAL steps.

    Why it matters:
        In eval mode, dropout has no effect and batch normalisation uses its running statistics, so the
        training overfits or becomes unstable. An update within an evaluation trains on the validation data,
        so the measured validation losses are too low.

    Decides by:
        - `eval_while_training`: the hook's note `eval_in_training` lists the model, or dropout or
          normalisation layers, because they were in eval mode at every training step. The rule reads the note
          at the `patience`-th saved step of TRAIN or GLOBAL mode that has weights or gradients. If the
          training ended earlier, three such steps are enough. Layers with only frozen parameters are not
          reported.
        - `eval_gradient`: a gradient of EVAL mode has an element that is not zero.
        - `eval_update`: the mean and the sum of squares of a weight change from one EVAL step to the next,
          with no other step between the two, for the second time in a row. A single change is not reported,
          because a script may load its best or averaged weights between two evaluations.

        `eval_gradient` and `eval_update` have one finding per step, about the first of the tensors.

    Parameters:
        patience: number of saved training steps after which the modes of layers are judged.

    False alarms:
        - Batch normalisation that keeps the statistics of a pretrained model while its weights are trained.
        - Attacks and attributions that need gradients in an evaluation, and adaptation at test time.

    Do:
        Call model.train() at the start of each training epoch, because the effect of model.eval() lasts until
        then. Evaluate under torch.no_grad(), without backward() and optimizer.step().

    Source:
        S. Ioffe, C. Szegedy, Batch normalization: accelerating deep network training by reducing internal
        covariate shift, ICML 2015. Y. Jiang et al., Training with confidence: catching silent errors in deep
        learning training with automated proactive checks, OSDI 2025.
    """

    code: ClassVar[str] = "TDC129"
    judged_by: ClassVar[JudgedBy] = "worker"
    columns: ClassVar[tuple[str, ...]] = FACT_COLUMNS

    patience: int = 10

    def __post_init__(self) -> None:
        require(self.patience >= 3, self, "patience", self.patience, "3 or more")

    def needs(self) -> Need:
        """Statistics of weights and gradients."""
        return Need(
            what=f"weights and gradients with statistics at {self.patience} training steps",
            captures=captures_of(
                ["weights", "gradients"], (), save_config=SaveConfig(save_interval=10), keep=STATISTICS
            ),
            kinds=("weight", "gradient"),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per worker about layers, and one per step about evaluations."""
        both = window.kind("weight", "gradient") & window.ok
        window.missing("saved without statistics", int(np.sum(both & ~window.counted)))
        rows = both & window.counted & trained_rows(window, "weight", "gradient")
        for first, facts in first_facts(window, rows, self.patience, values=False):
            for evidence in stays_in_eval(facts):
                yield first.finding(self, evidence, kind="eval_while_training", do=_DO_TRAIN)
        evaluated = both & window.counted & window.columns.where("mode", "EVAL".__eq__)
        window.judged(int(np.sum(evaluated)))
        yield from self._gradients(window, evaluated & window.kind("gradient"))
        yield from self._updates(window, evaluated & window.kind("weight"))

    def _gradients(self, window: Window, gradients: Mask) -> Iterator[Finding]:
        hits = np.flatnonzero(gradients & (window.columns.floats("abs_max") > 0))
        for *_, rows in groups(window.columns, hits, "attempt", "worker", "step"):
            yield window.finding(
                self,
                int(rows[0]),
                numbers={"kind": "eval_gradient", "tensors": len(rows)},
                why=f"there are gradients in EVAL mode, of {how_many(len(rows), 'parameter')}",
                do=_DO_EVAL,
            )

    def _updates(self, window: Window, weights: Mask) -> Iterator[Finding]:
        if not weights.any():
            return
        found = step_pairs(window, weights, _COLUMNS, "evaluated")
        apart = {name: found.now[name] - found.before[name] for name in _COLUMNS}
        together = found.known & (apart["step"] == 1) & (apart["mode_step"] == 1)
        changed = together & (apart["mean"] != 0) & (apart["square_sum"] != 0)
        judged, hit = np.zeros(len(window), dtype=np.bool_), np.zeros(len(window), dtype=np.bool_)
        judged[found.rows[together]], hit[found.rows[changed]] = True, True
        again = np.flatnonzero(streaks(window, judged, hit, "changed") >= _CHANGES)
        for *_, rows in groups(window.columns, again, "attempt", "worker", "step"):
            yield window.finding(
                self,
                int(rows[0]),
                numbers={"kind": "eval_update", "tensors": len(rows)},
                why=f"{how_many(len(rows), 'weight')} changed from one EVAL step to the next, more than once",
                do=_DO_EVAL,
            )
