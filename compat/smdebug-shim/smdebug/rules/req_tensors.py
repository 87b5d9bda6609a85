"""smdebug.rules.req_tensors."""

from __future__ import annotations

from tdcore.smd import RequiredTensors

__all__ = ["RequiredTensors"]
