"""Times of steps in the flusher: which rows reach the run, whatever fails on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore import _core
from tdcore.errors import SinkError
from tdcore.flusher import step_times
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.step_times import StepTimeRecorder
from tdcore.format.layout import FileRange
from tdcore.format.step_times import STEP_TIME_FILES
from tdcore.sinks import MemorySink
from tdcore.trial.row_files import NewRows, read_rows

OPTIONS = FlusherOptions(row_delay=timedelta(seconds=4))
FORWARD = 2


class Failing(MemorySink):
    """A sink that can fail."""

    down = False
    answers = True

    def put(self, key: str, parts: Any) -> None:
        if self.down:
            raise SinkError("down", kind="transient")
        super().put(key, parts)
        if not self.answers:
            raise SinkError("the answer was lost", kind="transient")


class Rig:
    """A trainer's stopwatch, and the recorder of a flusher that writes to `sink`."""

    def __init__(self) -> None:
        self.ring = _core.Ring(data_bytes=1 << 16, slots=16, names_bytes=4096, step_times=True)
        self.timer = _core.StepTimer(self.ring)
        self.sink = Failing()
        self.steps = 0
        self.recorder = self.restarted(continues=False)

    def restarted(self, *, continues: bool = True) -> StepTimeRecorder:
        self.consumer = _core.Consumer(self.ring.fds)
        place = FileRange("worker_0", 0, 0, 0)
        self.recorder = StepTimeRecorder(
            self.consumer, self.sink, place, run_id="", options=OPTIONS, continues=continues
        )
        return self.recorder

    def begin(self, steps: int) -> None:
        """Begin steps; the last one has no row yet."""
        for _ in range(steps):
            self.timer.begin(self.steps, 1, self.steps, FORWARD, 0)
            self.steps += 1

    def stored(self) -> list[int]:
        """Numbers in all files, as the files have them."""
        found = [STEP_TIME_FILES.parse(key) for key in self.sink.objects]
        return sorted(row for each in found if each for row in range(each[1].first, each[1].last + 1))

    def rows(self) -> list[int]:
        table = read_rows(STEP_TIME_FILES, self.sink, "", [0], None)
        assert table["row"].to_pylist() == table["step"].to_pylist()
        numbers: list[int] = table["row"].to_pylist()
        return sorted(numbers)


def test_rows_are_written_after_the_delay_and_once() -> None:
    rig = Rig()
    for now in range(40):
        rig.begin(3)
        rig.recorder.poll(now)
        assert (not rig.sink.objects) == (now < 4)
    rig.recorder.finish(40)
    rig.recorder.merge_all()
    assert list(rig.sink.objects) == ["time/worker_0/0000-000000000000-000000000118.parquet"]
    assert rig.rows() == list(range(119))


def test_short_steps_do_not_fill_the_queue() -> None:
    rig = Rig()
    for now in range(20):  # tenths of a second
        rig.begin(1500)
        rig.recorder.poll(now / 10)
    rig.recorder.finish(2)
    assert rig.rows() == list(range(20 * 1500 - 1))


def test_rows_that_did_not_fit_into_the_queue_are_a_gap() -> None:
    rig = Rig()
    rig.begin(3000)
    rig.recorder.finish(0)
    rig.begin(5)
    rig.recorder.finish(10)
    assert rig.rows() == [*range(2048), *range(2999, 3004)]


def test_the_next_flusher_continues_and_writes_nothing_twice() -> None:
    rig = Rig()
    rig.begin(6)
    rig.recorder.poll(0)
    rig.recorder.poll(10)
    rig.begin(4)
    rig.restarted().finish(20)
    assert rig.rows() == list(range(9))


def test_rows_that_a_killed_flusher_had_written_and_not_released_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    rig.begin(6)
    with monkeypatch.context() as patch:
        patch.setattr(_core.Consumer, "release_step_times", lambda self, count: None)
        rig.recorder.finish(0)
    rig.begin(3)
    rig.restarted().finish(10)
    assert rig.rows() == list(range(8))


def test_a_failing_sink_costs_no_row_until_the_memory_is_full(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_times, "_MAX_WAITING", 5000)
    rig = Rig()
    rig.sink.down = True
    for now in range(4):
        rig.begin(1200)
        rig.recorder.poll(now)
    rig.sink.down = False
    rig.recorder.finish(100)
    assert rig.rows() == list(range(4799))
    rig.sink.down = True
    for now in range(10):
        rig.begin(1200)
        rig.recorder.poll(200 + now)
    rig.recorder.finish(300)
    assert "times of 5000 steps were not written" in capfd.readouterr().err
    rig.sink.down = False
    rig.recorder.finish(400)
    assert rig.rows() == [*range(4799), *range(16799 - 5000, 16799)]


def test_rows_are_stored_once_although_answers_are_lost_and_the_memory_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_times, "_MAX_WAITING", 2500)
    rig = Rig()
    rig.sink.answers = False
    for now in range(0, 80, 10):
        rig.begin(1500)
        rig.recorder.poll(now)
    rig.sink.answers = True
    rig.recorder.finish(100)
    assert rig.stored() == rig.rows() == list(range(499, 8 * 1500 - 1))


