"""FindingGroup: findings of one rule that need the same change, such as one finding for each of 70 layers.

Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tdcore.rules.base import Finding
from tdcore.text.short_repr import cut

__all__ = ["FindingGroup", "grouped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """Findings of one rule, with the same advice, in one mode of one worker and attempt.

    Attributes:
        findings: In order of steps; within a step, in order of execution. At least one.
    """

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The first finding."""
        return self.findings[0]

    @property
    def last(self) -> Finding:
        """The finding that occurred at the newest step."""
        return max(self.findings, key=lambda each: each.step if each.last_step is None else each.last_step)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors, each once; "" for the run as a whole."""
        return tuple(dict.fromkeys(each.tensor for each in self.findings))

    @property
    def count(self) -> int:
        """Number of (finding, step) pairs."""
        return sum(each.count for each in self.findings)

    def __repr__(self) -> str:
        more = f" and {len(self.findings) - 1} more" if len(self.findings) > 1 else ""
        return cut(f"<FindingGroup: {self.first!r}{more}>")

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        first, last = self.first.to_json(), self.last.to_json()
        same = {key: first[key] for key in ("rule", "code", "attempt", "worker", "mode", "step", "mode_step")}
        return {
            **same,
            "last_step": last["last_step"],
            "last_mode_step": last["last_mode_step"],
            "tensors": list(self.tensors),
            "findings": len(self.findings),
            "count": self.count,
            "why": self.first.why,
            "do": self.first.do,
        }


def grouped(findings: Iterable[Finding]) -> tuple[FindingGroup, ...]:
    """The findings in groups, in the order of the first finding of each group."""
    groups: dict[tuple[str, int, str, str, str], list[Finding]] = {}
    for each in sorted(findings, key=lambda finding: (finding.attempt, finding.step)):
        key = (each.rule, each.attempt, each.worker, each.mode, each.do)
        groups.setdefault(key, []).append(each)
    return tuple(FindingGroup(findings=tuple(found)) for found in groups.values())
