"""JoinedEngine: joins the results of the parts of a run in the order of one judgement.

The findings of each batch are added to the rules in the order in which one engine would have found them, and
with the same limits. Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tdcore.rules.base import Finding
from tdcore.rules.engine import Engine
from tdcore.rules.rule_run import RuleRun
from tdcore.rules.spread.task import BatchFindings, Newest, PartResult, RulePart
from tdcore.rules.window_findings import WindowFindings

__all__ = ["JoinedEngine", "must_judge_whole"]


def must_judge_whole(results: Iterable[PartResult], max_findings: int) -> list[str]:
    """Labels of the rules that must judge the whole run in one task, so that the report is the same.

    These are rules that raised an exception, rules with very many findings, and rules that selected rows
    several times in a batch with more than max_findings findings.
    """
    by_rule = _by_rule(results)
    return [label for label, parts in by_rule.items() if _is_incomplete(parts, max_findings)]


def _is_incomplete(parts: Sequence[RulePart], max_findings: int) -> bool:
    if any(part.incomplete for part in parts):
        return True
    numbers: dict[int, int] = {}
    several: set[int] = set()
    for each in (each for part in parts for each in part.batches):
        numbers[each.batch] = numbers.get(each.batch, 0) + len(each.findings) + len(each.unlisted)
        if each.selections > 1:
            several.add(each.batch)
    return any(numbers[batch] > max_findings for batch in several)


def _by_rule(results: Iterable[PartResult]) -> dict[str, list[RulePart]]:
    found: dict[str, list[RulePart]] = {}
    for result in results:
        for label, part in result.rules.items():
            found.setdefault(label, []).append(part)
    return found


class JoinedEngine(Engine):
    """An engine whose rules are judged by other processes. See Engine."""

    def join(self, results: Sequence[PartResult]) -> None:
        """Add the results of all parts; then write findings and pass them to actions, as `step` does."""
        parts = _by_rule(results)
        batches = _by_batch(parts)
        newest = _newest(results)
        by_label = {run.label: run for run in self._runs}
        news: list[Finding] = []
        for batch in sorted(batches):
            for label, run in by_label.items():
                if label in batches[batch]:
                    news += self._add(run, batches[batch][label])
        for label, found in parts.items():
            run = by_label[label]
            state = next((part.state for part in found if part.state is not None), None)
            if state is not None:
                run.restore(state)
                news += run.findings.values()
            else:
                _add_counts(run, found, newest)
        for result in results:
            if result.part.counts:
                self._seen.join(result.seen)
            if result.error:
                for label in result.part.labels:
                    _add_error(by_label[label], f"{result.part} could not be judged: {result.error}")
        self.news = list({finding.key: finding for finding in news}.values())
        self._publish()
        for problem in dict.fromkeys(text for result in results for text in result.problems):
            self._problem(problem)

    def _add(self, run: RuleRun, parts: Sequence[BatchFindings]) -> list[Finding]:
        """Add the findings of one batch; return the new and continued ones."""
        found = WindowFindings(self._max_findings)
        for part in parts:
            for finding in part.findings:
                found.add(finding)
            for tensor, (number, step, mode_step) in part.unlisted.items():
                run.coverage.skip(tensor, step, mode_step, number=number)
        kept = found.kept()
        for tensor, (number, step, mode_step) in found.left_out.items():
            run.coverage.skip(tensor, step, mode_step, number=number)
        return run.add(kept, self.source.epoch, self._max_findings)


def _by_batch(parts: Mapping[str, Sequence[RulePart]]) -> dict[int, dict[str, list[BatchFindings]]]:
    """Batch -> label -> findings of all parts."""
    found: dict[int, dict[str, list[BatchFindings]]] = {}
    for label, of_rule in parts.items():
        for each in (each for part in of_rule for each in part.batches):
            found.setdefault(each.batch, {}).setdefault(label, []).append(each)
    return found


def _newest(results: Iterable[PartResult]) -> Newest | None:
    """The newest row of the run: of the rows of the newest step, the first one."""
    rows = [each.newest for each in results if each.part.counts and each.newest is not None]
    return min(rows, key=lambda each: (-each.step, each.order), default=None)


def _add_counts(run: RuleRun, parts: Iterable[RulePart], newest: Newest | None) -> None:
    """Add the numbers of judged and missing rows, and the newest step."""
    for part in parts:
        run.coverage.judged += part.judged
        for why, rows in part.missing.items():
            run.coverage.missing[why] = run.coverage.missing.get(why, 0) + rows
    if newest is not None:
        run.last_step, run.last_mode, run.last_mode_step = newest.step, newest.mode, newest.mode_step


def _add_error(run: RuleRun, text: str) -> None:
    run.error = f"{run.error}; {text}" if run.error else text
