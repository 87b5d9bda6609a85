"""Collections that a hook captures for rules: `Hook("runs/demo", rules=["vanishing_gradient"])`.

Importing this file loads no rules; with_rules() does. Plain functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.hook_config import HookConfig
from tdcore.config.reduction_config import ReductionConfig

__all__ = ["with_rules", "without_default"]

_DEFAULT = "default"


def with_rules(config: HookConfig, rules: Iterable[object] | str) -> HookConfig:
    """The configuration with the collections that the rules need, and with the rules as text for run.json.

    If the configuration and a rule request the same collection, it is saved at the steps and in the forms of
    both.

    Args:
        config: The configuration.
        rules: Instances, classes or text such as "vanishing_gradient:threshold=1e-6". "default", alone or
            with others, is not a rule: it adds the collections for a diagnosis (tdcore.rules.diagnosis).

    Raises:
        ConfigError: A rule is unknown or invalid.
    """
    from tdcore.rules.loading import load_rules, text_of
    from tdcore.rules.planning import joined, merged, plan

    listed = [rules] if isinstance(rules, str) else list(rules)
    chosen = load_rules(without_default(listed))
    captures = plan(chosen)
    if any(map(_is_default, listed)):
        from tdcore.rules.diagnosis.captures import DEFAULT_CAPTURES

        captures = merged((*DEFAULT_CAPTURES, *captures))
    saved = _saved_anyway(config)
    needed = [
        joined(saved[capture.name], capture) if capture.name in saved else capture for capture in captures
    ]
    return replace(
        config,
        collections=(*config.collections, *needed),
        rules=(*config.rules, *(text_of(rule) for rule in chosen)),
    )


def without_default(rules: Iterable[object]) -> list[object]:
    """The rules without "default", which is not a rule."""
    return [rule for rule in rules if not _is_default(rule)]


def _is_default(rule: object) -> bool:
    return isinstance(rule, str) and rule.strip().lower() == _DEFAULT


def _saved_anyway(config: HookConfig) -> dict[str, CollectionConfig]:
    """The collections that the configuration names, with steps and forms, by name."""
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
