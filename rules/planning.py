"""Planning: the capture configuration that a set of rules needs.

    plan([VanishingGradient(), DeadRelu()])        collections with all tensors that both rules need

Collections of the same name are merged into one collection that satisfies every rule: it saves every step
that one of the rules needs, and values if one of the rules needs values. Pure functions; any thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.modes import ModeKeys
from tdcore.rules.base import Rule
from tdcore.rules.requirements import arguments, as_code

__all__ = ["joined", "merged", "plan", "plan_as_code", "united"]

_MAX_LISTED = 100  # maximum number of regular steps that are listed as save_steps
_NAMES = ("CollectionConfig", "ReductionConfig", "SaveConfig", "SaveConfigMode", "modes")


def plan(rules: Iterable[Rule]) -> tuple[CollectionConfig, ...]:
    """The collections that a set of rules needs, in the order of their first occurrence.

    Args:
        rules: Instances, classes (with their defaults) or text such as "vanishing_gradient:threshold=1e-6".

    Returns:
        Collections for `hook.add_collection()`, one of each name.
    """
    return merged(capture for rule in rules for capture in rule.needs().captures)


def merged(captures: Iterable[CollectionConfig]) -> tuple[CollectionConfig, ...]:
    """Merge collections so that each name occurs once and all captures are covered.

    Two rules may use the same collection name for different tensors (selected by patterns) that they need in
    different forms, for example the statistics of all activations and the values of a few layers. Such
    collections stay separate, and the second one is named "name_2": a merged collection would save the values
    of all tensors.
    """
    found: dict[str, CollectionConfig] = {}
    for capture in captures:
        name = _place(found, capture)
        here = found.get(name)
        found[name] = replace(capture, name=name) if here is None else joined(here, capture)
    return tuple(found.values())


def joined(one: CollectionConfig, other: CollectionConfig) -> CollectionConfig:
    """Merge two collections: the tensors, forms and steps of both, with the name of the first.

    A setting that is None in one of them is taken from the other.
    """
    return CollectionConfig(
        name=one.name,
        include_regex=_both(one.include_regex, other.include_regex),
        tensor_names=_both(one.tensor_names, other.tensor_names),
        module_regex=_both(one.module_regex, other.module_regex),
        save_config=_either(one.save_config, other.save_config, united),
        reduction_config=_either(one.reduction_config, other.reduction_config, _reductions),
    )


def united(one: SaveConfig, other: SaveConfig) -> SaveConfig:
    """A SaveConfig that saves, in every mode, the steps of both SaveConfigs and few other steps.

    If there are few steps, and they have an end, the result lists them. Of two intervals without an end, the
    shorter interval is used if it divides the other; otherwise their greatest common divisor is used.
    """
    rest = _steps_of_both(_rest(one), _rest(other))
    modes = {
        mode: _steps_of_both(one.get_save_config(mode), other.get_save_config(mode)) for mode in ModeKeys
    }
    return SaveConfig(
        save_interval=rest.save_interval,
        start_step=rest.start_step,
        end_step=rest.end_step,
        save_steps=rest.save_steps,
        mode_save_configs={mode: when for mode, when in modes.items() if when != rest},
    )


def plan_as_code(captures: Sequence[CollectionConfig], out_dir: str, specs: Sequence[str] = ()) -> str:
    """Python code that creates a PyTorch hook which saves these collections.

    Args:
        captures: The collections.
        out_dir: Folder or URL of the run.
        specs: The rules as text. If given, a comment shows the short form, Hook(rules=...).
    """
    text = " ".join(as_code(capture) for capture in captures)
    names = [name for name in _NAMES if re.search(rf"\b{name}[(.]", text)]
    lines = [f"from tdcore import {', '.join(names)}"] if names else []
    lines += ["from tdcore.hooks.pytorch import Hook", ""]
    if specs:
        lines += [f"# Short form: Hook({as_code(out_dir)}, rules={as_code(list(specs))})"]
    lines += [f"hook = Hook({as_code(out_dir)})"]
    for capture in captures:
        lines += ["hook.add_collection(", f"    {type(capture).__name__}("]
        lines += [*(f"        {argument}," for argument in arguments(capture)), "    )", ")"]
    return "\n".join(lines) + "\n"


def _place(found: dict[str, CollectionConfig], capture: CollectionConfig) -> str:
    """The name of the capture in the plan."""
    name, number = capture.name, 1
    while name in found and not _may_join(found[name], capture):
        number += 1
        name = f"{capture.name}_{number}"
    return name


def _may_join(one: CollectionConfig, other: CollectionConfig) -> bool:
    same_form = (one.save_config, one.reduction_config) == (other.save_config, other.reduction_config)
    (mine, theirs) = ((each.include_regex, each.module_regex) for each in (one, other))
    different = any(mine) and any(theirs) and mine != theirs
    return same_form or not different


def _rest(when: SaveConfig) -> SaveConfigMode:
    """The configuration of the modes that have no configuration of their own."""
    return SaveConfigMode(
        save_interval=when.save_interval,
        start_step=when.start_step,
        end_step=when.end_step,
        save_steps=when.save_steps,
    )


def _steps_of_both(one: SaveConfigMode, other: SaveConfigMode) -> SaveConfigMode:
    steps = _both(one.save_steps, other.save_steps)
    for many, few in ((one, other), (other, one)):
        if _covers(many, few):
            return _with_steps(many, steps)
    for many, few in ((one, other), (other, one)):
        listed = _listed(few)
        if listed is not None:
            return _with_steps(many, _both(steps, listed))
    ends = (one.end_step, other.end_step)
    return SaveConfigMode(
        save_interval=math.gcd(one.save_interval, other.save_interval),
        start_step=min(one.start_step, other.start_step),
        end_step=None if None in ends else max(end for end in ends if end is not None),
        save_steps=steps,
    )


def _covers(many: SaveConfigMode, few: SaveConfigMode) -> bool:
    """Whether the regular steps of `many` include those of `few`."""
    starts = many.start_step <= few.start_step and few.save_interval % many.save_interval == 0
    return starts and (many.end_step is None or (few.end_step is not None and few.end_step <= many.end_step))


def _listed(when: SaveConfigMode) -> list[int] | None:
    """The regular steps as a list; None if there are many or they have no end."""
    if when.end_step is None:
        return None
    first = when.start_step + (-when.start_step) % when.save_interval
    steps = range(first, when.end_step, when.save_interval)
    return list(steps) if len(steps) <= _MAX_LISTED else None


def _with_steps(when: SaveConfigMode, steps: Sequence[int]) -> SaveConfigMode:
    """Add these steps, except those that are regular steps already."""
    regular = replace(when, save_steps=())
    return replace(when, save_steps=[step for step in steps if not regular.should_save_step(step)])


def _reductions(one: ReductionConfig, other: ReductionConfig) -> ReductionConfig:
    return ReductionConfig(
        reductions=_both(one.reductions, other.reductions),
        abs_reductions=_both(one.abs_reductions, other.abs_reductions),
        norms=_both(one.norms, other.norms),
        abs_norms=_both(one.abs_norms, other.abs_norms),
        save_raw_tensor=one.save_raw_tensor or other.save_raw_tensor,
    )


def _either(one: Any, other: Any, both: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return both(one, other)


def _both(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys([*one, *other]))
