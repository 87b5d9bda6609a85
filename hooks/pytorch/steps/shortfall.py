"""Shortfalls of a PyTorch hook: missing optimizer steps, and the possible tensors of its models.

hooks/shortfall.py has the part that is independent of the framework. This code runs when the hook closes.
Threads: the thread of close().
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tdcore.hooks.pytorch.steps.root import Root
from tdcore.hooks.shortfall import Possible

__all__ = ["open_step", "possible", "saved_steps_without_update"]

# Least number of further training forwards in one step that is reported. Gradient accumulation and rollouts
# have many forwards in a step, so a training that has updated its weights is compared with its own steps.
_FEWEST_JOINED = 3
_MORE_THAN_BEFORE = 4
_FEWEST_JOINED_LATER = 8
_FEWEST_SAVED = 3
_EXTRA_PREFIXES = ("backward_gradient/", "microbatch_gradient/", "weight_update/", "update_ratio/")


def possible(roots: Iterable[Root], frozen: Iterable[str]) -> Possible:
    """Tensors that the models have, captured or not. frozen: names of frozen parameters in the notes."""
    still = frozenset(frozen)
    names: set[str] = set()
    classes: set[str] = set()
    trains = False
    for root in roots:
        for parameter in root.view.parameters:
            names.update((parameter.name, f"gradient/{parameter.name}"))
            names.update(f"{prefix}{parameter.name}" for prefix in _EXTRA_PREFIXES)
            trains = trains or parameter.name not in still
        for module in root.view.modules:
            names.update(f"{module.name}_{what}_0" for what in ("input", "output"))
            names.add(f"output_gradient/{module.name}_output_0")
            classes.update(f"{module.origin}_{what}" for what in ("input", "output"))
    return Possible(names=names, classes=classes, trains=trains)


def open_step(step: int, joined: int, most_before: int, *, stepped: bool) -> Iterator[str]:
    """Yield a message if the training continues in one step, because no optimizer steps.

    Args:
        step: The open training step.
        joined: Number of training forwards in it after the first.
        most_before: The largest number of further training forwards in an earlier step.
        stepped: Whether an optimizer of the models has ever stepped.
    """
    if not stepped and joined >= _FEWEST_JOINED:
        yield (
            f"no optimizer of the model has stepped: its {joined + 1} training forwards are one step, {step}"
            "; call optimizer.step(), or hook.step() if weights are updated by other means"
        )
    elif stepped and joined >= max(_FEWEST_JOINED_LATER, _MORE_THAN_BEFORE * most_before):
        yield (
            f"no optimizer of the model has stepped since step {step} began: its last {joined + 1} training "
            "forwards are one step; is optimizer.step() still called?"
        )


def saved_steps_without_update(saved: int, last_updated: int) -> Iterator[str]:
    """Yield a message if steps are counted by forwards or by hand, and no optimizer steps in them.

    Args:
        saved: Number of saved training steps.
        last_updated: Number, from 1, of the last saved step in which an optimizer stepped; 0: none.
    """
    without = saved - last_updated
    if without >= _FEWEST_SAVED and 2 * without > saved:
        yield (
            f"no optimizer of the model has stepped in the last {without} of {saved} saved training steps, "
            "so gradients are absent there; is optimizer.step() called?"
        )
