"""why_not_applicable: whether a rule can apply to a run at all, with any capture configuration.

A rule about trees does not apply to a neural network, and a rule that compares ranks does not apply to a
single process. A rule whose tensors the run could have saved, but did not save, is "not evaluable" instead
(rules/requirements.py). Plain values; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from tdcore.rules.requirements import Need

__all__ = ["TrainingInfo", "why_not_applicable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInfo:
    """The training of the newest attempt, from run.json. framework: "" if unknown. world_size: workers."""

    framework: str
    world_size: int


def why_not_applicable(
    need: Need, training: TrainingInfo | None, classes: Collection[str], *, seen: bool
) -> str:
    """Why a rule that has judged nothing so far does not apply to the run; "" if it may apply.

    Args:
        need: The tensors that the rule needs.
        training: None if unknown.
        classes: Classes of all modules, if the run saves the outputs of all modules; otherwise empty.
        seen: Whether the rule has found tensors that it needs, but without the statistics or values it needs.
    """
    if training is not None and training.world_size < need.workers:
        return f"it compares {need.workers} workers or more, and this training has {training.world_size}"
    if seen:
        return ""
    if training is not None and need.frameworks and training.framework not in ("", *need.frameworks):
        judged = " or ".join(need.frameworks)
        return f"it judges trainings of {judged}, and this one is of {training.framework}"
    layers = [pattern for capture in need.captures for pattern in capture.module_regex]
    if classes and layers and all(capture.module_regex for capture in need.captures):
        names = [name.rpartition(".")[2] for name in classes]
        tensors = [f"{name}_{what}_0" for name in names for what in ("output", "input")]
        if not any(re.search(pattern, tensor) for pattern in layers for tensor in tensors):
            return (
                f"the model has no layer of the kind that it judges ({', '.join(layers)}); functions such as "
                "F.relu are not layers and are not recorded"
            )
    return ""
