"""check_sendable: whether rules can be sent to other processes. A plain function; any thread."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from tdcore.errors import ConfigError
from tdcore.rules.base import Rule
from tdcore.rules.loading import is_all, load_rules

__all__ = ["check_sendable"]


def check_sendable(rules: Sequence[str | Rule | type[Rule]] | str | None, *, sent: bool) -> None:
    """Raise ConfigError for invalid rules, here and not in each task.

    sent: whether the rules are sent to other processes.
    """
    for rule in [rules] if isinstance(rules, str) else rules or ():
        if isinstance(rule, str):
            if not is_all(rule):
                load_rules(rule)
        elif sent:
            try:
                pickle.dumps(rule)
            except Exception as error:
                raise ConfigError(
                    f"{rule!r} cannot be sent to other processes ({error}); define its class in a module, "
                    'give it as text such as "my_rules.py::MyRule", or use engine="serial"'
                ) from error
