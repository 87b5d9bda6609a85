"""Reader of smdebug's JSON hook configuration, which returns a HookConfig.

    {
      "LocalPath": "runs/demo",                       or "S3OutputPath" or "S3Path"; the first is used
      "HookParameters": {"save_interval": "100", "eval.save_interval": "10", "include_regex": "relu,tanh",
                         "reductions": "min,abs_max,l2_norm", "save_raw_tensor": "true", ...},
      "CollectionConfigurations": [
        {"CollectionName": "gradients", "CollectionParameters": {"train.save_interval": "50"}}, ...
      ],
      "ProfilerConfig": {...}                          optional, see profiler_json.py
    }

Values are strings or JSON values of the right type; lists are comma-separated strings (whose patterns contain
no comma) or JSON lists. A collection inherits missing parameters from HookParameters, one by one, and its
module_regex has the meaning of CollectionConfig.module_regex. The path of the file is the argument,
TDCORE_CONFIG, SMDEBUG_CONFIG_FILE_PATH, or SageMaker's default path, in this order. An unknown key has no
effect and logs a warning with the most similar key; any other error raises ConfigError with the file and the
key. Functions without state; any thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.hook_config import HookConfig
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.profiler_json import parse_profiler_config
from tdcore.config.reduction_config import ReductionConfig, reduction_lists
from tdcore.config.save_config import SETTINGS, SaveConfig, SaveConfigMode
from tdcore.config.schema import FLAG, WHOLE, items, mapping, parse_document, read_text, unknown_keys, within
from tdcore.errors import ConfigError
from tdcore.modes import ModeKeys

__all__ = [
    "CONFIG_VARIABLES",
    "DEFAULT_CONFIG_PATH",
    "MODES",
    "PLACES",
    "TOP_KEYS",
    "WHAT",
    "find_hook_file",
    "hook_document",
    "load_hook_config",
    "parse_hook_config",
]

_log = logging.getLogger("tdcore")

CONFIG_VARIABLES = ("TDCORE_CONFIG", "SMDEBUG_CONFIG_FILE_PATH")
DEFAULT_CONFIG_PATH = "/opt/ml/input/config/debughookconfig.json"

WHAT = "hook configuration"  # name of these files in messages
PLACES = ("LocalPath", "S3OutputPath", "S3Path")  # the first existing one is used
TOP_KEYS = (*PLACES, "HookParameters", "CollectionConfigurations", "ProfilerConfig")
MODES = {mode.name.lower(): mode for mode in ModeKeys}
_SAVE_KEYS = (*SETTINGS, *(f"{mode}.{setting}" for mode in MODES for setting in SETTINGS))
_REDUCTION_KEYS = ("reductions", "save_raw_tensor", "save_shape")
_TENSORBOARD = ("export_tensorboard", "tensorboard_dir")
_PARAMETERS = (*_SAVE_KEYS, *_REDUCTION_KEYS)
_HOOK_KEYS = (
    *("dry_run", "save_all", "include_workers", "include_regex", "include_collections"),
    *(*_PARAMETERS, *_TENSORBOARD),
)
# save_histogram has no effect, because every tensor with statistics has a histogram, which the export uses.
_COLLECTION_KEYS = ("include_regex", "tensor_names", "module_regex", "save_histogram", *_PARAMETERS)


def find_hook_file() -> str | None:
    """Path from an environment variable, or SageMaker's default path if that file exists; otherwise None."""
    for variable in CONFIG_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable]
    return DEFAULT_CONFIG_PATH if os.path.exists(DEFAULT_CONFIG_PATH) else None


def load_hook_config(path: str | os.PathLike[str] | None = None) -> HookConfig:
    """Find and read the file; the docstring of the module has the order of paths."""
    found = find_hook_file() if path is None else path
    if found is None:
        raise ConfigError(
            f"no hook configuration: give its path, or set {' (or '.join(CONFIG_VARIABLES)}) to it"
        )
    text = read_text(Path(found), WHAT)
    with within(f"{WHAT} {found}"):
        return parse_hook_config(parse_document(text, as_json=True))


