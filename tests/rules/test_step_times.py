"""How rules get times of steps: from files that are still written, after a restart, and in step ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore.format.step_times import PHASES
from tdcore.rules import RULES, Finding, InputBound, LowGPUUtilization, Need, Status, Window, run
from tdcore.rules.base import Rule, step_time_columns_of
from tdcore.rules.engine import Engine
from tdcore.rules.loading import load_rule
from tdcore.rules.measures.step_halves import Half, halves
from tdcore.rules.run_source import RunSource
from tdcore.rules.safe_pickle import dump, load
from tdcore.rules.step_times import STEP_VALUES, StepTimes
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run, write_step_times
from tests.rules.timed_steps import even_steps, noisy_steps, with_samples
from tests.trial.writer import RunWriter

RULE = InputBound(min_seconds=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """Records the rows that it gets."""

    code: ClassVar[str] = "T001"
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)
    system_columns: ClassVar[tuple[str, ...]] = ("cpu_percent",)
    got: list[tuple[str, int]] = field(default_factory=list)

    def needs(self) -> Need:
        return Need(what="anything")

    def check(self, window: Window) -> Iterator[Finding]:
        assert len(window) == 0
        if window.samples is not None:
            self.got.extend(("sample", each) for each in window.samples.columns.ints("sample").tolist())
        if window.step_times is not None:
            self.got.extend(("step", each) for each in window.step_times.columns.ints("step").tolist())
        window.judged(1)
        yield from ()


def test_a_rule_gets_each_sample_and_each_row_once_live_and_later(tmp_path: Path) -> None:
    trace = with_samples(even_steps(900), cpu_percent=3.0)
    live, offline = Watches(), Watches()
    writer = RunWriter(tmp_path)
    writer.add("loss", 1.0, step=0, kind="loss")
    writer.flush()
    clock = [0.0]
    engine = Engine(RunSource(tmp_path, clock=lambda: clock[0]), [live])
    for first in range(0, 900, 100):
        write_step_times(tmp_path, trace, first=first, end=first + 100)
        clock[0] += 6.0
        engine.step()
    writer.end()
    engine.step()
    _, verdict = judged_trace_in_a_run(offline, tmp_path / "again", trace)
    assert verdict.status is Status.NO_ISSUE
    assert live.got == [("step", step) for step in range(900)]
    assert sorted(offline.got) == sorted([*live.got, *(("sample", n) for n in range(len(trace.samples)))])


def test_a_run_is_judged_while_it_is_written_and_after_a_restart(tmp_path: Path) -> None:
    trace = even_steps(400, data=60.0)
    writer = RunWriter(tmp_path)
    writer.add("loss", 1.0, step=0, kind="loss")
    writer.flush()
    engine = Engine(source := RunSource(tmp_path), [RULE])
    write_step_times(tmp_path, trace, end=150)
    found = engine.step()
    state, position = load(dump(engine.state())), load(dump(source.position()))
    write_step_times(tmp_path, trace, first=150)
    writer.end()
    engine = Engine(source := RunSource(tmp_path), [RULE])
    source.resume(position)
    engine.restore(state)
    found += engine.step()
    (whole,) = run(tmp_path, [RULE]).verdicts
    assert whole.findings == engine.verdicts(finished=True)[0].findings
    assert whole.occurrences == len(found) > 10
    assert (whole.last_step, whole.last_mode) == (399, "TRAIN")


def test_a_step_with_several_rows_is_one_step() -> None:
    trace = Trace()
    for step in range(3):
        trace.add_step_time(step, forward=1, backward=2, time_ns=10**9 * step)
        trace.add_step_time(100 + step, mode="EVAL", mode_step=step, forward=5)
        trace.add_step_time(step, optimizer=4, data_waits=1, time_ns=10**9 * step + 500)
    memory: dict[Any, Any] = {}
    rows = trace.step_time_table()
    found = [each for at in range(len(rows)) for each in StepTimes(rows.slice(at, 1)).steps(memory)]
    train = [each for each in found if each.place.mode == "TRAIN"]
    assert [each.step.tolist() for each in train] == [[0], [1]]
    assert [each.of("duration_ns").tolist() for each in train] == [[7_000_000], [7_000_000]]
    assert [each.of("data_waits").tolist() for each in train] == [[1], [1]]
    assert [each.time_ns.tolist() for each in train] == [[0], [10**9]]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.booleans())
def test_a_scan_has_the_sums_of_the_newest_half_of_the_steps(pieces: list[int], since_start: bool) -> None:
    number = sum(pieces) + 1
    random = np.random.default_rng(number)
    trace = Trace()
    for step in range(number):
        trace.add_step_time(step, data=float(random.integers(1, 9)), forward=1)
    memory: dict[Any, Any] = {}
    found: list[Half] = []
    table, at = trace.step_time_table(), 0
    for piece in [*pieces, 1]:
        for steps in StepTimes(table.slice(at, piece)).steps(memory):
            options: dict[str, Any] = {"min_steps": 1, "min_seconds": 0.0, "since_start": since_start}
            found += list(halves(memory, steps, **options))
        at += piece
    data = table["data_ns"].to_numpy()
    counts = [each.count for each in found]
    assert counts == [n for n in range(2, number) if n < 16 or n % (1 << (n.bit_length() - 4)) == 0]
    for half in found:
        newer = min(half.count, 8) if half.count < 16 else half.count - half.count // 2
        first = 0 if since_start else half.count - newer
        assert_half(half, data[first : half.count], table["time_ns"].to_numpy()[first], since_start)


def assert_half(half: Half, data: Any, start_ns: int, since_start: bool) -> None:
    assert half.total("data_ns") == data.sum()
    assert half.steps == len(data)
    assert half.start_ns == start_ns
    assert half.step == half.count - 1


def test_a_range_of_steps_restricts_a_rule_about_times_of_steps() -> None:
    trace = even_steps(600, data=60.0)
    whole, _ = judge(RULE, trace)
    ranged = load_rule("input_bound:min_seconds=1,start_step=200,end_step=450")
    found, verdict = judge(ranged, trace)
    assert min(each.step for each in whole) < 200 < max(each.step for each in whole)
    assert found
    assert all(200 + 20 + 64 <= each.step + 1 <= 450 for each in found)
    assert verdict.parameters == {"min_seconds": "1.0", "start_step": "200", "end_step": "450"}


def test_rules_about_samples_only_still_have_no_step_range(tmp_path: Path) -> None:
    rule = LowGPUUtilization()
    from tdcore.rules.step_range import with_step_range

    assert with_step_range(rule, 5) is rule
    assert with_step_range(RULE, 5) is not RULE


# All rules about times of steps.

OF_STEPS = [code for code, rule in RULES.items() if step_time_columns_of(rule)]
TIMES = st.sampled_from([0, 0, 1, 1_000_000, 10**9, 10**15])


def early(code: str) -> Rule:
    """Return a rule that judges after a few steps."""
    counts = {"patience": 1, "min_steps": 2, "min_seconds": 0.0, "n_outliers": 1, "min_share": 0.0}
    rule: Any = RULES[code]
    return cast(Rule, rule(**{name: value for name, value in counts.items() if name in rule.__slots__}))


@pytest.mark.full
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(PHASES, TIMES)), min_size=1, max_size=12))
def test_no_rule_raises_for_any_times(rows: list[dict[str, int]]) -> None:
    trace = Trace()
    for step in range(3 * len(rows)):
        phases: dict[str, Any] = {phase: ns / 1e6 for phase, ns in rows[step % len(rows)].items()}
        for worker in ("worker_0", "worker_1"):
            trace.add_step_time(step, worker=worker, time_ns=step * 10**9, gpu_ns=step, **phases)
    engine = Engine(trace.source(), [early(code) for code in OF_STEPS])
    engine.step()
    for verdict in engine.verdicts(finished=True):
        assert verdict.status is not Status.ERROR, verdict.text
        json.dumps(verdict.to_json(), allow_nan=False)


@pytest.mark.full
def test_the_memory_of_a_rule_does_not_grow_with_the_run() -> None:
    engine = Engine(Trace().source(), [early(code) for code in OF_STEPS])
    sizes = []
    for part in range(12):
        trace = noisy_steps(part, 1000, workers=2)
        for rows in trace.step_times.values():
            for number, row in enumerate(rows):
                row["step"] = row["mode_step"] = row["row"] = 1000 * part + number
                row["time_ns"] += 10**12 * part
        with_samples(trace, cpu_percent=50.0, trainer_processes=3, core_percent=[50.0] * 4)
        engine.source = trace.source()
        engine.step()
        sizes.append([len(dump((run.memory, run.coverage))) for run in engine._runs])
    early_sizes, late = (np.max(part, axis=0) for part in (sizes[3:5], sizes[5:]))
    assert (late <= 1.05 * early_sizes + 500).all()


def test_the_columns_of_a_step_are_those_of_the_format() -> None:
    from tdcore.format.step_times import step_time_schema

    numbers = ["row", "mode_step", "step", "time_ns", "attempt"]
    names = {field.name for field in step_time_schema()} - {"worker", "mode", *numbers}
    assert names == set(STEP_VALUES)
