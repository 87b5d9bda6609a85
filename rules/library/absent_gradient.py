"""TDC128: parameters that are not trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import Finding, require
from tdcore.rules.diagnosis.evidence import Evidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.signs_graph import graph_is_cut, never_called, not_owned
from tdcore.rules.measures.first_facts import FACT_COLUMNS, first_facts, trained_rows
from tdcore.rules.requirements import STATISTICS, Need, captures_of
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["AbsentGradient"]

_SIGNS = (
    ("never_called", never_called, "call the module in forward(), or remove it"),
    ("not_owned", not_owned, "give the optimizer model.parameters(), after all layers have been made"),
    (
        "no_backward",
        graph_is_cut,
        "look for detach(), .data, numpy() or torch.no_grad() between these layers and the loss",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentGradient:
    """Parameters that get no gradient from the loss, or that no optimizer changes.

    What it does:
        Reads the gradients of the first saved training steps. Lists the parameters that never have a
        gradient, and those whose gradient no optimizer uses.

    Why it matters:
        Such parameters keep their initial values. The loss still falls, because the other layers learn. So a
        cut graph or a forgotten layer is often found late or never.

    Decides by:
        The rule judges the first `patience` saved steps of TRAIN or GLOBAL mode that have gradients, for each
        start of the training (attempt) and each worker. If the training ended earlier, three such steps are
        enough. All parameters of one kind are one finding.

        - `no_backward`: no backward pass reached the parameter, at three steps or more. The parameter has no
          gradient at any other step, and other parameters have gradients.
        - `never_called`: the same, and no forward pass called the module of the parameter (the hook's note
          `never_called`).
        - `not_owned`: the parameter has gradients, but no optimizer has the parameter (the hook's note
          `not_owned`).

        Frozen parameters (requires_grad=False) are not judged.

    Parameters:
        patience: number of saved training steps after which the rule judges.

    False alarms:
        - Experts, heads or tasks that no batch of the first steps uses, and layers that are trained later:
          raise `patience`.
        - A head that is trained on a network whose parameters have requires_grad=True by mistake: the
          gradients of the network are computed and not used.

    Do:
        Look for detach(), .data, numpy() or torch.no_grad() between the first layer with a gradient and the
        layer before it. Create the optimizer after all layers, with model.parameters(). If a layer is meant
        to stay frozen, use requires_grad_(False); PyTorch then does not compute its gradients.

    Source:
        E. Schoop, F. Huang, B. Hartmann, UMLAUT: Debugging deep learning programs using program structure and
        model behavior, CHI 2021. Y. Jiang et al., Training with confidence: catching silent errors in deep
        learning training with automated proactive checks, OSDI 2025.
    """

    code: ClassVar[str] = "TDC128"
    judged_by: ClassVar[JudgedBy] = "worker"
    columns: ClassVar[tuple[str, ...]] = FACT_COLUMNS

    patience: int = 10

    def __post_init__(self) -> None:
        require(self.patience >= 3, self, "patience", self.patience, "3 or more")

    def needs(self) -> Need:
        """Statistics of gradients. The index also has a row for each absent gradient."""
        return Need(
            what=f"gradients with statistics at {self.patience} steps",
            captures=captures_of(
                ["gradients"], (), save_config=SaveConfig(save_interval=10), keep=STATISTICS
            ),
            kinds=("gradient",),
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """At most one finding per worker and kind."""
        gradients = trained_rows(window, "gradient")
        absent = window.columns.where("status", "absent".__eq__)
        rows = gradients & (absent | (window.ok & window.counted))
        window.missing("gradient saved without statistics", int((gradients & window.ok & ~rows).sum()))
        for first, facts in first_facts(window, rows, self.patience, values=False):
            for kind, sign, do in _SIGNS:
                for evidence in sign(facts):
                    found = _with_gradients(facts, evidence) if kind == "not_owned" else evidence
                    if found is not None:
                        yield first.finding(self, found, kind=kind, do=do)


def _with_gradients(facts: Facts, evidence: Evidence) -> Evidence | None:
    """The evidence about the parameters that have gradients; None if no parameter has a gradient.

    A copy of a model whose weights are copied from the model, such as an average, has no gradients.
    """
    names = tuple(name for name in evidence.tensors if facts.get(f"gradient/{name}") is not None)
    if not names:
        return None
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    have = "they have" if names[1:] else "it has"
    return Evidence(
        why=f"no optimizer holds {', '.join(names[:3])}{more}, although {have} gradients",
        strength=evidence.strength,
        tensors=names,
        mode=evidence.mode,
        step=evidence.step,
    )
