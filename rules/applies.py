"""Applies: whether a rule is about anything that a run can have at all.

A rule about trees has nothing to say about a network, one that compares ranks nothing about one process. Such
a rule "does not apply": no other configuration of the run would change that. A rule whose tensors the run
could have saved and did not is "not evaluable" (rules/evaluable.py). Plain values; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from tdcore.rules.need import Need

__all__ = ["Training", "why_not_applicable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What run.json says of the training of the newest attempt: its framework, "" when it is not said, and
    how many workers it has.
    """

    framework: str
    world_size: int


def why_not_applicable(need: Need, training: Training | None, classes: Collection[str], *, seen: bool) -> str:
    """Why a rule that could judge nothing so far does not apply to the run; "" where it may.

    Args:
        need: of the rule.
        training: None when the run does not say.
        classes: of the modules whose outputs the run holds, where it saves the outputs of all; else empty.
        seen: whether the rule has seen tensors that it wanted, without what it wanted of them.
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
            return f"the model has no layer of the kind that it judges ({', '.join(layers)})"
    return ""
