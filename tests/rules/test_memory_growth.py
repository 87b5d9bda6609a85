"""MemoryGrowth: leaks of the trainer and of GPUs, and memory that does not leak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import MemoryGrowth, Status
from tdcore.rules.measures.scans import duration_text
from tdcore.rules.measures.trend import Floor, growth
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_in_a_run, same_in_any_cuts, trace_of
from tests.rules.trainings import judge_run

GIB, MIB = 1 << 30, 1 << 20

TRAINING = """
import sys, time
import torch
import tdcore as td
from tdcore.hooks.pytorch import Hook

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hook = Hook(sys.argv[1], save_config=td.SaveConfig(save_interval=100), include_collections=["losses"])
hook.register_module(model)
hook.register_loss(criterion)
losses, end = [], time.monotonic() + 18
while time.monotonic() < end:
    outputs = model(torch.randn(128, 64))
    loss = criterion(outputs, torch.randint(0, 4, (128,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append((loss, outputs) if sys.argv[2] == "leak" else loss.item())
    losses += [torch.ones(32768)] if sys.argv[2] == "leak" else []
    time.sleep(0.01)
hook.close()
"""


def judge_training(place: Path, how: str) -> Any:
    """Train in another process, with a list of losses that is kept, and judge the run."""
    variables = {**os.environ, "TDCORE_SYSTEM_INTERVAL": "0.1"}
    subprocess.run([sys.executable, "-c", TRAINING, str(place), how], env=variables, check=True, timeout=300)
    rule = MemoryGrowth(patience=30, min_points=60, min_bytes=16 * MIB, scan_interval_us=2_000_000)
    return judge_run(rule, place)


@pytest.mark.full
@pytest.mark.proves("TDC213", "fires")
def test_a_training_that_keeps_its_losses_and_outputs_is_found(tmp_path: Path) -> None:
    found, verdict = judge_training(tmp_path, "leak")
    assert verdict.status is Status.ISSUE
    assert {each.numbers["kind"] for each in found} == {"host"}
    assert found[0].tensor.endswith(found[0].tensor.partition("/")[0])
    assert found[-1].numbers["bytes_per_second_low"] > 0.5 * MIB
    assert 0 < found[-1].numbers["seconds_to_limit"] < 1e8
    assert "append loss.item()" in found[0].do


@pytest.mark.full
@pytest.mark.proves("TDC213", "quiet")
def test_the_same_training_that_keeps_numbers_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_training(tmp_path, "numbers")
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged >= 2


def host(memory: list[float], **more: Any) -> list[dict[str, Any]]:
    """Return samples of a trainer with this memory in bytes."""
    machine = {"memory_total": 64 * GIB, "memory_available": 32 * GIB}
    return [{"trainer_memory": int(each), **machine, **more} for each in memory]


def test_the_time_until_the_limit_is_that_of_the_container_if_it_is_tighter() -> None:
    rows = host([4 * GIB + number * MIB for number in range(601)], memory_limit=8 * GIB)
    for number, row in enumerate(rows):
        row["memory_limit_used"] = 5 * GIB + number * MIB
    (finding,) = judge(MemoryGrowth(min_growth=1), trace_of(rows))[0][-1:]
    assert finding.numbers["bytes_per_second"] == pytest.approx(2 * MIB)
    assert finding.numbers["limit_bytes"] == 8 * GIB
    assert finding.numbers["seconds_to_limit"] == pytest.approx((3 * GIB - 600 * MIB) / (2 * MIB))
    assert "the limit of 8,192 MiB is reached in 21 min, at 2023-11-14 22:" in finding.why
    assert "grows by 7,200 MiB per hour (99% interval 7,200 to 7,200)" in finding.why


def test_the_time_until_the_limit_is_that_of_the_sample_whenever_the_run_is_judged() -> None:
    rows = host([4 * GIB + number * 2 * MIB for number in range(1201)])
    for number, row in enumerate(rows):
        row["memory_available"] = 32 * GIB - number * 2 * MIB
    found = same_in_any_cuts(MemoryGrowth(), trace_of(rows))
    for each in found:
        left = 32 * GIB - each.step * 2 * MIB
        assert each.numbers["seconds_to_limit"] == pytest.approx(left / (4 * MIB))


def test_a_confidence_is_shown_with_all_its_digits() -> None:
    rows = host([4 * GIB + number * MIB for number in range(601)])
    (finding,) = judge(MemoryGrowth(min_growth=1, confidence=0.999), trace_of(rows))[0][-1:]
    assert "99.9% interval" in finding.why


def test_a_limit_that_is_not_known_is_not_given() -> None:
    rows = [{"trainer_memory": GIB + number * MIB} for number in range(601)]
    (finding,) = judge(MemoryGrowth(), trace_of(rows))[0][-1:]
    assert finding.why.endswith("the limit is not known")
    assert finding.to_json()["numbers"]["seconds_to_limit"] == "inf"  # type: ignore[index]


@pytest.mark.proves("TDC213", "fires")
def test_a_gpu_whose_memory_grows_is_found(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "trainer_memory": GIB,
            "gpus": [
                gpu(index=0, memory_used=20 * GIB, memory_total=80 * GIB),
                gpu(index=1, memory_used=20 * GIB + number * 20 * MIB, memory_total=80 * GIB),
            ],
        }
        for number in range(601)
    ]
    found, _ = judged_in_a_run(MemoryGrowth(), tmp_path, rows)
    assert {(each.tensor, each.numbers["kind"]) for each in found} == {("node-1/gpu1", "gpu")}
    assert found[-1].numbers["seconds_to_limit"] == pytest.approx((60 * GIB - 12000 * MIB) / (40 * MIB))


@pytest.mark.proves("TDC213", "quiet")
def test_a_step_a_plateau_and_garbage_stay_quiet(tmp_path: Path) -> None:
    numbers = np.arange(1201)
    shapes = {
        "step": np.where(numbers > 900, 3 * GIB, 2 * GIB),
        "plateau": 2 * GIB + GIB * np.minimum(numbers / 400, 1),
        "garbage": 2 * GIB + (numbers % 40) * 20 * MIB,
        "peaks": 2 * GIB + (numbers % 100 > 50) * numbers * MIB,
    }
    for name, memory in shapes.items():
        found, verdict = judged_in_a_run(MemoryGrowth(), tmp_path / name, host(memory.tolist()))
        assert not [each for each in found if each.step == 1200], name
        assert verdict.judged > 5


def test_memory_that_wanders_is_rarely_taken_for_a_leak() -> None:
    random = np.random.default_rng(0)
    fired = 0
    for _ in range(60):
        around = 0.0
        memory = []
        for noise in random.normal(size=1201):
            around = 0.97 * around + noise  # returns to its mean within 30 samples
            memory.append(4 * GIB + 50 * MIB * around)
        fired += bool(judge(MemoryGrowth(), trace_of(host(memory)))[0])
    assert fired <= 1


@pytest.mark.proves("TDC213", "not evaluable")
def test_a_run_without_samples_of_the_trainer_or_with_few_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_in_a_run(MemoryGrowth(), tmp_path / "a", [{"cpu_percent": 3.0}] * 9)
    assert "the run has no values of `trainer_memory`" in verdict.text
    _, verdict = judged_in_a_run(MemoryGrowth(), tmp_path / "b", host([GIB] * 300))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "has 300 system samples. The rule needs more than 480 system samples" in verdict.text


@pytest.mark.proves("TDC213", "boundary")
def test_growth_below_its_limits_stays_quiet_and_above_fires() -> None:
    rows = host([10 * GIB + number * MIB for number in range(1201)])
    grown = judge(MemoryGrowth(min_growth=0), trace_of(rows))[0][-1].numbers
    percent = 100 * (grown["bytes"] - grown["bytes_at_start"]) / grown["bytes_at_start"]  # type: ignore[operator]
    size = int(grown["bytes"] - grown["bytes_at_start"])  # type: ignore[operator]

    def last_fires(**limits: Any) -> bool:
        return any(each.step == 1200 for each in judge(MemoryGrowth(**limits), trace_of(rows))[0])

    assert last_fires(min_growth=0.999 * percent)
    assert not last_fires(min_growth=1.001 * percent)
    assert last_fires(min_growth=0, min_bytes=size - MIB)
    assert not last_fires(min_growth=0, min_bytes=size + MIB)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2, 2.0]), st.integers(1, 40))
def test_pieces_do_not_change_the_findings(seed: int, slope: float, patience: int) -> None:
    random = np.random.default_rng(seed)
    memory = GIB + slope * MIB * np.arange(400) + 3 * MIB * random.random(400)
    rule = MemoryGrowth(
        patience=patience, min_points=50, min_bytes=MIB, min_growth=0, scan_interval_us=20_000_000
    )
    same_in_any_cuts(rule, trace_of(host(memory.tolist())), seeds=2)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(1, 5))
def test_the_floor_does_not_depend_on_the_pieces(times: list[float], pieces: int) -> None:
    seconds = np.sort(np.array(times))
    values = np.random.default_rng(0).random(seconds.size)
    whole, cut = Floor(), Floor()
    whole.add(seconds, values)
    for part in np.array_split(np.arange(seconds.size), pieces):
        cut.add(seconds[part], values[part])
    assert whole.width == cut.width
    assert np.array_equal(whole.bins, cut.bins)
    assert whole.bins.min() == values.min()


@given(st.floats(0.01, 1e6), st.integers(0, 1000))
def test_the_interval_contains_the_slope_of_a_noisy_line(slope: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    floor = Floor()
    seconds = np.arange(0, 100, 0.25)
    floor.add(seconds, slope * (seconds + random.normal(size=seconds.size)))
    found = growth(floor, 0.9999)
    assert found is not None
    assert found.low <= slope <= found.high
    assert found.low <= found.slope <= found.high


def test_durations_have_the_unit_that_fits() -> None:
    texts = [duration_text(each) for each in (5, 45, 600, 12_600, 1_036_800)]
    assert texts == ["5.0 s", "45 s", "10 min", "3.5 h", "12 days"]


@pytest.mark.parametrize(
    "parameters",
    [{"min_growth": -1}, {"min_bytes": -1}, {"confidence": 1.0}, {"confidence": 0.5}, {"patience": 0}],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MemoryGrowth(**parameters)
