"""How rules get system samples: from files that are written, merged or damaged, and after a restart."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore.actions import CaptureMore
from tdcore.errors import ConfigError
from tdcore.format.system import SYSTEM_FILES
from tdcore.rules import RULES, LowGPUUtilization, Status, plan, run
from tdcore.rules.base import Rule, judges_tensors, system_columns_of
from tdcore.rules.engine import Engine
from tdcore.rules.loading import load_rule
from tdcore.rules.run_source import RunSource
from tdcore.rules.safe_pickle import dump
from tdcore.rules.step_range import with_step_range
from tdcore.rules.trace import Trace
from tdcore.sinks import LocalSink, MemorySink
from tdcore.sinks.base import SinkError, SinkKeyError
from tdcore.trial.row_files import NewRows
from tests.rules.system_samples import gpu, trace_of, write_samples
from tests.trial.writer import RunWriter

RULE = LowGPUUtilization(patience=100, window=100)
IDLE: list[dict[str, Any]] = [{"gpus": [gpu(3.0)]}]


def started(place: Path) -> RunWriter:
    """Return a run with one tensor that has not ended."""
    writer = RunWriter(place)
    writer.add("loss", 1.0, step=0, kind="loss")
    writer.flush()
    return writer


def read(reader: NewRows) -> list[int]:
    """Return the numbers of the new samples."""
    return [
        each for table in reader.read("0123", lambda attempt: True) for each in table["sample"].to_pylist()
    ]


def test_samples_are_returned_once_also_after_a_merge(tmp_path: Path) -> None:
    reader = NewRows(SYSTEM_FILES, LocalSink(tmp_path))
    assert read(reader) == []
    first = write_samples(tmp_path, IDLE * 3)
    assert read(reader) == [0, 1, 2]
    assert read(reader) == []
    second = write_samples(tmp_path, IDLE * 2, first=3)
    write_samples(tmp_path, IDLE * 6)  # the merged file, and a sample after both
    first.unlink()
    second.unlink()
    assert read(reader) == [3, 4, 5]
    later = NewRows(SYSTEM_FILES, LocalSink(tmp_path))
    later.resume(reader.position())
    write_samples(tmp_path, IDLE, first=6)
    assert read(later) == [6]


def test_a_large_file_is_returned_in_parts(tmp_path: Path) -> None:
    write_samples(tmp_path, [{"cpu_percent": 1.0}] * 20_000)
    tables = list(NewRows(SYSTEM_FILES, LocalSink(tmp_path)).read("0123", lambda attempt: True))
    assert max(map(len, tables)) <= 8192
    assert sum(map(len, tables)) == 20_000


def test_a_damaged_file_is_left_out_and_named(tmp_path: Path) -> None:
    path = write_samples(tmp_path, IDLE * 3)
    path.write_bytes(path.read_bytes()[:-20])
    write_samples(tmp_path, IDLE, first=3)
    write_samples(tmp_path, IDLE, first=0, worker="worker_1", run_id="another run")
    reader = NewRows(SYSTEM_FILES, LocalSink(tmp_path))
    assert read(reader) == [3]
    assert [each.partition(":")[0] for each in reader.remarks] == ["system samples are left out"] * 2
    assert read(reader) == []


def test_after_an_error_of_the_storage_the_reader_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_samples(tmp_path, IDLE * 3)
    sink = MemorySink()
    sink.put(path.relative_to(tmp_path).as_posix(), [path.read_bytes()])
    reader = NewRows(SYSTEM_FILES, sink)
    with monkeypatch.context() as patch:

        def fails(key: str) -> bytes:
            raise SinkError("unreachable", kind="transient")

        patch.setattr(sink, "get", fails)
        assert read(reader) == []
    assert reader.remarks == ["system samples could not be read: unreachable"]
    assert read(reader) == [0, 1, 2]


def test_files_that_change_during_each_attempt_are_named_and_read_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_samples(tmp_path, IDLE * 3)
    sink = MemorySink()
    sink.put(path.relative_to(tmp_path).as_posix(), [path.read_bytes()])
    reader = NewRows(SYSTEM_FILES, sink)
    missing: list[str] = []
    with monkeypatch.context() as patch:

        def merged_meanwhile(key: str) -> bytes:
            missing.append(key)
            raise SinkKeyError(key)

        patch.setattr(sink, "get", merged_meanwhile)
        assert read(reader) == []
    assert len(missing) == 5
    assert reader.remarks == ["system samples could not be read: their files changed during each attempt"]
    assert read(reader) == [0, 1, 2]


def test_a_run_is_judged_while_it_is_written_and_after_a_restart(tmp_path: Path) -> None:
    place = tmp_path / "run"
    writer = started(place)
    clock = [0.0]

    def engine() -> tuple[Engine, RunSource]:
        source = RunSource(place, clock=lambda: clock[0])
        return Engine(source, [RULE]), source

    first, source = engine()
    write_samples(place, IDLE * 200)
    assert [each.step for each in first.step()] == [120]
    write_samples(place, IDLE * 100, first=200)
    assert first.step() == []  # files are listed every five seconds
    state, position = first.state(), source.position()
    second, source = engine()
    source.resume(position)
    second.restore(state)
    assert [each.step for each in second.step()] == [240]
    assert second.verdicts(finished=False)[0].occurrences == 2
    write_samples(place, IDLE * 100, first=300)
    writer.end()
    assert [each.step for each in second.step()] == [360]  # the end of the run: without a wait
    (whole,) = run(place, [RULE]).verdicts
    assert whole.findings == second.verdicts(finished=True)[0].findings
    assert whole.last_step == 399


def test_a_runner_with_a_state_file_continues(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = started(place)
    write_samples(place, IDLE * 200)
    report = run(place, [RULE], live=True, until_end=True, timeout=timedelta(), state=state)
    assert report.findings[0].count == 1
    write_samples(place, IDLE * 100, first=200)
    writer.end()
    (verdict,) = run(place, [RULE], state=state).verdicts
    assert (verdict.occurrences, verdict.findings[0].last_step) == (2, 240)


def test_only_the_chosen_attempts_are_judged(tmp_path: Path) -> None:
    started(tmp_path).end()
    second = RunWriter(tmp_path, attempt=1)
    second.add("loss", 1.0, step=0, kind="loss")
    second.flush()
    second.end()
    write_samples(tmp_path, IDLE * 200, attempt=0)
    write_samples(tmp_path, IDLE * 200, attempt=1)
    attempts = {
        str(choice): [each.attempt for each in run(tmp_path, [RULE], attempt=choice).findings]
        for choice in (None, 0, "all")
    }
    assert attempts == {"None": [1], "0": [0], "all": [0, 1]}


def test_samples_of_a_run_without_tensors_are_judged(tmp_path: Path) -> None:
    RunWriter(tmp_path).end()
    write_samples(tmp_path, IDLE * 200)
    report = run(tmp_path, [RULE])
    assert report.verdicts[0].status is Status.ISSUE
    assert list((tmp_path / "findings").iterdir())


def test_the_number_of_a_sample_is_not_taken_for_a_step_with_an_epoch() -> None:
    source = trace_of(IDLE * 200).source()
    source.epoch = lambda attempt, worker, step: 7  # type: ignore[method-assign]
    (finding,) = Engine(source, [RULE]).step()
    assert (finding.at, finding.epoch, finding.to_json()["mode"]) == ("sample 120", None, "SYSTEM")


def test_a_range_of_steps_does_not_restrict_a_rule_about_samples(tmp_path: Path) -> None:
    started(tmp_path).end()
    write_samples(tmp_path, IDLE * 300)
    assert with_step_range(RULE, 500) is RULE
    assert len(run(tmp_path, [RULE], start_step=500).findings) == 1
    (verdict,) = run(tmp_path, ["low_gpu_utilization:patience=100,each=true"]).verdicts
    assert verdict.finding_count == 2
    with pytest.raises(ConfigError, match="which have no steps"):
        load_rule("low_gpu_utilization:start_step=5")


def test_findings_about_samples_request_no_tensor_of_that_name(tmp_path: Path) -> None:
    started(tmp_path)
    write_samples(tmp_path, IDLE * 200)
    report = run(tmp_path, [RULE], actions=[CaptureMore(steps=2)])
    assert any("no tensor" in each for each in report.problems)
    report = run(tmp_path, [RULE], actions=[CaptureMore(tensors=["loss"], steps=2)])
    assert report.problems == ()


def test_a_hook_captures_nothing_for_rules_about_samples_and_times_of_steps() -> None:
    assert plan([rule() for rule in RULES.values() if not judges_tensors(rule)]) == ()


# All rules about samples.

NUMBERS = st.sampled_from([None, 0, 1, 5, 50, 99, 100, 101, -1, 1 << 40, (1 << 63) - 1])
SHARES = st.sampled_from([None, 0.0, 3.0, 95.0, 100.0, -1.0, float("nan"), float("inf"), 3e38])
GPUS = st.fixed_dictionaries(
    {
        "index": st.sampled_from([0, 1, 1, 7, None]),
        "utilization_percent": SHARES,
        "memory_total": NUMBERS,
        "memory_used": NUMBERS,
        "temperature_celsius": SHARES,
        "sm_clock_mhz": st.sampled_from([None, 0, 1755]),
        "throttle_reasons": st.sampled_from([None, 0, 0x48, 0x1FF, -1, (1 << 63) - 1]),
    }
)
ROWS = st.fixed_dictionaries(
    {
        "trainer_memory": NUMBERS,
        "cpu_percent": SHARES,
        "iowait_percent": SHARES,
        "core_percent": st.none() | st.lists(SHARES, max_size=3),
        "core_iowait_percent": st.none() | st.lists(SHARES, max_size=3),
        "memory_total": NUMBERS,
        "memory_available": NUMBERS,
        "memory_limit": NUMBERS,
        "memory_limit_used": NUMBERS,
        "gpus": st.none() | st.lists(GPUS, max_size=3),
    }
)


def early(code: str) -> Rule:
    """Return a rule that judges after three samples, and every second."""
    counts = {"patience": 3, "window": 3, "min_points": 3, "scan_interval_us": 1_000_000}
    rule: Any = RULES[code]
    return cast(Rule, rule(**{name: value for name, value in counts.items() if name in rule.__slots__}))


OF_SAMPLES = [code for code, rule in RULES.items() if system_columns_of(rule)]


@pytest.mark.full
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.lists(ROWS, min_size=1, max_size=8), st.integers(1, 12))
def test_no_rule_raises_for_any_samples(rows: list[dict[str, Any]], repeats: int) -> None:
    trace = trace_of(rows * repeats)
    engine = Engine(trace.source(), [early(code) for code in OF_SAMPLES])
    engine.step()
    for verdict in engine.verdicts(finished=True):
        assert verdict.status is not Status.ERROR, verdict.text
        json.dumps(verdict.to_json(), allow_nan=False)


@pytest.mark.full
def test_the_memory_of_a_rule_does_not_grow_with_the_run() -> None:
    engine = Engine(Trace().source(), [early(code) for code in OF_SAMPLES])
    random = np.random.default_rng(0)
    sizes = []
    trace = Trace()
    for _ in range(40):
        trace.samples = []
        for number in range(300):
            used = [float(each) for each in random.integers(0, 100, 2)]
            fields = {"memory_used": number << 20, "memory_total": 80 << 30, "throttle_reasons": number % 256}
            gpus = [gpu(each, index=at, **fields) for at, each in enumerate(used)]
            trace.add_sample(
                trainer_memory=number << 20, cpu_percent=used[0], core_percent=used, iowait_percent=used[1],
                core_iowait_percent=used, memory_total=1 << 40, memory_available=1 << 40, gpus=gpus,
            )  # fmt: skip
        engine.source = trace.source()
        engine.step()
        sizes.append([len(dump((run.memory, run.coverage))) for run in engine._runs])
    early_sizes, late = (np.max(part, axis=0) for part in (sizes[5:10], sizes[10:]))
    assert (late <= 1.03 * early_sizes + 200).all()
