"""The profiler report of a run: findings of the rules from TDC201 on, and summaries of time and machines."""

from __future__ import annotations

from tdcore.rules.report.profiler_report import ProfilerReport, profiler_report

__all__ = ["ProfilerReport", "profiler_report"]
