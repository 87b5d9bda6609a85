"""stored_findings: findings from the lines of findings/ in a run, which are untrusted. Pure functions, any thread."""

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
    """The findings of these lines, each series once, with its newest line. Lines of another form are left out."""
    found: dict[tuple[Any, ...], Finding] = {}
    for line in lines:
        finding = _finding(line)
        if finding is not None:
            found[(finding.rule, *finding.series)] = finding
    return list(found.values())


def _finding(line: Mapping[str, Any]) -> Finding | None:
    texts = {name: line.get(name, "") for name in _TEXTS}
    whole = {name: line.get(name, 0) for name in _WHOLE}
    count, numbers = line.get("count", 1), line.get("numbers", {})
    optional = {name: line.get(name) for name in _OPTIONAL}
    if not all(isinstance(text, str) for text in texts.values()) or not isinstance(numbers, dict):
        return None
    if not all(map(_is_number, (*whole.values(), count))):
        return None
    if not all(value is None or _is_number(value) for value in optional.values()):
        return None
    plain = {str(name): value for name, value in numbers.items() if isinstance(value, (int, float, str))}
    return Finding(**texts, **whole, **optional, numbers=plain, count=count)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST
