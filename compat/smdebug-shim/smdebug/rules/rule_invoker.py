"""smdebug.rules.rule_invoker."""

from __future__ import annotations

from tdcore.smd import invoke_rule

__all__ = ["invoke_rule"]
