"""The flusher: a reader of the records in a ring, which it writes to a run.

It runs as a separate process (`main.main`) or as a thread of the trainer (`Flusher.run`), with the same
class.
"""

from __future__ import annotations

from tdcore.flusher.loop import Flusher
from tdcore.flusher.options import FlusherOptions

__all__ = ["Flusher", "FlusherOptions"]
