"""The flusher: takes records out of a ring and makes them a run on disk.

It runs in a process of its own (`main.main`) or as a thread of the trainer (`Flusher.run`); one class
serves both.
"""

from __future__ import annotations

from tdcore.flusher.loop import Flusher
from tdcore.flusher.options import FlusherOptions

__all__ = ["Flusher", "FlusherOptions"]
