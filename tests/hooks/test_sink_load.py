"""The warning that a disk or bucket cannot keep up: at simulated rates, and in trainings on a slow disk."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.hooks import sink_load
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.sink_advice import Shortage, Traffic
from tdcore.hooks.sink_load import Load, SinkLoad
from tdcore.sinks.base import Buffer
from tdcore.sinks.local import LocalSink
from tdcore.trial.run_notes import note_lines

MB = 1_000_000
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


class Machine:
    """A training that saves `size` bytes every `interval` steps of `seconds`, a ring, and a sink with a rate.

    A capture waits until the ring has room ("block") or drops the rest ("drop").
    """

    def __init__(
        self,
        *,
        size: int,
        interval: int,
        seconds: float,
        rate: float,
        ring: int,
        drop: bool = False,
        late: float = 0.0,
        worker: str = "",
    ) -> None:
        self.now = self.busy = self.waited = 0.0
        self.stored = self.refused = self.written = self.step = 0
        self.size, self.interval, self.seconds, self.rate, self.ring = size, interval, seconds, rate, ring
        self.drop, self.late = drop, late  # late: the sink writes nothing before this time
        self.sizes: list[int] = []
        self.warnings: list[str] = []
        self.load = SinkLoad(
            self.totals,
            place="runs/demo",
            worker=worker,
            slots=16384,
            measured=self.sizes.append,
            report=self.warnings.append,
            clock=lambda: self.now,
        )

    def totals(self) -> tuple[int, ...]:
        return Load(
            stored=self.stored,
            refused=self.refused,
            written=self.written,
            stored_rows=10 * self.step,
            written_rows=10 * self.step,
            waited=int(self.waited * 1e9),
            busy=int(self.busy * 1e9),
        )

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        usable = min(seconds, max(0.0, self.now - self.late))
        written = min(self.stored - self.written, int(usable * self.rate))
        self.busy += written / self.rate
        self.written += written

    def save(self) -> None:
        over = self.stored - self.written + self.size - self.ring
        if over > 0 and not self.drop:
            wait = max(0.0, self.late - self.now) + over / self.rate
            self.pass_time(wait)
            self.waited += wait
            over = 0
        over = max(over, 0)
        self.refused += over
        self.stored += self.size - over

    def train(self, saved_steps: int) -> list[str]:
        for _ in range(saved_steps):
            self.load.begin_saved_step(self.step)
            self.save()
            self.step += self.interval
            self.pass_time(self.interval * self.seconds)
        return self.warnings


SIZES = st.integers(10 * MB, 40_000 * MB)
INTERVALS = st.integers(1, 500)
SECONDS = st.floats(0.05, 5)


@settings(deadline=None)
@given(SIZES, INTERVALS, SECONDS, st.floats(1.05, 100), st.booleans(), st.floats(0, 30))
def test_a_sink_that_keeps_up_is_never_reported(
    size: int, interval: int, seconds: float, margin: float, drop: bool, late: float
) -> None:
    rate = margin * size / (interval * seconds)
    machine = Machine(
        size=size,
        interval=interval,
        seconds=seconds,
        rate=rate,
        ring=2 * size,
        drop=drop,
        late=min(late, 3 * interval * seconds),
    )
    assert machine.train(40) == []
    assert machine.sizes == [size]


@settings(deadline=None)
@given(SIZES, INTERVALS, SECONDS, st.floats(0.02, 0.8), st.floats(0.3, 3), st.booleans())
def test_a_sink_that_is_too_slow_is_reported_once_and_the_proposed_interval_fits(
    size: int, interval: int, seconds: float, slow: float, ring: float, drop: bool
) -> None:
    options: dict[str, Any] = {
        "size": size,
        "seconds": seconds,
        "rate": slow * size / (interval * seconds),
        "ring": int(ring * size),
        "drop": drop,
    }
    (message,) = Machine(interval=interval, **options).train(max(40, int(60 / interval / seconds)))
    proposed = re.search(r"save_interval=(\d+) would fit", message)
    assert proposed is not None
    assert interval < int(proposed[1]) <= interval * 2 / slow / 0.8 + 1
    options["ring"] = 2 * size
    assert Machine(interval=int(proposed[1]), **options).train(40) == []


@settings(deadline=None)
@given(SIZES, st.integers(5, 500), SECONDS, st.booleans())
def test_a_ring_that_does_not_hold_a_saved_step_is_named(
    size: int, interval: int, seconds: float, drop: bool
) -> None:
    options: dict[str, Any] = {
        "size": size,
        "interval": interval,
        "seconds": seconds,
        "rate": 1.5 * size / (interval * seconds),
        "drop": drop,
    }
    (message,) = Machine(ring=size // 4, **options).train(max(40, int(60 / interval / seconds)))
    proposed = re.search(r"ring_bytes=(\d+) \* 2\*\*20\) would hold", message)
    assert proposed is not None
    assert Machine(ring=int(proposed[1]) << 20, **options).train(40) == []


def warnings_of(seconds: Sequence[float], waits: Sequence[float]) -> list[str]:
    """The warnings of saved steps of 10 MB with these durations and waits, at a sink of 100 MB/s."""
    now, waited, step, found = 0.0, 0.0, 0, list[str]()
    load = SinkLoad(
        lambda: Load(
            stored=10 * MB * step, written=10 * MB * step, waited=int(waited * 1e9), busy=int(0.1e9 * step)
        ),
        place="runs/demo",
        slots=16384,
        measured=lambda size: None,
        report=found.append,
        clock=lambda: now,
    )
    for duration, wait in zip(seconds, waits, strict=True):
        load.begin_saved_step(step)
        now, waited, step = now + duration, waited + wait, step + 1
    return found


@pytest.mark.parametrize("outage", [3, 15, 29])
def test_one_outage_and_the_short_waits_after_it_are_not_reported(outage: float) -> None:
    waits = [0.0] * 10 + [outage] + [0.01] * 5 + [0.0] * 20
    assert warnings_of([1 + wait for wait in waits], waits) == []


def test_waits_of_several_threads_at_once_give_no_invented_rate() -> None:
    (message,) = warnings_of([2.0] * 20, [3.5] * 20)  # two threads
    assert "threads waited" in message
    assert "100.0 MB/s" in message  # the rate of the sink
    assert message.count("/s") == 1


def test_a_saved_step_that_no_ring_holds_gets_no_setting_that_is_invalid() -> None:
    machine = Machine(size=200_000 * MB, interval=50, seconds=5, rate=2e9, ring=1 << 30)
    (message,) = machine.train(40)
    assert "No ring holds a saved step of this size" in message


def test_the_example_of_the_documentation_is_what_the_warning_says() -> None:
    machine = Machine(size=4100 * MB, interval=10, seconds=1.2, rate=120e6, ring=1 << 30)
    (message,) = machine.train(40)
    assert " ".join(PAGE.read_text().split()).count(f"tdcore: {message}") == 1


def test_a_training_that_saves_only_statistics_and_waits_for_slots_is_reported_in_tensors() -> None:
    now = rows = 0.0
    found: list[str] = []
    load = SinkLoad(
        lambda: Load(
            stored_rows=int(rows), written_rows=int(rows), waited=int(0.3e9 * now), busy=int(0.9e9 * now)
        ),
        place="runs/demo",
        slots=16384,
        measured=lambda size: None,
        report=found.append,
        clock=lambda: now,
    )
    for step in range(200):
        load.begin_saved_step(step)
        now, rows = now + 0.1, rows + 10_000
    (message,) = found
    assert "statistics of 10,000 tensors are requested every step (0.07 s), 142,857 tensors/s" in message
    assert "it takes 111,111 tensors/s; the training waited 3.1 s of 10 s" in message
    assert message.endswith("save_interval=2 would fit. Or save fewer tensors (include_regex)")


def test_one_tensor_is_in_the_singular() -> None:
    traffic = Traffic(requested=4, payload=0, rows=4, rate=1.0, in_rows=True)
    shortage = Shortage(seconds=40, saved=4, interval=5, waited=0, dropped=2, spooled=0)
    message = shortage.message(traffic, place="runs/demo", worker="", slots=1024)
    assert "statistics of 1 tensor are requested every 5 steps" in message
    assert "it takes 1 tensor/s; 2 tensors of 4 tensors were dropped" in message


def test_a_worker_of_several_is_named_with_its_own_numbers() -> None:
    machine = Machine(size=4100 * MB, interval=10, seconds=1.2, rate=120e6, ring=1 << 30, worker="worker_1")
    (message,) = machine.train(40)
    assert message.startswith("runs/demo cannot keep up with worker_1: values of 4.1 GB are requested")
    assert "it takes 120.0 MB/s from worker_1, while other workers write too" in message


class SlowDisk(LocalSink):
    """A local disk that writes 5 MB/s."""

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        time.sleep(sum(memoryview(part).nbytes for part in parts) / 5e6)
        super().put(key, parts)


@pytest.mark.parametrize(
    ("when_full", "effect"), [("block", "the training waited"), ("drop", "were dropped")]
)
@pytest.mark.parametrize("slow", [True, False])
def test_a_training_on_a_slow_disk_gets_one_warning_and_a_note(
    slow: bool,
    when_full: Any,
    effect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sink_load, "_MIN_SECONDS", 0.6)
    monkeypatch.setattr(sink_load, "_SAMPLE_SECONDS", 0.05)
    if slow:
        monkeypatch.setattr("tdcore.sinks.LocalSink", SlowDisk)
    width = 500 if slow else 50  # 1 MB, or 10 kB
    model = torch.nn.Linear(width, width, bias=False)
    hook = Hook(
        tmp_path / "run",
        save_config=td.SaveConfig(save_interval=2),
        include_collections=["weights"],
        ring=td.RingConfig(ring_bytes=1 << 21, slots=64, when_full=when_full),
        flusher="thread",
    )
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, "tdcore"):
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.ones(1, width)).sum().backward()
            optimizer.step()
            time.sleep(0.03)
        hook.close()
    messages = [each.getMessage() for each in caplog.records if "cannot keep up" in each.getMessage()]
    assert len(messages) == slow
    notes = td.create_trial(tmp_path / "run").notes()
    assert [f"tdcore: {note}" for note in notes.get("slow_sink", [])] == messages
    for message in messages:
        assert effect in message
        assert "values of 1.0 MB are requested every 2 steps" in message
        assert list(note_lines(notes)) == [message.replace("tdcore: ", "slow sink: ")]
