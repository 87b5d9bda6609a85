"""Live judging of a training whose tensors arrive on two paths: from the host, and later from a device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.rules.run_source import RunSource
from tests import _sim
from tests.simulating import RING, InterfaceArray, numbers
from tests.waiting import PATIENCE_SECONDS


class Training:
    """A hook on a simulated device, and a source that follows its run with a stopped clock."""

    def __init__(self, place: Path, *, save_interval: int = 1) -> None:
        save = td.SaveConfig(save_interval=save_interval)
        self.hook = Hook(place, ring=RING, flusher="thread", save_config=save)
        self.device = _sim.simulate_device(self.hook._ring, 0)
        self.hook._ring.prepare_device(0)
        self.source = RunSource(place, clock=lambda: 0.0)

    def step(self, *, device: bool = True) -> None:
        """Run one step, with a number of the host and a tensor on the device."""
        self.hook.step()
        self.hook.save_scalar("host", 1.0)
        if device:
            self.hook.save_tensor("device", InterfaceArray(numbers()))

    def looks(self, until: Callable[[], bool]) -> list[Counter[int]]:
        """Return the non-empty polls, as numbers of rows by step; the last poll is after `until`."""
        found: list[Counter[int]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            last = until()
            table = self.source.next(["step"]).table
            found += [Counter(table.column("step").to_pylist())] if table.num_rows else []
            if last:
                return found
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def written(self, rows: int) -> Callable[[], bool]:
        """Return a function that returns whether the run contains this many rows."""
        return lambda: bool(self.hook._ring.progress()["rows"] >= rows)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "run")
    yield made
    made.device.resume()
    made.hook.close()


def test_no_step_is_judged_in_halves_while_a_device_is_behind(training: Training) -> None:
    training.device.pause()
    for _ in range(4):
        training.step()
    assert training.looks(training.written(4)) == []
    training.device.resume()
    looks = training.looks(training.written(8))
    training.step()
    looks += training.looks(training.written(10))
    assert all(rows == 2 for look in looks for rows in look.values())
    assert sorted(step for look in looks for step in look) == [0, 1, 2, 3]


def test_steps_without_a_devices_tensors_do_not_end_those_before_them(training: Training) -> None:
    training.device.pause()
    training.step()
    for _ in range(3):
        training.step(device=False)
    assert training.looks(training.written(4)) == []
    training.device.resume()
    training.step(device=False)
    looks = training.looks(training.written(6))
    assert sum(looks, Counter()) == Counter({0: 2, 1: 1, 2: 1, 3: 1})
    assert all(look[0] in (0, 2) for look in looks)


def test_numbers_of_steps_that_are_not_saved_are_told_of_too(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", save_interval=100)
    for _ in range(4):
        training.step(device=False)
    looks = training.looks(training.written(4))
    assert sum(looks, Counter()) == Counter({0: 1, 1: 1, 2: 1})
    training.hook.close()
    assert training.looks(lambda: True) == [Counter({3: 1})]


def test_a_mark_that_found_no_room_is_given_again(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    marks: list[int] = []
    ring = training.hook._ring

    class FullRing:
        """A ring without room for marks while it is full."""

        def __getattr__(self, name: str) -> object:
            return getattr(ring, name)

        def mark_step_end(self, step: int) -> bool:
            """Like Ring.mark_step_end."""
            marks.append(step)
            return not full and ring.mark_step_end(step)

    monkeypatch.setattr(training.hook, "_ring", FullRing())
    training.step()
    training.step()
    full = False
    training.step()
    training.step()
    assert marks == [-1, 0, 1, 2]
    looks = training.looks(training.written(8))
    assert sum(looks, Counter()) == Counter({0: 2, 1: 2, 2: 2})
