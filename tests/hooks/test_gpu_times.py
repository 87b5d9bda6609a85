"""Time of the GPU of each step, with events of a device that the test controls.

tests/gpu/test_step_gpu_times.py has the tests on a real device.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks import phase_signals
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.steps import driver
from tdcore.hooks.pytorch.steps.gpu_times import GpuStepTimer
from tdcore.hooks.step_timer import FORWARD, NullStepTimer
from tests.hooks.timed_training import TimedTraining

MS = 1_000_000


class Device:
    """A device whose work takes the time that the test says, and is done when the test says.

    Attributes:
        late: Number of recorded events that the device has not reached; None: it reaches none.
        captures: Whether a graph is captured. Events must not be used then.
        fails: Name of a call that raises.
    """

    def __init__(self) -> None:
        self.late: int | None = 0
        self.captures = False
        self.fails = ""
        self.created = self.recorded = 0
        self.now = 0.0  # milliseconds

    def work(self, milliseconds: float) -> None:
        self.now += milliseconds

    def create(self) -> Event:
        self.check("create")
        self.created += 1
        return Event(self)

    def record(self, event: Event) -> None:
        self.check("record")
        assert event.reached, "an event is recorded again before the device has reached it"
        self.recorded += 1
        event.number, event.time = self.recorded, self.now

    def capturing(self) -> bool:
        return self.captures

    def check(self, call: str) -> None:
        assert not self.captures, f"{call} during the capture of a graph"
        if self.fails == call:
            raise RuntimeError(f"CUDA error in {call}")


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.number: int | None = None
        self.time = 0.0

    @property
    def reached(self) -> bool:
        late, recorded = self.device.late, self.device.recorded
        return self.number is None or (late is not None and self.number <= recorded - late)

    def query(self) -> bool:
        self.device.check("query")
        return self.reached

    def elapsed_time(self, end: Event) -> float:
        self.device.check("elapsed_time")
        assert self.reached, "the time is read before the device has reached the start"
        assert end.reached, "the time is read before the device has reached the end"
        return end.time - self.time


class Training(TimedTraining):
    """A model on the device, with its hook."""

    def __init__(self, folder: Path, device: Device) -> None:
        self.device = device
        super().__init__(folder)

    def step(self, milliseconds: float = 1.0) -> None:
        """Train one step, whose work takes this time. The work of 50 ms after it is not part of the step."""
        self.forward(milliseconds)
        self.optimizer.step()
        self.device.work(50)

    def forward(self, milliseconds: float = 1.0) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(2, 4)).sum()
        self.device.work(milliseconds)
        loss.backward()

    def evaluate(self, milliseconds: float) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(torch.ones(1, 4))
        self.device.work(milliseconds)
        self.model.train()

    def gpu(self, **chosen: Any) -> list[float | None]:
        """Time of the GPU of each row in milliseconds."""
        return [None if row["gpu_ns"] is None else row["gpu_ns"] / MS for row in self.rows(**chosen)]

    def notes(self) -> list[str]:
        noted = td.create_trial(self.folder).notes()["not_captured"]
        return [note for note in noted if "time of the GPU" in note]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(driver, "cuda_events", lambda module: found)
    return found


@pytest.fixture
def make(tmp_path: Path, device: Device) -> Iterator[Callable[[], Training]]:
    made: list[Training] = []

    def make() -> Training:
        made.append(Training(tmp_path / str(len(made)), device))
        return made[-1]

    yield make
    device.captures, device.fails = False, ""
    for training in made:
        training.hook.close()
    assert not phase_signals._active


@pytest.fixture
def training(make: Callable[[], Training]) -> Training:
    return make()


# Which time -------------------------------------------------------------------------------------------------


def test_a_step_has_the_time_from_its_first_forward_to_its_optimizer(training: Training) -> None:
    for step in range(6):
        training.step(step)
    assert training.gpu() == [0, 1, 2, 3, 4, 5]


def test_accumulated_gradients_are_one_time_with_the_waits_between_them(training: Training) -> None:
    for _ in range(3):
        for _ in range(2):
            with training.hook.phase("data"):
                training.device.work(100)
            training.forward(2)
        training.optimizer.step()
    assert training.gpu() == [104, 104, 104]


def test_the_last_of_several_optimizers_ends_the_time(training: Training) -> None:
    others = [torch.optim.SGD([parameter], lr=0.1) for parameter in training.model.parameters()]
    for _ in range(3):
        training.forward(2)
        for other in others:
            training.device.work(1)
            other.step()
        training.device.work(50)
    assert training.gpu() == [4, 4, 4]


def test_an_evaluation_ends_at_the_next_wait_for_data_or_step(training: Training) -> None:
    training.step()
    for _ in range(2):
        training.evaluate(3)
        with training.hook.phase("data"):
            training.device.work(50)
    training.evaluate(4)
    training.step(2)
    assert training.gpu() == [1, 3, 3, 4, 2]


def test_a_step_that_an_evaluation_interrupts_has_the_time_of_both_parts(training: Training) -> None:
    for _ in range(2):
        training.forward(2)
        training.evaluate(3)
        training.step(5)
    assert training.gpu(mode=td.modes.TRAIN) == [7, 7]
    assert td.create_trial(training.folder).steps_time(mode=td.modes.EVAL)["gpu_ns"].to_pylist() == [
        3 * MS,
        3 * MS,
    ]


def test_a_batch_that_is_loaded_before_the_backward_does_not_end_the_step(training: Training) -> None:
    for _ in range(3):
        loss = training.model(torch.ones(1, 4)).sum()
        with training.hook.phase("data"):
            training.device.work(2)
        loss.backward()
        training.device.work(3)
        training.optimizer.step()
    assert training.gpu() == [5, 5, 5]


def test_steps_that_the_script_counts_begin_with_their_first_forward(training: Training) -> None:
    for _ in range(3):
        training.hook.step()
        with training.hook.phase("data"):
            training.device.work(20)
        training.step(2)
    assert training.gpu() == [2, 2, 2]


def test_other_threads_record_nothing(training: Training) -> None:
    training.step()
    training.forward(2)
    before = training.device.recorded
    phases = [training.hook.phase("data"), training.hook.phase("forward")]

    def enter() -> None:
        for phase in phases:
            with phase:
                training.hook._timer.end_optimizer()

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert training.device.recorded == before
    training.optimizer.step()
    assert training.gpu() == [1, 2]


# When the device is late ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [1, 2, 7, 20, 29])
def test_times_that_the_device_has_measured_later_are_in_their_rows(training: Training, late: int) -> None:
    training.device.late = late
    for step in range(60):
        training.step(step)
    training.device.late = 0
    rows = training.rows()
    assert [row["gpu_ns"] for row in rows] == [step * MS for step in range(60)]
    assert [row["mode_step"] for row in rows] == list(range(60))
    assert training.device.created == 64


def test_a_time_that_is_late_by_more_than_16_steps_is_null(training: Training) -> None:
    training.device.late = 40
    for step in range(60):
        training.step(step)
    training.device.late = 0
    found = training.gpu()
    assert len(found) == 60
    assert found[:20] == [None] * 20
    assert found[-12:] == list(range(48, 60))


def test_a_device_that_never_finishes_does_not_delay_the_rows_or_use_more_events(training: Training) -> None:
    training.device.late = None
    for _ in range(100):
        training.step()
    rows = training.rows()
    assert [row["mode_step"] for row in rows] == list(range(100))
    assert {row["gpu_ns"] for row in rows} == {None}
    assert (training.device.created, training.device.recorded) == (64, 64)


def test_a_device_that_is_reached_again_measures_again(training: Training) -> None:
    training.device.late = None
    for _ in range(40):
        training.step()
    training.device.late = 0
    for _ in range(5):
        training.step(2)
    assert training.gpu()[-5:] == [2] * 5


def test_at_the_end_times_that_are_not_known_are_null(training: Training) -> None:
    training.device.late = 3
    for _ in range(5):
        training.step()
    assert training.gpu() == [1, 1, 1, None, None]


# Graphs, and failing calls ----------------------------------------------------------------------------------


def test_no_event_is_used_while_a_graph_is_captured(training: Training) -> None:
    training.device.late = 1
    for step in range(6):
        training.device.captures = step in (2, 3)
        training.step(step)
    training.device.late = 0
    assert training.gpu() == [0, 1, None, None, 4, 5]


@pytest.mark.parametrize("also_next_step", [False, True])
def test_a_step_that_is_captured_in_part_has_no_time(training: Training, also_next_step: bool) -> None:
    training.step(1)
    training.forward()
    training.device.captures = True
    training.optimizer.step()
    if also_next_step:
        training.step(2)
    training.device.captures = False
    training.step(3)
    assert training.gpu() == [1, None, *[None] * also_next_step, 3]


def test_a_step_whose_end_was_recorded_before_a_graph_has_a_time(training: Training) -> None:
    training.step(1)
    training.device.captures = True
    training.step(2)
    training.device.captures = False
    training.step(3)
    assert training.gpu() == [1, None, 3]


@pytest.mark.parametrize("call", ["create", "record", "query", "elapsed_time"])
def test_a_failing_call_ends_the_measurement_with_one_note(
    make: Callable[[], Training], device: Device, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = make()
    for _ in range(8):
        plain.step()
    plain.hook.close()
    training = make()
    device.late = 3
    if call != "create":
        for _ in range(4):
            training.step()
    device.fails = call
    with caplog.at_level(logging.WARNING, logger="tdcore"):
        for _ in range(8 if call == "create" else 4):
            training.step()
        rows = training.rows()
    assert [row["mode_step"] for row in rows] == list(range(8))
    assert {row["gpu_ns"] for row in rows[4:]} == {None}
    (note,) = training.notes()
    assert note.endswith(f"an event of CUDA failed (RuntimeError): CUDA error in {call}")
    assert [record.getMessage() for record in caplog.records] == [f"tdcore: {note}"]
    assert torch.equal(plain.model.weight, training.model.weight)


class Native(NullStepTimer):
    """A stopwatch that records the calls of expect_gpu() and set_gpu()."""

    def __init__(self) -> None:
        self.row = -1
        self.expected: list[int] = []
        self.set: list[tuple[int, int]] = []

    def begin(self, step: int, mode: int, mode_step: int, phase: int, capture_ns: int) -> None:
        self.row += 1

    def expect_gpu(self) -> int:
        self.expected.append(self.row)
        return self.row

    def set_gpu(self, row: int, nanoseconds: int) -> None:
        self.set.append((row, nanoseconds))


@pytest.mark.parametrize("call", ["record", "query"])
def test_all_rows_that_wait_are_released_when_a_call_fails(call: str) -> None:
    native, device, notes = Native(), Device(), list[str]()
    timer = GpuStepTimer(native, device, notes.append)  # type: ignore[arg-type]
    device.late = 30
    for step in range(6):
        timer.begin(step, 1, step, FORWARD, 0)
        timer.end_optimizer()
    assert native.expected == list(range(6))
    device.fails = call
    for step in range(6, 9):
        timer.begin(step, 1, step, FORWARD, 0)
        timer.end_optimizer()
    timer.finish(0)
    assert native.expected == list(range(6))
    assert sorted(native.set) == [(row, -1) for row in range(6)]
    assert len(notes) == 1


# Hooks ------------------------------------------------------------------------------------------------------


def test_a_model_on_the_cpu_is_measured_by_the_native_stopwatch_alone(
    make: Callable[[], Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    training = make()
    training.step()
    training.step()
    assert not isinstance(training.hook._timer, GpuStepTimer)
    assert training.gpu() == [None, None]


def test_switched_off_times_create_no_events(
    make: Callable[[], Training], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDCORE_STEP_TIMES", "off")
    training = make()
    training.step()
    assert device.created == 0
    assert training.rows() == []


def test_a_second_model_does_not_start_a_second_measurement(training: Training) -> None:
    training.step()
    timer = training.hook._timer
    other = nn.Linear(4, 4)
    training.hook.register_module(other)
    other(torch.ones(1, 4)).sum().backward()
    training.step()
    assert training.hook._timer is timer
    assert training.device.created == 64


def test_a_hook_that_is_deleted_without_close_writes_its_last_step(
    make: Callable[[], Training], device: Device
) -> None:
    training = make()
    for _ in range(3):
        training.step(2)
    session, folder = training.hook._session, training.folder
    training.hook, training.model, training.optimizer = None, None, None  # type: ignore[assignment]
    gc.collect()
    assert not phase_signals._active
    assert session is not None
    session.close()
    training.hook = Hook(folder.parent / "other")
    assert td.create_trial(folder).steps_time()["gpu_ns"].to_pylist() == [2 * MS] * 3


def test_garbage_collections_and_checkpoints_are_still_phases(training: Training, tmp_path: Path) -> None:
    for _ in range(3):
        training.step()
        torch.save({}, tmp_path / "checkpoint")
        gc.collect()
    for row in training.rows()[:2]:
        assert row["checkpoints"] == 1
        assert min(row["gc_ns"], row["forward_ns"], row["backward_ns"], row["optimizer_ns"]) > 0
