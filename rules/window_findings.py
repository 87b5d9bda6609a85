"""WindowFindings: the findings of one window, in an order that depends only on the rows of the window.

Within a step, findings are in the order of workers by rank, and of execution within each worker. If there are
too many, the first finding of each tensor is kept before the second one. So the findings of the workers of a
run can be found separately and joined. Plain values; the thread of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tdcore.rules.base import Finding
from tdcore.trial.worker_order import worker_order

__all__ = ["WindowFindings", "place_of"]

_Tensor: TypeAlias = "tuple[int, str, str, str]"  # attempt, worker, mode, name
_Place: TypeAlias = "tuple[int, tuple[str, int, str], int, int]"


def place_of(finding: Finding) -> _Place:
    """Sort key of the findings of a window: step, worker, attempt, position in the order of execution."""
    return (finding.step, worker_order(finding.worker), finding.attempt, finding.position)


@dataclass(slots=True)
class WindowFindings:
    """Collects the findings of a window, and keeps at most `limit` of them.

    Attributes:
        limit: Maximum number of findings in `kept`.
        left_out: Findings that are not kept. Their memory is bounded: see `add`.
    """

    limit: int
    left_out: dict[_Tensor, tuple[int, int, int]] = field(default_factory=dict)
    _found: list[Finding] = field(default_factory=list)
    _first_left_out: dict[_Tensor, _Place] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Add a finding. At most twice `limit` findings are in memory."""
        before = self._first_left_out.get(finding.series[:4])
        if before is not None and place_of(finding) >= before:
            self._leave_out(finding)
            return
        self._found.append(finding)
        if len(self._found) >= 2 * max(1, self.limit):
            self._reduce()

    def kept(self) -> list[Finding]:
        """The findings that are kept, in order of attempts, steps, workers and execution."""
        self._reduce()
        return sorted(self._found, key=lambda each: (each.attempt, *place_of(each)))

    def _reduce(self) -> None:
        """Leave out the findings beyond the limit."""
        if len(self._found) <= self.limit:
            return
        self._found.sort(key=place_of)
        by_turn = sorted(zip(_turns(self._found), range(len(self._found)), strict=True))
        for _, at in by_turn[self.limit :]:
            finding = self._found[at]
            tensor, place = finding.series[:4], place_of(finding)
            self._first_left_out[tensor] = min(place, self._first_left_out.get(tensor, place))
            self._leave_out(finding)
        self._found = [self._found[at] for at in sorted(at for _, at in by_turn[: self.limit])]

    def _leave_out(self, finding: Finding) -> None:
        tensor = finding.series[:4]
        number, step, mode_step = self.left_out.get(tensor, (0, finding.step, finding.mode_step))
        newest = max(step, finding.step), max(mode_step, finding.mode_step)
        self.left_out[tensor] = (number + 1, *newest)


def _turns(findings: Iterable[Finding]) -> list[int]:
    """For each finding, the number of earlier findings of its tensor."""
    number: dict[_Tensor, int] = {}
    turns = []
    for finding in findings:
        tensor = finding.series[:4]
        turns.append(number.get(tensor, 0))
        number[tensor] = turns[-1] + 1
    return turns
