"""Recordings of smdebug, the library of Amazon SageMaker Debugger: read in place, or converted to runs.

    trial = tdcore.compat.open_smdebug("old/recording")     # create_trial opens the folder too
    tdcore.compat.convert("old/recording", "runs/new")

The format of the recordings was taken from smdebug's documentation and from recordings that smdebug 1.0.34
wrote. docs/moving.md describes what is read, and the limits.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcore.compat.convert import Converted, convert
    from tdcore.compat.opening import open_smdebug

__all__ = ["Converted", "convert", "open_smdebug"]

_HOME = {
    "Converted": "tdcore.compat.convert",
    "convert": "tdcore.compat.convert",
    "open_smdebug": "tdcore.compat.opening",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tdcore.compat' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
