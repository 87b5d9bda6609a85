"""smdebug.rules: the base class of rules, and invoke_rule."""

from __future__ import annotations

from tdcore.smd import Rule, invoke_rule

__all__ = ["Rule", "invoke_rule"]
