"""TDC102: values that are no longer finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, names_of
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window, compile_pattern

__all__ = ["ExplodingTensor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplodingTensor:
    """Tensors that contain NaN or infinite values.

    What it does:
        Reports each saved tensor that contains NaN or infinity. You can select the tensors.

    Why it matters:
        One non-finite value spreads through the next layers and, through the optimizer, into all weights
        within a step or two. All later steps are wasted, and all later checkpoints are useless.

    Decides by:
        The rule fires if nan_count + pos_inf_count + neg_inf_count > 0, for each tensor and step, from the
        saved statistics; with `only_nan`, if nan_count > 0. Findings are in order of execution, so the first
        finding is the first saved tensor with a non-finite value.

        Inputs of modules that contain only 0 and -Inf are not reported, because they are attention masks. NaN
        in the columns Split, Yes, No and Missing of tables of trees is not reported, because it marks leaves.
        compat=True applies the rule of smdebug, which reports both.

    Parameters:
        collection_names: names of collections to judge; a list, or one string with commas.
        tensor_regex: regular expressions for names of tensors to judge (re.search); a list, or one string
            with commas. With both parameters, the union is judged; with neither, every saved tensor.
        only_nan: True judges NaN only.
        compat: True also reports attention masks and columns of trees.

    False alarms:
        - Outputs in which some values are -Inf on purpose (attention scores, logits of forbidden tokens), and
          metrics that are undefined before their first batch: leave these tensors out with `tensor_regex`, or
          use `only_nan`.
        - Single steps with infinite gradients under a gradient scaler: the scaler skips these steps.

    Do:
        Lower the learning rate, clip gradients, or warm up. Look at the first finding of the first step. For
        a loss or an activation, check the input, and each log, division and square root in the forward pass.
        For a gradient, check the backward pass. With fp16, check the loss scale.

    Source:
        R. Pascanu, T. Mikolov, Y. Bengio, On the difficulty of training recurrent neural networks, ICML 2013.
    """

    code: ClassVar[str] = "TDC102"
    judged_by: ClassVar[JudgedBy] = "tensor"

    collection_names: str | Sequence[str] | None = None
    tensor_regex: str | Sequence[str] | None = None
    only_nan: bool = False
    compat: bool = False

    def __post_init__(self) -> None:
        for pattern in names_of(self.tensor_regex):
            compile_pattern(pattern)

    def needs(self) -> Need:
        """Statistics of the selected tensors."""
        scope = [f"collection {name!r}" for name in names_of(self.collection_names)]
        scope += [f"tensors matching {pattern!r}" for pattern in names_of(self.tensor_regex)]
        return Need(
            what=f"statistics of {' and '.join(scope) or 'any tensor'}",
            captures=captures_of(
                names_of(self.collection_names) or (() if self.tensor_regex else ("gradients",)),
                names_of(self.tensor_regex),
                save_config=SaveConfig(save_interval=100),
                keep=STATISTICS,
            ),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per tensor and step with a non-finite value."""
        wanted = window.selected(names_of(self.collection_names), names_of(self.tensor_regex))
        window.missing("tensor saved without statistics", int(np.sum(wanted & window.ok & ~window.counted)))
        judged = wanted & window.ok & window.counted
        window.judged(int(np.sum(judged)))

        nan, up, down = (window.columns.floats(f"{which}_count") for which in ("nan", "pos_inf", "neg_inf"))
        bad = nan if self.only_nan else nan + up + down
        exploded = judged & (bad > 0)
        if not self.compat:
            exploded &= ~window.expected_non_finite
        for row in window.listed(np.flatnonzero(exploded)):
            count = int(window.columns.ints("count")[row])
            numbers = {
                "nan": int(nan[row]),
                "pos_inf": int(up[row]),
                "neg_inf": int(down[row]),
                "elements": count,
            }
            what = ", ".join(
                f"{numbers[key]} {label}"
                for key, label in (("nan", "NaN"), ("pos_inf", "+Inf"), ("neg_inf", "-Inf"))
                if numbers[key]
            )
            yield window.finding(
                self,
                row,
                numbers=numbers,
                why=f"{what} among {count} values",
                do="lower the learning rate, clip gradients, or check each log and division before this "
                "tensor, and the loss scale",
            )