def parse_hook_config(document: object) -> HookConfig:
    """The configuration in a parsed JSON document. Raises ConfigError."""
    top = _object("the document", document, TOP_KEYS)
    hook = _object("HookParameters", top.get("HookParameters"), _HOOK_KEYS)
    out_dir = next((top[key] for key in PLACES if top.get(key)), None)
    if not isinstance(out_dir, str):
        raise ConfigError("LocalPath (or S3OutputPath) must be the folder or URL where the run is written")
    entries = top.get("CollectionConfigurations") or None  # 0 and "" mean no entries
    return HookConfig(
        out_dir=out_dir,
        dry_run=FLAG(hook.get("dry_run", False), "dry_run"),
        save_config=_save_config(hook, {}),
        reduction_config=_reduction_config(hook),
        include_regex=_texts(hook.get("include_regex")),
        include_collections=_texts(hook.get("include_collections")),
        save_all=FLAG(hook.get("save_all", False), "save_all"),
        include_workers=_workers(hook.get("include_workers", "one")),
        collections=[
            _collection(entry, hook)
            for entry in items("CollectionConfigurations", entries, "be a list of objects")
        ],
        profiler_config=_profiler_config(top.get("ProfilerConfig")),
        export_tensorboard=FLAG(hook.get("export_tensorboard", False), "export_tensorboard"),
        tensorboard_dir=_folder(hook.get("tensorboard_dir")),
    )


def _profiler_config(document: object) -> ProfilerConfig | None:
    if document is None:
        return None
    with within("ProfilerConfig"):
        return parse_profiler_config(document)


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


def _collection(entry: object, hook: Mapping[str, Any]) -> CollectionConfig:
    what = "an entry of CollectionConfigurations"
    item = _object(what, entry, ("CollectionName", "CollectionParameters"))
    name = item.get("CollectionName")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{what} lacks its CollectionName")
    where = f"collection {name!r}"
    own = _object(where, item.get("CollectionParameters"), _COLLECTION_KEYS)
    with within(where):
        return CollectionConfig(
            name=name,
            include_regex=_texts(own.get("include_regex")),
            tensor_names=_texts(own.get("tensor_names")),
            module_regex=_texts(own.get("module_regex")),
            save_config=_save_config(own, hook) if any(key in own for key in _SAVE_KEYS) else None,
            reduction_config=_reduction_config(own),
        )


def _save_config(own: Mapping[str, Any], base: Mapping[str, Any]) -> SaveConfig:
    """Each setting is the first that exists: own per mode, own, base per mode, base, default."""

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
            mode: SaveConfigMode(**settings(key)) for key, mode in MODES.items() if named(key)
        },
    )


def _setting(key: str, value: object) -> object:
    if key.endswith("save_steps"):
        return [WHOLE(item, key) for item in _list(value)]
    if key.endswith("end_step") and (value is None or str(value).strip().lower() in ("none", "")):
        return None
    return WHOLE(value, key)


def _reduction_config(own: Mapping[str, Any]) -> ReductionConfig | None:
    if not any(key in own for key in _REDUCTION_KEYS):
        return None
    groups = reduction_lists(_texts(own.get("reductions")))
    # As in smdebug, a request for reductions excludes the values; save_raw_tensor requests both.
    raw = FLAG(own.get("save_raw_tensor", not any(groups.values())), "save_raw_tensor")
    return ReductionConfig(**groups, save_raw_tensor=raw)


def _object(where: str, value: object, known: tuple[str, ...]) -> dict[str, Any]:
    """The entries of an object with known keys. Each other key has no effect and is logged as a warning."""
    found = mapping(where, value, "be a JSON object")
    for message in unknown_keys(where, found, known):
        _log.warning("tdcore: %s: %s", WHAT, message)
    return {key: value for key, value in found.items() if key in known}


def _folder(value: Any) -> Any:
    """A folder, which HookConfig checks; None for null, "" and "None"."""
    return None if value in (None, "", "None", "none") else value


def _list(value: object) -> list[Any]:
    """The items of a list, or of a text with commas between them."""
    if value is None or isinstance(value, list):
        return value or []
    return [part.strip() for part in str(value).split(",") if part.strip()]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, _list(value)))


def _workers(value: object) -> str | list[int | str]:
    """One word, or a list of ranks and names."""
    if value in ("one", "all"):
        return str(value)
    return [int(item) if str(item).isdecimal() else item for item in _list(value)]
