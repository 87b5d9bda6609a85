"""Chosen: the rules that a run was made with, `Hook("runs/demo", rules=[...])`, as its run.json names them.

Only rules of the table are taken, by name: a run never brings code. Plain functions; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError
from tdcore.rules.base import Rule
from tdcore.rules.loading import table_rule

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["chosen_rules"]

_SHOWN = 120
_MAX_CHARS = 1 << 14  # of all rules: to compile a pattern takes time, and nobody typed these


def chosen_rules(sink: Sink) -> tuple[list[Rule], list[str]]:
    """The rules of the newest attempt of a run, and what is wrong with those that are left out.

    Raises SinkKeyError when there is no run, RunCorrupt when run.json cannot be read.
    """
    from tdcore.trial.documents import read_run

    attempts = read_run(sink).attempts
    configuration: Any = attempts[-1].document.get("configuration") if attempts else None
    texts: Any = configuration.get("rules", []) if isinstance(configuration, dict) else []
    found: list[Rule] = []
    problems: list[str] = []
    room = _MAX_CHARS
    for text in texts if isinstance(texts, list) else [texts]:
        shown = str(text)[:_SHOWN]
        room -= len(text) if isinstance(text, str) else 0
        if room < 0:
            problems.append(
                f"the run names rules of more than {_MAX_CHARS:,} characters; {shown!r} and the rest are "
                "left out"
            )
            break
        try:
            rule = table_rule(text) if isinstance(text, str) else None
        except ConfigError as error:
            problems.append(f"the run names rule {shown!r}, which is left out: {error}")
            continue
        if rule is None:
            problems.append(f"the run names {shown!r}, which is no rule of the table; name it with --rule")
        else:
            found.append(rule)
    return found, problems
