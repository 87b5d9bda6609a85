"""Collections that a hook captures for rules: `Hook("runs/demo", rules=["vanishing_gradient"])`.

Importing this loads no rule; naming rules does. Plain functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.hook_config import HookConfig
from tdcore.config.reduction_config import ReductionConfig

if TYPE_CHECKING:
    from tdcore.rules import RuleProtocol as Rule

__all__ = ["DEFAULT", "with_rules"]

DEFAULT = "default"


def with_rules(config: HookConfig, rules: Iterable[object] | str) -> HookConfig:
    """The configuration with the collections that the rules need, and the rules as text, for run.json.

    rules: instances, classes or text such as "vanishing_gradient:threshold=1e-6". "default" records what a
    diagnosis needs (tdcore.rules.diagnosis), and names no rule, so that all rules judge the run. What the
    configuration requests stays: where a rule needs the same collection, it is saved at the steps and in the
    forms of both. Raises ConfigError.
    """
    from tdcore.rules.loading import load_rules, text_of
    from tdcore.rules.planning import joined, plan

    if rules == DEFAULT:
        from tdcore.rules.diagnosis.captures import DEFAULT_CAPTURES

        chosen: list[Rule] = []
        captures: tuple[CollectionConfig, ...] = DEFAULT_CAPTURES
    else:
        chosen = load_rules(rules)
        captures = plan(chosen)
    saved = _saved_anyway(config)
    needed = [
        joined(saved[capture.name], capture) if capture.name in saved else capture for capture in captures
    ]
    return replace(
        config,
        collections=(*config.collections, *needed),
        rules=(*config.rules, *(text_of(rule) for rule in chosen)),
    )


def _saved_anyway(config: HookConfig) -> dict[str, CollectionConfig]:
    """When and how the collections that the configuration names are saved, by name."""
    reduction = config.reduction_config or ReductionConfig(save_raw_tensor=True)
    names = [CollectionKeys.LOSSES, *config.include_collections, *(each.name for each in config.collections)]
    names += [CollectionKeys.DEFAULT] * bool(config.include_regex) + [CollectionKeys.ALL] * config.save_all
    found = {
        name: CollectionConfig(name=name, save_config=config.save_config, reduction_config=reduction)
        for name in names
    }
    for each in config.collections:
        before = found[each.name]
        found[each.name] = replace(
            each,
            save_config=(each.save_config or config.save_config).completed(config.save_config),
            reduction_config=each.reduction_config or before.reduction_config,
        )
    return found
