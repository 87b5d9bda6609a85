"""Answer `runs`: the runs of a folder, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tdcore.modes import ModeKeys
from tdcore.view.answers.opened import OpenRun, frozen

__all__ = ["list_runs", "run_line", "unreadable"]


def list_runs(
    folder: str, runs: Iterable[tuple[str, OpenRun | Exception]], *, can_write: bool
) -> dict[str, Any]:
    """`Runs` of the contract.

    Args:
        folder: The folder, for people.
        runs: Ids, with the run or the error why it cannot be read.
        can_write: Whether pages may write requests to the runs.
    """
    return {"folder": folder, "runs": [_line(name, each) for name, each in runs], "can_write": can_write}


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
        "name": id,
        "status": "unreadable",
        "error": str(error),
        "started_ns": 0,
        "steps": {},
        "workers": 0,
        "rows": 0,
        "findings": 0,
    }


def _line(name: str, run: OpenRun | Exception) -> dict[str, Any]:
    if not isinstance(run, OpenRun):
        return unreadable(name, run)
    try:
        with frozen(run):
            return run_line(run)
    except Exception as error:  # another run may still be readable
        return unreadable(name, error)
