"""smdebug.mxnet.hook: the hook by its full name."""

from __future__ import annotations

from smdebug.mxnet import Hook

__all__ = ["Hook"]
