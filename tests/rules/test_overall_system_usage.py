"""OverallSystemUsage: the summary of the use of the machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.rules import Finding, Need, OverallSystemUsage, Status, Window
from tdcore.rules.base import Summary
from tdcore.rules.engine import Engine
from tdcore.rules.measures.distribution import STATISTICS, Distribution
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_trace_in_a_run, summary_in_cuts

_PERCENTS = (100, 99, 95, 50, 0)
numbers = st.one_of(st.just(0.0), st.floats(1e-6, 1e9))


def sampled(cpu: list[float], **more: Any) -> Trace:
    """Return samples with these percentages of the CPU."""
    trace = Trace()
    for percent in cpu:
        trace.add_sample(cpu_percent=percent, **more)
    return trace


@pytest.mark.proves("TDC210", "summary")
def test_each_machine_has_the_distribution_of_its_values(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    cpu = random.uniform(1, 100, 700)
    used = random.uniform(1, 80, 700)
    trace = Trace()
    for percent, gib in zip(cpu.tolist(), used.tolist(), strict=True):
        trace.add_sample(
            cpu_percent=percent,
            core_percent=[percent / 2, percent],
            seconds=0.5,
            disk_read_bytes=1 << 20,
            memory_total=8 << 30,
            memory_available=2 << 30,
            gpus=[gpu(40.0), gpu(None, index=1, memory_used=int(gib * 2**30), memory_total=80 << 30)],
        )
    trace.add_sample(host="node-0", worker="worker_1", cpu_percent=7.0)
    _, verdict = judged_trace_in_a_run(OverallSystemUsage(), tmp_path, trace)
    assert list(verdict.summary) == ["node-0", "node-1"]
    assert verdict.summary["node-0"] == {"cpu (%)": dict.fromkeys(STATISTICS, 7.0)}
    table = verdict.summary["node-1"]
    wanted = dict(zip(STATISTICS, np.percentile(cpu, _PERCENTS).tolist(), strict=True))
    assert table["cpu (%)"] == pytest.approx(wanted, rel=0.0051)
    assert table["busiest core (%)"] == table["cpu (%)"]
    assert table["memory (%)"]["p50"] == 75.0
    assert table["disk read (MiB/s)"]["min"] == 2.0
    assert table["gpu0 utilization (%)"]["max"] == 40.0
    assert table["gpu1 memory (%)"]["p95"] == pytest.approx(np.percentile(used, 95) / 0.8, rel=0.0051)
    assert not {"network sent (MiB/s)", "gpu1 utilization (%)", "gpu0 memory (%)"} & {*table}


@pytest.mark.proves("TDC210", "quiet")
def test_a_summary_never_fires_and_says_how_many_rows_it_has(tmp_path: Path) -> None:
    found, verdict = judged_trace_in_a_run(OverallSystemUsage(), tmp_path, sampled([100.0] * 400))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.text == "no issue (summary of 400 rows)"


@pytest.mark.proves("TDC210", "not evaluable")
def test_a_run_without_samples_or_without_values_has_no_summary(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(OverallSystemUsage(), tmp_path, Trace())
    assert verdict.text.startswith("not evaluable: the run has no system samples")
    assert verdict.summary == {}
    _, verdict = judge(OverallSystemUsage(), Trace().add_sample())
    assert verdict.text == "not evaluable: the run has no values of `cpu_percent` in its system samples."


@settings(max_examples=20)
@given(st.lists(numbers, min_size=1, max_size=60), st.integers(0, 9))
def test_pieces_and_restarts_do_not_change_the_summary(cpu: list[float], seed: int) -> None:
    trace = sampled(cpu, core_percent=[3.0])
    whole = judge(OverallSystemUsage(), trace)[1].summary
    assert summary_in_cuts(OverallSystemUsage(), trace, seed) == whole


@given(st.lists(st.one_of(numbers, st.just(float("nan"))), max_size=300))
def test_percentiles_are_within_half_a_percent_of_those_of_numpy(values: list[float]) -> None:
    distribution = Distribution()
    distribution.add(np.array(values))
    known = [value for value in values if value == value]
    if not known:
        assert distribution.statistics() == {}
        return
    wanted = np.percentile(known, _PERCENTS)
    got = distribution.statistics()
    assert list(got) == list(STATISTICS)
    np.testing.assert_allclose(list(got.values()), wanted, rtol=0.0051, atol=1e-9)
    assert (got["max"], got["min"]) == (max(known), min(known))


def test_the_summary_of_a_run_that_continues_is_in_the_verdict_so_far() -> None:
    engine = Engine(sampled([5.0, 6.0]).source(), [OverallSystemUsage()])
    engine.step()
    (verdict,) = engine.verdicts(finished=False)
    assert verdict.status is Status.IN_PROGRESS
    assert verdict.summary["node-1"]["cpu (%)"]["max"] == 6.0


class BrokenSummary:
    """A user's summary that raises an exception."""

    code: ClassVar[str] = "MINE1"
    is_summary = True
    system_columns = ("cpu_percent",)

    def needs(self) -> Need:
        return Need(what="system samples")

    def check(self, window: Window) -> Iterator[Finding]:
        window.judged(1)
        return iter(())

    def summary(self, memory: Any) -> Summary:
        raise ValueError("no table")


def test_an_exception_in_a_summary_is_an_error_of_this_rule_only() -> None:
    engine = Engine(sampled([5.0]).source(), [BrokenSummary(), OverallSystemUsage()])
    engine.step()
    broken, other = engine.verdicts(finished=True)
    assert broken.text.startswith("error: ValueError: no table")
    assert other.status is Status.NO_ISSUE
