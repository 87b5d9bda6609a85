"""Scope: mode, worker, steps and columns of a request, with useful defaults. Plain values; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["Scope", "preferred"]

ALL_WORKERS = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Mode, worker, steps and columns of a request about some tensors.

    Attributes:
        mode, modes: Name of the mode, and possible modes; "TRAIN" if nothing was saved.
        worker, workers: Name of the worker, "" for all together, and possible workers.
        steps: First and last step, both included; None for no limit.
        columns: Maximum number of pixel columns.
    """

    mode: str
    modes: list[str]
    worker: str
    workers: list[str]
    steps: tuple[int | None, int | None]
    columns: int

    @classmethod
    def of(cls, run: OpenRun, names: Sequence[str], parameters: Parameters, *, columns: int) -> Scope:
        """The scope of a request about these tensors. columns: the default."""
        modes, workers = run.catalog.modes_of(names), run.trial.workers()
        return cls(
            mode=parameters.choice("mode", modes) or "TRAIN",
            modes=modes,
            worker=parameters.choice("worker", workers, ALL_WORKERS),
            workers=workers,
            steps=parameters.steps(),
            columns=parameters.columns(columns),
        )


def preferred(possible: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The first wanted text that is possible; None for the first possible text."""
    return next((each for each in wanted if each in possible), None)
