"""choose_rules: the rules that check a run.

The rules that the user names check the run. If the user names no rules, these are the rules of the hook,
`Hook("runs/demo", rules=[...])`, which are stored in run.json. If the hook has no rules either, or for "all",
these are all rules of the table. A run can only name rules of the table: it never supplies code. Plain
functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError
from tdcore.rules.base import Rule
from tdcore.rules.loading import ALL, all_rules, is_all, load_rules, table_rule
from tdcore.rules.step_range import with_step_range, without_step_range

if TYPE_CHECKING:
    from tdcore.rules.run_source import RunSource
    from tdcore.sinks import Sink

__all__ = ["RuleChoice", "RunRules", "choose_rules", "given_rules", "rules_of_run"]

_SHOWN = 120
_MAX_CHARS = 1 << 14  # limit for the text of all rules of a run, because long patterns take long to compile


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRules:
    """The rules that check a run.

    Attributes:
        rules: Instances.
        asked: Number of rules, the first ones, that the user or the hook named. The others were added because
            all rules run.
        left_out: Rules that the run names but that cannot be used, with the reason.
        of_run: Whether the run names the rules, and not the user.
    """

    rules: list[Rule]
    asked: int
    left_out: list[str]
    of_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChoice:
    """The rules of a call of `run`, in a form that can be sent to another process.

    Attributes:
        given: The rules that the user named; None if there are none.
        start_step, end_step: Range of steps, see with_step_range().
    """

    given: Sequence[Rule | type[Rule] | str] | str | None
    start_step: int = 0
    end_step: int | None = None

    def chosen(self, source: RunSource) -> RunRules:
        """Load the rules. Rules in the form of smdebug get the run. Raises the exceptions of choose_rules."""
        found = choose_rules(self.given, source.sink)
        rules = [with_step_range(rule, self.start_step, self.end_step) for rule in found.rules]
        for rule in rules:
            attach = getattr(rule, "attach", None)
            if attach is not None:
                attach(source)
        return replace(found, rules=rules, of_run=self.given is None and found.asked > 0)


def choose_rules(rules: Iterable[object] | str | None, sink: Sink) -> RunRules:
    """The rules that check a run.

    Args:
        rules: The rules that the user named; None if there are none.
        sink: The run.

    Raises:
        ConfigError: A rule is unknown.
        SinkKeyError, RunCorrupt: See rules_of_run().
    """
    left_out: list[str] = []
    if rules is None:
        asked, left_out = rules_of_run(sink)
        everything = not asked
    else:
        named = [rules] if isinstance(rules, str) else list(rules)
        everything = any(is_all(rule) for rule in named)
        asked = load_rules(rule for rule in named if not is_all(rule))
        if not named:
            raise ConfigError(f"no rule was given; name at least one, such as vanishing_gradient, or {ALL!r}")
    taken = {type(without_step_range(rule)) for rule in asked}
    others = [rule for rule in all_rules() if type(rule) not in taken] if everything else []
    return RunRules(rules=[*asked, *others], asked=len(asked), left_out=left_out)


def given_rules(
    rules: Iterable[Rule | type[Rule] | str] | str | None,
) -> Sequence[Rule | type[Rule] | str] | str | None:
    """The rules that the user named, as a sequence that can be read several times."""
    return rules if rules is None or isinstance(rules, str) else list(rules)


def rules_of_run(sink: Sink) -> tuple[list[Rule], list[str]]:
    """The rules of the newest attempt of a run, and the reasons for rules that are left out.

    Raises SinkKeyError if there is no run, RunCorrupt if run.json cannot be read.
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
            problems.append(f"the run names {shown!r}, which is not a rule of the table; name it with --rule")
        else:
            found.append(rule)
    return found, problems
