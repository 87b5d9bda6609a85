"""Reader of the configuration file of `tdcore run --config FILE`.

    out_dir: runs/demo
    save_config: {save_interval: 10, eval: {save_interval: 100}}
    reduction_config: {norms: [l2]}               statistics only; without this line: values too
    include_collections: [weights, gradients]
    collections:
      - name: mine
        include_regex: relu
        save_config: {save_interval: 5}
    rules: [vanishing_gradient]
    profiler_config: {start_step: 100, num_steps: 5}

The keys are the fields of HookConfig, SaveConfig (modes by their name), ReductionConfig, CollectionConfig and
ProfilerConfig (without framework_profile_params), with the defaults of `Hook(...)`. The format is YAML, or
JSON if the name ends in .json. hook_json.py reads a file in the form of smdebug (HookParameters,
CollectionConfigurations). Unknown keys and invalid values raise ConfigError with the name of the file.
Functions without state; any thread.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_json import MODES, PLACES, TOP_KEYS, WHAT, parse_hook_config
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SETTINGS, SaveConfig, SaveConfigMode
from tdcore.config.schema import check_keys, items, mapping, parse_document, read_text, within
from tdcore.errors import ConfigError

__all__ = ["load_hook_file"]


def load_hook_file(path: str | os.PathLike[str], *, out_dir: str) -> HookConfig:
    """Read the file. out_dir: used if the file has none. Raises ConfigError."""
    place = Path(path)
    text = read_text(place, WHAT)
    with within(f"{WHAT} {place}"):
        document = mapping("the file", parse_document(text, as_json=place.suffix == ".json"))
        if any(key in document for key in TOP_KEYS):
            if not any(document.get(key) for key in PLACES):
                document = {**document, "LocalPath": out_dir}
            return parse_hook_config(document)
        return HookConfig(**{"out_dir": out_dir, **_nested(_given(HookConfig, "the file", document))})


def _given(kind: type[Any], where: str, value: object) -> dict[str, Any]:
    """The arguments for a class of settings in an object, without arguments that are None."""
    found = mapping(where, value)
    check_keys(where, found, [field.name for field in fields(kind)])
    return {key: each for key, each in found.items() if each is not None}


def _nested(found: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with nested objects converted to settings."""
    if "save_config" in found:
        found["save_config"] = _save_config(found["save_config"])
    if "reduction_config" in found:
        reductions = _given(ReductionConfig, "reduction_config", found["reduction_config"])
        found["reduction_config"] = ReductionConfig(**reductions)
    if "profiler_config" in found:
        given = mapping("profiler_config", found["profiler_config"])
        names = [field.name for field in fields(ProfilerConfig) if field.name != "framework_profile_params"]
        check_keys("profiler_config", given, names)
        found["profiler_config"] = ProfilerConfig(**given)
    if "collections" in found:
        entries = enumerate(items("collections", found["collections"]))
        found["collections"] = [_collection(f"collections[{number}]", entry) for number, entry in entries]
    return found


def _collection(where: str, value: object) -> CollectionConfig:
    found = _given(CollectionConfig, where, value)
    if "name" not in found:
        raise ConfigError(f"{where} needs a name")
    with within(where):
        return CollectionConfig(**_nested(found))


def _save_config(value: object) -> SaveConfig:
    """Settings of all modes. A mode's own settings are under its name; missing settings are inherited."""
    given = mapping("save_config", value)
    check_keys("save_config", given, (*SETTINGS, *MODES))
    common = {key: given[key] for key in given if key in SETTINGS}
    per_mode = {}
    for name, mode in MODES.items():
        if given.get(name) is not None:
            own = mapping(f"save_config.{name}", given[name])
            check_keys(f"save_config.{name}", own, SETTINGS)
            per_mode[mode] = SaveConfigMode(**{**common, **own})
    return SaveConfig(**common, mode_save_configs=per_mode)
