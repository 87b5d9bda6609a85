"""Environment variables of tdcore: a table, and readers of the variables that every hook needs.

Other modules read the other variables; a test compares the table with docs/operate.md. The functions take the
variables as a mapping; any thread. This module imports only tdcore.errors, so that a disabled tdcore loads no
other module.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from tdcore.errors import ConfigError

__all__ = [
    "VARIABLES",
    "Variable",
    "apply_log_level",
    "disabled",
    "log_level",
    "measures_step_times",
    "system_interval",
]

_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")
_SYSTEM_SECONDS = 0.5
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable. values: the valid values. default: the value if the variable is not set."""

    name: str
    values: str
    default: str
    effect: str


VARIABLES = (
    Variable("TDCORE_DISABLED", "`1`, `true`, `yes`, `on`; `0`, `false`, `no`, `off`", "`0`",
             "recording is off: the native code of tdcore is not loaded, and the script runs unchanged"),
    Variable("TDCORE_LOG_LEVEL", "`DEBUG`, `INFO`, `WARNING`, `ERROR`, `CRITICAL`", "as the program sets it",
             "level of the loggers `tdcore` and `tdcore.*`"),
    Variable("TDCORE_CONFIG", "a file", "none",
             "configuration of `tdcore run` and of the hook from a JSON file"),
    Variable("TDCORE_PROFILER_CONFIG", "a file", "none",
             "steps to profile, from a JSON file (docs/profile.md)"),
    Variable("TDCORE_SYSTEM_INTERVAL", "0.1 to 60 seconds; `off`", "`0.5`",
             "interval of samples of the machine and the trainer's processes"),
    Variable("TDCORE_STEP_TIMES", "`on`, `off`", "`on`",
             "times of all steps, divided into phases (docs/step-times.md)"),
    Variable("TDCORE_SPOOL", "a folder", "`$XDG_STATE_HOME/tdcore/spool`, else `~/.local/state/tdcore/spool`",
             "folder of the spools: data that a bucket has not accepted yet"),
    Variable("TDCORE_CACHE", "a folder", "`$XDG_CACHE_HOME/tdcore`, else `~/.cache/tdcore`",
             "copies of index files of buckets, index files of recordings of smdebug, compiled GPU kernels"),
    Variable("TDCORE_SIMD", "`portable`, `avx2`, `avx512`", "the highest that the CPU supports",
             "the highest instruction set that statistics use"),
    Variable("TDCORE_CUDA_KERNELS", "`fatbin`, `nvrtc`", "`fatbin` if usable, else `nvrtc`",
             "source of the GPU kernels: built with tdcore, or compiled at first use"),
    Variable("TDCORE_LIBCUDA", "a file", "`libcuda.so.1`", "the library of the CUDA driver"),
)  # fmt: skip


def disabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether TDCORE_DISABLED disables recording. Raises ConfigError for an invalid value."""
    value = environment.get("TDCORE_DISABLED", "").strip().lower()
    if value not in _ON and value not in _OFF:
        raise ConfigError(f"TDCORE_DISABLED must be 1 (nothing is recorded) or 0, got {value!r}")
    return value in _ON


def log_level(environment: Mapping[str, str] = os.environ) -> str | None:
    """The level in TDCORE_LOG_LEVEL; None if it is not set. Raises ConfigError for an invalid level."""
    value = environment.get("TDCORE_LOG_LEVEL", "").strip().upper()
    if value and value not in _LEVELS:
        raise ConfigError(f"TDCORE_LOG_LEVEL must be one of {', '.join(_LEVELS)}, got {value!r}")
    return value or None


def system_interval(environment: Mapping[str, str] = os.environ) -> timedelta:
    """TDCORE_SYSTEM_INTERVAL; zero if it is "off". Raises ConfigError for an invalid value."""
    text = environment.get("TDCORE_SYSTEM_INTERVAL", "").strip().lower()
    if text == "off":
        return timedelta()
    try:
        seconds = float(text or _SYSTEM_SECONDS)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 60:
        raise ConfigError(f"TDCORE_SYSTEM_INTERVAL must be 0.1 to 60 seconds, or off, got {text!r}")
    return timedelta(seconds=seconds)


def measures_step_times(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether TDCORE_STEP_TIMES is on. Raises ConfigError for an invalid value."""
    text = environment.get("TDCORE_STEP_TIMES", "").strip().lower() or "on"
    if text not in ("on", "off"):
        raise ConfigError(f"TDCORE_STEP_TIMES must be on or off, got {text!r}")
    return text == "on"


def apply_log_level(environment: Mapping[str, str] = os.environ) -> None:
    """Set the level of tdcore's loggers to TDCORE_LOG_LEVEL, if it is set.

    A level below WARNING needs a handler. If neither the program nor a library has configured a handler, a
    handler for stderr is added.
    """
    if not environment.get("TDCORE_LOG_LEVEL"):
        return
    import logging

    logger = logging.getLogger("tdcore")
    try:
        level = log_level(environment)
    except ConfigError as error:
        logger.warning("tdcore: %s; the level is not changed", error)
        return
    assert level is not None
    logger.setLevel(level)
    if logger.isEnabledFor(logging.INFO) and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
