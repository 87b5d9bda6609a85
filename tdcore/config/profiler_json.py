"""Reader of SageMaker's JSON profiler configuration, which returns a ProfilerConfig.

    {
      "ProfilingIntervalInMilliseconds": 500,
      "DisableProfiler": false,
      "ProfilingParameters": {
        "DetailedProfilingConfig": "{\\"StartStep\\": 100, \\"NumSteps\\": 5}",
        "PythonProfilingConfig": "{'StartStep': 100, 'NumSteps': 5, 'cProfileTimer': 'cpu_time'}"
      }
    }

Keys are read without regard to case. The configurations of the parts are objects, or texts that contain the
object as JSON or as a Python literal. Without ProfilingParameters no step is profiled. The path of the file
is the argument, TDCORE_PROFILER_CONFIG, SMPROFILER_CONFIG_PATH, or SageMaker's default path, in this order.
An unknown key has no effect and logs a warning; any other error raises ConfigError with the file and the key.
Functions without state; any thread.
"""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdcore.config.profiler_config import (
    DataloaderProfilingConfig,
    DetailedProfilingConfig,
    FrameworkProfile,
    ProfilerConfig,
    PythonProfilingConfig,
)
from tdcore.config.schema import (
    FLAG,
    NUMBER,
    WHOLE,
    Kind,
    mapping,
    parse_document,
    read_text,
    unknown_keys,
    within,
)
from tdcore.errors import ConfigError

__all__ = ["PROFILER_VARIABLES", "find_profiler_config", "load_profiler_config", "parse_profiler_config"]

_log = logging.getLogger("tdcore")

PROFILER_VARIABLES = ("TDCORE_PROFILER_CONFIG", "SMPROFILER_CONFIG_PATH")
_DEFAULT_PATH = "/opt/ml/input/config/profilerconfig.json"
_WHAT = "profiler configuration"
_WORD = Kind("a text", str, (str,))

# (key, field, kind of value)
_Table = tuple[tuple[str, str, Kind], ...]
_RANGE: _Table = (
    ("StartStep", "start_step", WHOLE),
    ("NumSteps", "num_steps", WHOLE),
    ("StartTimeInSecSinceEpoch", "start_unix_time", NUMBER),
    ("DurationInSeconds", "duration", NUMBER),
    ("DefaultProfiling", "profile_default_steps", FLAG),
)
_PARTS: dict[str, tuple[str, Any, _Table]] = {
    "DetailedProfilingConfig": ("detailed_profiling_config", DetailedProfilingConfig, _RANGE),
    "DataloaderProfilingConfig": (
        "dataloader_profiling_config",
        DataloaderProfilingConfig,
        (*_RANGE, ("MetricsRegex", "metrics_regex", _WORD)),
    ),
    "PythonProfilingConfig": (
        "python_profiling_config",
        PythonProfilingConfig,
        (*_RANGE, ("ProfilerName", "python_profiler", _WORD), ("cProfileTimer", "cprofile_timer", _WORD)),
    ),
}
_FILES: _Table = (
    ("LocalPath", "local_path", _WORD),
    ("RotateMaxFileSizeInBytes", "file_max_size", NUMBER),
    ("RotateFileCloseIntervalInSeconds", "file_close_interval", NUMBER),
    ("FileOpenFailThreshold", "file_open_fail_threshold", NUMBER),
)
_OTHERS = {
    "HorovodProfilingConfig": "horovod_profiling_config",
    "SMDataParallelProfilingConfig": "smdataparallel_profiling_config",
}
_TOP: _Table = (
    ("ProfilingIntervalInMilliseconds", "system_monitor_interval_millis", WHOLE),
    ("S3OutputPath", "s3_output_path", _WORD),
    ("DisableProfiler", "disable_profiler", FLAG),
)


def find_profiler_config() -> str | None:
    """Path from an environment variable, or the default path if that file exists; otherwise None."""
    for variable in PROFILER_VARIABLES:
        if os.environ.get(variable):
            return os.environ[variable]
    return _DEFAULT_PATH if os.path.exists(_DEFAULT_PATH) else None


def load_profiler_config(path: str | os.PathLike[str] | None = None) -> ProfilerConfig | None:
    """Find and read the file. Return None if no path is given and no file is found. Raises ConfigError."""
    found = find_profiler_config() if path is None else path
    if found is None:
        return None
    text = read_text(Path(found), _WHAT)
    with within(f"{_WHAT} {found}"):
        return parse_profiler_config(parse_document(text, as_json=True))


def parse_profiler_config(document: object) -> ProfilerConfig:
    """The configuration in a parsed JSON document. Raises ConfigError."""
    top = _object("the document", document, [key for key, _, _ in _TOP] + ["ProfilingParameters"])
    return ProfilerConfig(**_fields(top, _TOP), framework_profile_params=_parameters(top))


def _parameters(top: Mapping[str, Any]) -> FrameworkProfile | None:
    where = "ProfilingParameters"
    keys = [*_PARTS, *(key for key, _, _ in _FILES), *_OTHERS]
    given = _object(where, top.get(where.lower()), keys)
    found = _fields(given, _FILES)
    for key, field in _OTHERS.items():
        if given.get(key.lower()):
            found[field] = given[key.lower()]
    profiled = False
    for key, (field, kind, table) in _PARTS.items():
        part = _object(key, _literal(key, given.get(key.lower())), [name for name, _, _ in table])
        if part:
            profiled = True
            with within(key):
                found[field] = kind(**_fields(part, table))
    return FrameworkProfile(**found) if profiled else None


def _fields(given: Mapping[str, Any], table: _Table) -> dict[str, Any]:
    """The fields of a table that are in an object with lower-case keys."""
    return {
        field: kind(given[key.lower()], key)
        for key, field, kind in table
        if given.get(key.lower()) is not None
    }


def _object(where: str, value: object, known: list[str]) -> dict[str, Any]:
    """An object with lower-case keys. An unknown key has no effect and is logged as a warning."""
    found = {str(key).lower(): each for key, each in mapping(where, value, "be a JSON object").items()}
    spelled = {key.lower(): key for key in known}
    for message in unknown_keys(where, [key for key in found if key not in spelled], known):
        _log.warning("tdcore: %s: %s", _WHAT, message)
    return {key: each for key, each in found.items() if key in spelled}


def _literal(where: str, value: object) -> object:
    """The object in a text. Other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return parse_document(value, as_json=True)
    except ConfigError:
        pass
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{where} is not an object: {value!r:.80}; write a JSON object") from error
