"""stored_findings: findings from the lines of findings/, which are untrusted. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tdcore.rules.base import Finding

__all__ = ["stored_findings"]

_TEXTS = ("rule", "code", "mode", "worker", "tensor", "why", "do")
_WHOLE = ("step", "mode_step", "attempt")
_OPTIONAL = ("last_step", "last_mode_step", "epoch", "last_epoch")
_LARGEST = 1 << 53  # JavaScript has no larger exact integers


def stored_findings(lines: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """The findings of these lines, each series once, with its newest line.

    Lines of another form are left out.
    """
    found: dict[tuple[Any, ...], Finding] = {}
    for line in lines:
        finding = _finding(line)
        if finding is not None:
            found[finding.rule, finding.series] = finding
    return list(found.values())


def _finding(line: Mapping[str, Any]) -> Finding | None:
    fields: dict[str, Any] = {name: line.get(name, "") for name in _TEXTS}
    if not all(isinstance(text, str) for text in fields.values()):
        return None
    for name, default in (
        *((name, 0) for name in _WHOLE),
        ("count", 1),
        *((name, None) for name in _OPTIONAL),
    ):
        fields[name] = line.get(name, default)
        if not (fields[name] is default or _is_number(fields[name])):
            return None
    numbers = line.get("numbers", {})
    if not isinstance(numbers, dict):
        return None
    plain = {str(name): value for name, value in numbers.items() if isinstance(value, (int, float, str))}
    return Finding(**fields, numbers=plain)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST
