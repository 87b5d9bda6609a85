"""Shared parts of the tests of actions."""

from __future__ import annotations

from tdcore.rules import Finding
from tdcore.rules.table_source import TableSource
from tdcore.rules.trace import Trace


class Running(TableSource):
    """A source whose attempts below `ended` have ended."""

    def __init__(self, ended: int = 0, where: str = "runs/demo") -> None:
        super().__init__(Trace().table(), where=where)
        self._ended = ended

    def attempt_ended(self, attempt: int) -> bool:
        return attempt < self._ended


def finding(
    attempt: int = 0,
    step: int = 7,
    tensor: str = "gradient/w",
    *,
    rule: str = "VanishingGradient",
    kind: str = "",
    why: str = "too small",
    mode: str = "TRAIN",
) -> Finding:
    return Finding(
        rule=rule, code="TDC101", step=step, mode=mode, mode_step=step, worker="worker_0",
        attempt=attempt, tensor=tensor, numbers={"kind": kind} if kind else {}, why=why, do="use ReLU",
    )  # fmt: skip
