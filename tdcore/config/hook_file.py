"""Reader of the configuration file of `tdcore run --config FILE`.

    out_dir: runs/demo
    save_config: {save_interval: 10, eval: {save_interval: 100}}
    reduction_config: {norms: [l2]}               statistics only; left out: whole tensors
    include_collections: [weights, gradients]
    collections:
      - name: mine
        include_regex: relu
        save_config: {save_interval: 5}
    rules: [vanishing_gradient]

The keys are the fields of HookConfig, SaveConfig (modes by their name), ReductionConfig and CollectionConfig,
with the defaults of `Hook(...)`. The format is YAML, or JSON if the name ends in .json. hook_json.py reads a
file in the form of the older library (HookParameters, CollectionConfigurations). Unknown keys and invalid
values raise ConfigError with the name of the file. Reads one file, keeps no state.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.config_text import parse_config_text
from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_json import CONFIG_VARIABLES, DEFAULT_CONFIG_PATH, PLACES, parse_hook_config
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SETTINGS, SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.modes import ModeKeys

__all__ = ["find_hook_file", "load_hook_file"]

_OLDER = (*PLACES, "HookParameters", "CollectionConfigurations")
_MODES = {mode.name.lower(): mode for mode in ModeKeys}


def find_hook_file() -> str | None:
    """Path of the file from an environment variable, or of the older service's file; None without one."""
    for variable in CONFIG_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable]
    return DEFAULT_CONFIG_PATH if os.path.exists(DEFAULT_CONFIG_PATH) else None


def load_hook_file(path: str | os.PathLike[str], *, out_dir: str) -> HookConfig:
    """Read the file. out_dir: default for a file without one. Raises ConfigError."""
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"hook configuration {place} cannot be read: {error}") from error
    try:
        document = _names("the file", parse_config_text(text, as_json=place.suffix == ".json"))
        if any(key in document for key in _OLDER):
            if not any(document.get(key) for key in PLACES):
                document = {**document, "LocalPath": out_dir}
            return parse_hook_config(document)
        return _hook_config(document, out_dir)
    except ConfigError as error:
        raise type(error)(f"hook configuration {place}: {error}") from error


def _hook_config(document: dict[str, Any], out_dir: str) -> HookConfig:
    _known("the file", document, [field.name for field in fields(HookConfig)])
    found = {"out_dir": out_dir, **{key: value for key, value in document.items() if value is not None}}
    if "save_config" in found:
        found["save_config"] = _save_config("save_config", found["save_config"])
    if "reduction_config" in found:
        found["reduction_config"] = _reduction_config("reduction_config", found["reduction_config"])
    if "collections" in found:
        if not isinstance(found["collections"], list):
            raise ConfigError("collections must be a list")
        found["collections"] = [
            _collection(f"collections[{number}]", entry) for number, entry in enumerate(found["collections"])
        ]
    return HookConfig(**found)


def _collection(where: str, entry: object) -> CollectionConfig:
    given = _names(where, entry)
    _known(where, given, [field.name for field in fields(CollectionConfig)])
    found = {key: value for key, value in given.items() if value is not None}
    if "name" not in found:
        raise ConfigError(f"{where} needs a name")
    try:
        if "save_config" in found:
            found["save_config"] = _save_config("save_config", found["save_config"])
        if "reduction_config" in found:
            found["reduction_config"] = _reduction_config("reduction_config", found["reduction_config"])
        return CollectionConfig(**found)
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error


def _save_config(where: str, value: object) -> SaveConfig:
    """Settings of all modes, with those of one mode under its name. A mode inherits missing settings."""
    given = _names(where, value)
    _known(where, given, [*SETTINGS, *_MODES])
    common = {key: given[key] for key in given if key in SETTINGS}
    per_mode = {}
    for name, mode in _MODES.items():
        if given.get(name) is not None:
            own = _names(f"{where}.{name}", given[name])
            _known(f"{where}.{name}", own, SETTINGS)
            per_mode[mode] = SaveConfigMode(**{**common, **own})
    return SaveConfig(**common, mode_save_configs=per_mode)


def _reduction_config(where: str, value: object) -> ReductionConfig:
    given = _names(where, value)
    _known(where, given, [field.name for field in fields(ReductionConfig)])
    return ReductionConfig(**given)


def _names(where: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must hold names with values, got {type(value).__name__}")
    return value


def _known(where: str, found: Mapping[str, object], allowed: list[str] | tuple[str, ...]) -> None:
    for key in found:
        if key not in allowed:
            close = difflib.get_close_matches(str(key), allowed, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(allowed)}"
            raise ConfigError(f"{where} has an unknown key {key!r}; {hint}")
