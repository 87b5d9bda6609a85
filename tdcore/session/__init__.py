"""The capture session of a training process: its attempt, its ring and its flusher.

This package does not depend on a framework.

session                        Session, which hooks create and close
attempts                       the number of the attempt, and its entry in run.json
ring_config, devices           size of the ring; number of visible GPUs, found without CUDA
supervisor, runners, spawning  the thread that starts and restarts the flusher, as a process or a thread
bucket_helper                  short-lived processes that reach a bucket for the training process
counters                       counts of captured and dropped tensors

Names load on first use: if recording is disabled, only counters and ring_config are imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcore.session.attempts import JSON
    from tdcore.session.ring_config import RingConfig
    from tdcore.session.session import Session, StopRequest

__all__ = ["JSON", "RingConfig", "Session", "StopRequest"]

_HOME = {"JSON": "attempts", "RingConfig": "ring_config", "Session": "session", "StopRequest": "session"}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tdcore.session' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"tdcore.session.{home}"), name)
    globals()[name] = value
    return value
