"""The older library's JSON hook configuration, read into a HookConfig.

    {
      "LocalPath": "runs/demo",                       or "S3OutputPath" or "S3Path"; the first one counts
      "HookParameters": {"save_interval": "100", "eval.save_interval": "10", "include_regex": "relu,tanh",
                         "reductions": "min,abs_max,l2_norm", "save_raw_tensor": "true", ...},
      "CollectionConfigurations": [
        {"CollectionName": "gradients", "CollectionParameters": {"train.save_interval": "50"}}, ...
      ]
    }

Values are strings or JSON values of the right type; lists are comma-separated strings (whose patterns contain
no comma) or JSON lists. A collection inherits missing parameters from HookParameters, one by one, and its
module_regex is that of CollectionConfig. The path of the file is the argument, TDCORE_CONFIG,
SMDEBUG_CONFIG_FILE_PATH, or the path of the older service, in this order. An unknown key has no effect and
logs a warning with the most similar key; any other fault raises ConfigError with the file and the key. Reads
one file, keeps no state.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.hook_config import HookConfig
from tdcore.config.reduction_config import ReductionConfig, reduction_lists
from tdcore.config.save_config import SETTINGS, SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError, UnsupportedFeature
from tdcore.modes import ModeKeys

__all__ = [
    "CONFIG_VARIABLES",
    "DEFAULT_CONFIG_PATH",
    "PLACES",
    "hook_document",
    "load_hook_config",
    "parse_hook_config",
]

_log = logging.getLogger("tdcore")

CONFIG_VARIABLES = ("TDCORE_CONFIG", "SMDEBUG_CONFIG_FILE_PATH")
DEFAULT_CONFIG_PATH = "/opt/ml/input/config/debughookconfig.json"

PLACES = ("LocalPath", "S3OutputPath", "S3Path")  # the first that is there holds
_TOP = (*PLACES, "HookParameters", "CollectionConfigurations")
_MODES = {mode.name.lower(): mode for mode in ModeKeys}
_SAVE_KEYS = (*SETTINGS, *(f"{mode}.{setting}" for mode in _MODES for setting in SETTINGS))
_REDUCTION_KEYS = ("reductions", "save_raw_tensor", "save_shape")
_TENSORBOARD = ("export_tensorboard", "tensorboard_dir")
_HOOK_KEYS = ("dry_run", "save_all", "include_workers", "include_regex", "include_collections")
# save_histogram only ever acted on TensorBoard export: without that it means nothing, there and here.
_COLLECTION_KEYS = ("include_regex", "tensor_names", "module_regex", "save_histogram")


def load_hook_config(path: str | os.PathLike[str] | None = None) -> HookConfig:
    """Find and read the file; the docstring of the module has the order of paths."""
    found = _find(path)
    try:
        document = json.loads(Path(found).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"hook configuration {found} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"hook configuration {found} is not JSON: {error}") from error
    try:
        return parse_hook_config(document)
    except ConfigError as error:
        raise type(error)(f"hook configuration {found}: {error}") from error


def parse_hook_config(document: object) -> HookConfig:
    """The configuration in a parsed JSON document. Raises ConfigError."""
    top = _object("the document", document)
    top = _known("the document", top, _TOP)
    hook = _object("HookParameters", top.get("HookParameters"))
    _refuse_tensorboard(hook)
    hook = _known("HookParameters", hook, (*_HOOK_KEYS, *_SAVE_KEYS, *_REDUCTION_KEYS, *_TENSORBOARD))
    out_dir = next((top[key] for key in PLACES if top.get(key)), None)
    if not isinstance(out_dir, str):
        raise ConfigError("LocalPath (or S3OutputPath) must say where the run is written")
    entries = top.get("CollectionConfigurations") or []
    if not isinstance(entries, list):
        raise ConfigError("CollectionConfigurations must be a list of objects")
    return HookConfig(
        out_dir=out_dir,
        dry_run=_bool("dry_run", hook.get("dry_run", False)),
        save_config=_save_config(hook, {}),
        reduction_config=_reduction_config(hook),
        include_regex=_list("include_regex", hook.get("include_regex")),
        include_collections=_list("include_collections", hook.get("include_collections")),
        save_all=_bool("save_all", hook.get("save_all", False)),
        include_workers=_workers(hook.get("include_workers", "one")),
        collections=tuple(_collection(entry, hook) for entry in entries),
    )


def hook_document(collections: Iterable[CollectionConfig], out_dir: str) -> dict[str, Any]:
    """The JSON document of a hook that saves these collections into `out_dir`; parse_hook_config reads it."""
    entries = [
        {"CollectionName": each.name, "CollectionParameters": _collection_parameters(each)}
        for each in collections
    ]
    place = "S3OutputPath" if out_dir.startswith("s3://") else "LocalPath"
    return {place: out_dir, "CollectionConfigurations": entries}


def _collection_parameters(config: CollectionConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if config.include_regex:
        found["include_regex"] = list(config.include_regex)
    if config.tensor_names:
        found["tensor_names"] = list(config.tensor_names)
    if config.module_regex:
        found["module_regex"] = list(config.module_regex)
    if config.save_config is not None:
        found |= dict(_save_parameters(config.save_config))
    if config.reduction_config is not None:
        reduction = config.reduction_config
        names = [*reduction.reductions, *(f"abs_{name}" for name in reduction.abs_reductions)]
        names += [*(f"{n}_norm" for n in reduction.norms), *(f"abs_{n}_norm" for n in reduction.abs_norms)]
        found |= {"reductions": names} if names else {}
        found["save_raw_tensor"] = reduction.save_raw_tensor
    return found


def _save_parameters(config: SaveConfig) -> Iterable[tuple[str, Any]]:
    default = SaveConfig()
    if all(config.own(mode) is not None for mode in ModeKeys):
        yield "save_interval", config.save_interval
        for name in SETTINGS:
            if name != "save_interval" and getattr(config, name) != getattr(default, name):
                value = getattr(config, name)
                yield name, list(value) if name == "save_steps" else value
    for mode, when in config.mode_save_configs.items():
        for name, value in when.to_json_dict().items():
            yield f"{mode.name.lower()}.{name}", value


def _find(path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        return os.fspath(path)
    for variable in CONFIG_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable]
    if os.path.exists(DEFAULT_CONFIG_PATH):
        return DEFAULT_CONFIG_PATH
    raise ConfigError(
        f"no hook configuration: give its path, or set {CONFIG_VARIABLES[0]} (or {CONFIG_VARIABLES[1]}) to it"
    )


def _collection(entry: object, hook: Mapping[str, Any]) -> CollectionConfig:
    item = _object("an entry of CollectionConfigurations", entry)
    item = _known("an entry of CollectionConfigurations", item, ("CollectionName", "CollectionParameters"))
    name = item.get("CollectionName")
    if not isinstance(name, str) or not name:
        raise ConfigError("an entry of CollectionConfigurations lacks its CollectionName")
    where = f"collection {name!r}"
    own = _object(where, item.get("CollectionParameters"))
    _refuse_tensorboard(own)
    own = _known(where, own, (*_COLLECTION_KEYS, *_SAVE_KEYS, *_REDUCTION_KEYS))
    try:
        return CollectionConfig(
            name=name,
            include_regex=_list("include_regex", own.get("include_regex")),
            tensor_names=_list("tensor_names", own.get("tensor_names")),
            module_regex=_list("module_regex", own.get("module_regex")),
            save_config=_save_config(own, hook) if any(key in own for key in _SAVE_KEYS) else None,
            reduction_config=_reduction_config(own),
        )
    except ConfigError as error:
        raise type(error)(f"{where}: {error}") from error


def _save_config(own: Mapping[str, Any], base: Mapping[str, Any]) -> SaveConfig:
    """Each setting comes from: own per mode, own, base per mode, base, default."""

    def settings(mode: str | None) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for source in (base, own):
            for prefix in ("",) if mode is None else ("", f"{mode}."):
                for setting in SETTINGS:
                    key = prefix + setting
                    if key in source:
                        result[setting] = _setting(key, source[key])
        return result

    def named(mode: str) -> bool:
        return any(f"{mode}.{setting}" in source for source in (own, base) for setting in SETTINGS)

    return SaveConfig(
        **settings(None),
        mode_save_configs={
            mode: SaveConfigMode(**settings(key)) for key, mode in _MODES.items() if named(key)
        },
    )


def _setting(key: str, value: object) -> object:
    if key.endswith("save_steps"):
        items = value if isinstance(value, list) else _list(key, value)
        return [_int(key, item) for item in items]
    if key.endswith("end_step") and (value is None or str(value).strip().lower() in ("none", "")):
        return None
    return _int(key, value)


def _reduction_config(own: Mapping[str, Any]) -> ReductionConfig | None:
    if not any(key in own for key in _REDUCTION_KEYS):
        return None
    groups = reduction_lists(_list("reductions", own.get("reductions")))
    # Asking for reductions asks not for the tensor, as in the older library; save_raw_tensor asks for both.
    raw = _bool("save_raw_tensor", own.get("save_raw_tensor", not any(groups.values())))
    return ReductionConfig(**groups, save_raw_tensor=raw)


def _refuse_tensorboard(parameters: Mapping[str, Any]) -> None:
    for key in _TENSORBOARD:
        if key in parameters and str(parameters[key]).strip().lower() not in ("false", "none", ""):
            raise UnsupportedFeature(
                f"{key}: TensorBoard export is not there yet; remove {key} from the configuration"
            )


def _object(where: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a JSON object, got {type(value).__name__}")
    return value


def _known(where: str, found: Mapping[str, Any], allowed: tuple[str, ...]) -> dict[str, Any]:
    """The entries with known keys. Logs a warning for each other key, which has no effect."""
    for key in found:
        if key not in allowed:
            close = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(allowed)}"
            _log.warning("tdcore: hook configuration: %s has an unknown key %r; %s", where, key, hint)
    return {key: value for key, value in found.items() if key in allowed}


def _list(key: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return tuple(part.strip() for part in str(value).split(",") if part.strip())


def _workers(value: object) -> str | list[int | str]:
    """One word, or a list of ranks and names."""
    if value in ("one", "all"):
        return str(value)
    items = value if isinstance(value, list) else _list("include_workers", value)
    return [int(item) if str(item).isdecimal() else item for item in items]


def _int(key: str, value: object) -> int:
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        return int(str(value).strip())
    except ValueError:
        raise ConfigError(f"{key} must be a whole number, got {value!r}") from None


def _bool(key: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "1", "yes"):
        return True
    if text in ("false", "0", "no"):
        return False
    raise ConfigError(f"{key} must be true or false, got {value!r}")
