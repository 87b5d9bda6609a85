"""No tool."""

from __future__ import annotations

from benchmarks.slowdown.tools.base import Job, Tool


def make(job: Job) -> Tool:
    """A tool that does nothing."""
    return Tool(job)
