"""The profiler report of a run as a page: findings of the rules from TDC201 on, and summaries."""

from __future__ import annotations

from tdcore.rules.report.profiler_report import ReportDocument, profiler_report

__all__ = ["ReportDocument", "profiler_report"]
