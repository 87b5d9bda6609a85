"""Answer `runs`: the runs of a folder, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcore.modes import ModeKeys
from tdcore.view.answers.opened import OpenRun, frozen, unreadable

if TYPE_CHECKING:
    from tdcore.errors import TdcoreError
    from tdcore.view.answers.opened import RunSet

__all__ = ["answer", "run_line"]


def answer(runs: RunSet) -> dict[str, Any]:
    """`Runs` of the contract."""
    runs.search()
    return {
        "folder": runs.folder,
        "runs": [_line(name, each) for name, each in runs.readable()],
        "can_write": runs.can_write,
    }


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


def _line(name: str, run: OpenRun | TdcoreError) -> dict[str, Any]:
    if not isinstance(run, OpenRun):
        return unreadable(name, run)
    try:
        with frozen(run):
            return run_line(run)
    except Exception as error:  # another run may still be readable
        return unreadable(name, error)