def test_files_of_a_merge_without_an_answer_do_not_overlap_with_later_ones() -> None:
    rig = Rig()
    for now in range(0, 300, 10):
        rig.begin(10)
        rig.sink.answers = not 145 < now < 175
        rig.recorder.poll(now)
    rig.recorder.finish(400)
    rig.recorder.merge_all()
    assert rig.stored() == rig.rows() == list(range(299))


def test_rows_that_are_stored_twice_are_returned_once() -> None:
    rig = Rig()
    rig.begin(7)
    for first, last in [(0, 3), (2, 5)]:
        rows = np.frombuffer(rig.consumer.step_times(100), dtype=np.dtype(cast(Any, _core.STEP_TIME_DTYPE)))
        place = FileRange("worker_0", 0, first, last)
        data = rig.recorder._encode(rows[first : last + 1], place)
        rig.sink.put(STEP_TIME_FILES.key("", place), [data])
    assert rig.rows() == list(range(6))
    assert new_rows(NewRows(STEP_TIME_FILES, rig.sink)) == list(range(6))


class SlowSink(Failing):
    """A sink whose writes wait for `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def put(self, key: str, parts: Any) -> None:
        assert self.go_on.wait(60)
        super().put(key, parts)


def test_the_memory_is_limited_while_a_write_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "_MAX_WAITING", 3000)
    rig = Rig()
    rig.sink = sink = SlowSink()
    rig.restarted(continues=False)._writer._remote = True  # writes run in another thread
    rig.begin(500)
    rig.recorder.poll(0)
    rig.recorder.poll(40)  # starts to write rows 0 to 498
    for now in range(10):
        rig.begin(1200)
        rig.recorder.poll(50 + now)
        assert len(rig.recorder._taken) <= 499 + 3000
    sink.go_on.set()
    rig.recorder.finish(100)
    assert rig.rows() == [*range(499), *range(12_499 - 3000, 12_499)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("row", 2**64 - 1),
        ("row", 10**12),
        ("row", 10**12 - 1),
        ("row", 10**9),
        ("time_ns", -1),
        ("phases", 2**61),
        ("mode_step", -3),
    ],
)
def test_impossible_rows_are_dropped_and_reported_once(
    column: str, value: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    real = _core.Consumer.step_times

    def hostile(consumer: _core.Consumer, most: int) -> bytes:
        rows = np.frombuffer(real(consumer, most), dtype=np.dtype(cast(Any, _core.STEP_TIME_DTYPE))).copy()
        rows[column][rows["step"] % 10 == 4] = value
        return bytes(rows.tobytes())

    monkeypatch.setattr(_core.Consumer, "step_times", hostile)
    for now in range(0, 40, 5):
        rig.begin(5)
        rig.recorder.poll(now)
    rig.recorder.finish(50)
    assert rig.rows() == [row for row in range(39) if row % 10 != 4]
    assert rig.consumer.pending_step_times == 0
    assert capfd.readouterr().err.count("have impossible values") == 1


def test_a_write_reads_the_queue_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    reads: list[int] = []
    real = _core.Consumer.step_times

    def counted(consumer: _core.Consumer, most: int) -> bytes:
        reads.append(most)
        return real(consumer, most)

    monkeypatch.setattr(_core.Consumer, "step_times", counted)
    rig.begin(5)
    rig.recorder.poll(0)
    assert not reads
    rig.recorder.poll(40)
    assert len(reads) == 1
    assert rig.rows() == [0, 1, 2, 3]


def test_a_long_gap_is_possible_after_a_long_time_and_for_the_next_flusher() -> None:
    rig = Rig()
    rig.begin(5)
    rig.recorder.poll(0)
    rig.recorder.poll(40)
    assert rig.recorder._highest_possible(40.0) == 3 + 10**7
    assert rig.recorder._highest_possible(1040.0) == 3 + 1001 * 10**7
    assert rig.restarted()._highest_possible(0.0) == 10**12 - 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(1, 3000),
            st.sampled_from(["poll", "write", "restart", "down", "up", "merge", "no answers", "answers"]),
        ),
        max_size=25,
    )
)
def test_in_any_order_of_events_each_row_is_in_the_run_at_most_once_and_in_order(
    events: list[int | str],
) -> None:
    rig, now = Rig(), 0.0
    reader = NewRows(STEP_TIME_FILES, rig.sink)
    followed: list[int] = []
    do: dict[str, Callable[[], object]] = {
        "poll": lambda: rig.recorder.poll(now),
        "write": lambda: rig.recorder.finish(now),
        "restart": rig.restarted,
        "merge": lambda: rig.recorder.merge_all(),
    }
    for event in [*events, "up", "answers", "write"]:
        now += 1
        if isinstance(event, int):
            rig.begin(event)
        elif event in ("down", "up"):
            rig.sink.down = event == "down"
        elif event in ("no answers", "answers"):
            rig.sink.answers = event == "answers"
        else:
            do[event]()
            followed += new_rows(reader)
    rows = rig.rows()
    assert rows == sorted(set(rows))
    assert followed == rows
    assert not rig.steps or rig.consumer.pending_step_times == 0


def new_rows(reader: NewRows) -> list[int]:
    tables: list[pa.Table] = list(reader.read("", lambda attempt: True))
    return [row for table in tables for row in table["row"].to_pylist()]
