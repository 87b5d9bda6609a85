"""Lines of the list of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcore.modes import ModeKeys
from tdcore.view.answers.names import name_of

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun

__all__ = ["run_line", "unreadable"]


def run_line(run: OpenRun) -> dict[str, Any]:
    """`RunLine` of the contract."""
    trial = run.trial
    started = [each.started_ns for each in map(trial.attempt_info, trial.attempts) if each is not None]
    return {
        "id": run.id,
        "name": run.name,
        "status": trial.status,
        "error": "",
        "started_ns": min(started, default=0),
        "steps": {
            mode.name: len(trial.steps(mode, show_incomplete_steps=True))
            for mode in trial.modes()
            if mode is not ModeKeys.GLOBAL
        },
        "workers": len(trial.workers()),
        "rows": run.rows,
        "findings": len(run.findings),
    }


def unreadable(id: str, error: Exception) -> dict[str, Any]:  # noqa: A002 -- the name in the contract
    """`RunLine` of the contract for a run that cannot be read."""
    return {
        "id": id,
        "name": name_of(id),
        "status": "unreadable",
        "error": str(error),
        "started_ns": 0,
        "steps": {},
        "workers": 0,
        "rows": 0,
        "findings": 0,
    }
