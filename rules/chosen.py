"""Chosen: which rules a run is judged by.

Those that are named. Where none is, those that the run was made with, `Hook("runs/demo", rules=[...])`, as
its run.json names them. Where the run has none either, or "all" is named, all rules of the table. From a run
only rules of the table are taken, by name: a run never brings code. Plain functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError
from tdcore.rules.base import Rule
from tdcore.rules.bounds import unbounded
from tdcore.rules.loading import ALL, all_rules, is_all, load_rules, table_rule

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Chosen", "choose", "chosen_rules"]

_SHOWN = 120
_MAX_CHARS = 1 << 14  # of all rules: to compile a pattern takes time, and nobody typed these


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """rules: to judge by. asked: how many of them, the first ones, were named by the user or by the hook; the
    others run because all rules do. left_out: what the run names and is not taken, with the reason.
    """

    rules: list[Rule]
    asked: int
    left_out: list[str]


def choose(rules: Iterable[object] | str | None, sink: Sink) -> Chosen:
    """The rules to judge a run by. rules: what the user named; None for nothing.

    Raises ConfigError for a rule that there is not, and as chosen_rules().
    """
    left_out: list[str] = []
    if rules is None:
        asked, left_out = chosen_rules(sink)
        everything = not asked
    else:
        named = [rules] if isinstance(rules, str) else list(rules)
        everything = any(is_all(rule) for rule in named)
        asked = load_rules(rule for rule in named if not is_all(rule))
        if not named:
            raise ConfigError(f"no rule was given; name at least one, such as vanishing_gradient, or {ALL!r}")
    taken = {type(unbounded(rule)) for rule in asked}
    others = [rule for rule in all_rules() if type(rule) not in taken] if everything else []
    return Chosen(rules=[*asked, *others], asked=len(asked), left_out=left_out)


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
