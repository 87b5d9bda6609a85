"""S3: a run in a bucket of AWS or of a store with the same protocol. Requires tdcore-capture[s3].

This package imports no client until an S3Sink is created.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tdcore.sinks.s3.options import S3Options, S3Place, parse_s3_url

if TYPE_CHECKING:
    from tdcore.sinks.s3.sink import S3Sink
    from tdcore.sinks.s3.store import S3Store

__all__ = ["S3Options", "S3Place", "S3Sink", "S3Store", "parse_s3_url"]

_LAZY = {"S3Sink": "tdcore.sinks.s3.sink", "S3Store": "tdcore.sinks.s3.store"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
