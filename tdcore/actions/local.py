"""Actions in this process: a line in the log, or a function of the user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from tdcore.actions.base import NoticeKey, Once, printable

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["Callback", "LogFindings"]


class LogFindings:
    """Log findings as warnings, once per notice key.

    Args:
        logger: The logger; None: `tdcore.rules`.
        again_after: Time after which the same notice key is logged again; None: never.
    """

    name = "log"

    def __init__(self, logger: logging.Logger | None = None, *, again_after: timedelta | None = None) -> None:
        self._logger = logger if logger is not None else logging.getLogger("tdcore.rules")
        self._once = Once(again_after)

    def prime(self, keys: Iterable[NoticeKey]) -> None:
        """See Action."""
        self._once.prime(keys)

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Handle new findings; see Action.act."""
        due = self._once.due(findings)
        self._once.told(due)
        for finding in due:
            self._logger.warning(
                "%s at %s, %s: %s; %s",
                finding.rule,
                finding.at,
                printable(finding.tensor) or "run",
                printable(finding.why),
                finding.do,
            )


class Callback:
    """Call a function with all findings that a check of the run began or continued.

    Args:
        function: Called with a list of findings, in the engine's thread.
        name: Name of the function in messages about failures.
    """

    def __init__(self, function: Callable[[Sequence[Finding]], None], *, name: str = "callback") -> None:
        self.name = name
        self._function = function

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Handle new findings; see Action.act."""
        self._function(findings)
