"""Completeness of live steps: a step is complete only with all its rows, and soon after them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tdcore.format import layout
from tdcore.rules.run_source import RunSource
from tests.trial.writer import RunWriter


class Followed:
    """A run and a source that follows it, with a simulated clock."""

    def __init__(self, place: Path) -> None:
        self.now = 0.0
        self.writer = RunWriter(place)
        self.source = RunSource(place, clock=lambda: self.now)

    def save(self, step: int, *names: str, whole: int | None = None) -> None:
        """Write rows of a step, and a mark that all steps up to `whole` are over."""
        for name in names:
            self.writer.add(name, np.ones(2), step=step)
        if whole is not None:
            self.writer.mark_step_end(whole)
        self.writer.flush()

    def look(self) -> list[tuple[int, str]]:
        table = self.source.next(["step", "name"]).table
        names = [str(name) for name in table.column("name").to_pylist()]
        return list(zip(table.column("step").to_pylist(), names, strict=True))


@pytest.fixture
def run(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "run")


def test_a_row_of_a_later_step_completes_a_step_of_a_worker_that_does_not_tell(run: Followed) -> None:
    run.save(0, "a")
    assert run.look() == []
    run.save(1, "a")
    assert run.look() == [(0, "a")]


def test_a_step_is_complete_at_once_when_the_worker_says_so(run: Followed) -> None:
    run.save(0, "a")
    assert run.look() == []
    run.save(0, whole=0)
    assert run.look() == [(0, "a")]
    run.save(100, "a", "b", whole=100)
    assert run.look() == [(100, "a"), (100, "b")]


def test_rows_of_a_later_step_may_overtake_those_of_a_device(run: Followed) -> None:
    run.save(0, whole=-1)
    run.save(0, "host")
    run.save(1, "host")
    run.save(2, "host")
    assert run.look() == []
    run.save(0, "device", whole=0)
    assert run.look() == [(0, "host"), (0, "device")]
    run.save(1, "device")
    assert run.look() == []
    run.save(2, "device", whole=1)
    assert run.look() == [(1, "host"), (1, "device")]
    run.save(2, whole=2)
    assert run.look() == [(2, "host"), (2, "device")]


def test_tickets_without_rows_that_are_no_mark_say_nothing(run: Followed) -> None:
    run.save(0, "host", whole=-1)
    run.writer.skip_tickets(3)  # documents, and dropped records
    run.save(1, "host")
    assert run.look() == []
    run.save(0, "device", whole=0)
    assert run.look() == [(0, "host"), (0, "device")]


def test_a_mark_that_found_no_room_is_made_good_by_the_next(run: Followed) -> None:
    run.save(0, "a", whole=-1)
    run.save(1, "a")
    assert run.look() == []
    run.save(2, "a", whole=1)
    assert run.look() == [(0, "a"), (1, "a")]


def test_a_row_that_comes_when_its_step_is_over_is_judged_at_once(run: Followed) -> None:
    run.save(3, "a", whole=3)
    run.look()
    run.save(2, "late")
    assert run.look() == [(2, "late")]


def test_the_last_step_is_complete_when_its_worker_has_ended(run: Followed) -> None:
    run.save(0, "a", whole=-1)
    assert run.look() == []
    run.writer.end()
    assert run.look() == [(0, "a")]


def test_each_worker_speaks_for_itself(run: Followed, tmp_path: Path) -> None:
    other = RunWriter(tmp_path / "run", worker="worker_1", world_size=2)
    run.save(0, "a", whole=0)
    other.add("b", np.ones(2), step=0)
    other.mark_step_end(-1)
    other.flush()
    assert run.look() == [(0, "a")]
    other.mark_step_end(0)
    other.flush()
    assert run.look() == [(0, "b")]


@pytest.mark.parametrize("told", [b"", b"{", b"[]", b'{"whole_step": "9"}', b'{"whole_step": true}'])
def test_nonsense_about_steps_is_as_good_as_nothing(told: bytes) -> None:
    assert layout.whole_step({layout.SUMMARY_KEY: told}) is None
    assert layout.whole_step(None) is None


def test_a_worker_that_does_not_tell_is_given_two_seconds_of_silence(run: Followed) -> None:
    run.save(0, "a")
    run.look()
    run.now = 1.9
    assert run.look() == []
    run.now = 2.0
    assert run.look() == [(0, "a")]


def test_a_slow_step_of_a_worker_that_tells_is_not_cut_in_two(run: Followed) -> None:
    run.save(0, "forward", whole=-1)
    assert run.look() == []
    run.now = 19.9
    assert run.look() == []
    run.save(0, "backward", whole=0)
    assert run.look() == [(0, "forward"), (0, "backward")]
    run.save(1, "forward")
    run.look()
    run.now += 20.0
    assert run.look() == [(1, "forward")]  # a very long pause


def test_a_merge_changes_nothing(run: Followed) -> None:
    for step in (0, 10):
        run.save(step, "a", whole=step)
    run.save(20, "a")
    run.writer.merge()
    assert run.look() == [(0, "a"), (10, "a")]
    run.now = 10.0
    assert run.look() == []


def test_what_a_worker_has_told_is_known_after_a_restart(run: Followed, tmp_path: Path) -> None:
    run.save(0, "a", whole=0)
    run.save(1, "a")
    assert run.look() == [(0, "a")]
    again = RunSource(tmp_path / "run", clock=lambda: run.now)
    again.resume(run.source.position())
    run.source = again
    run.save(2, "a")
    assert run.look() == []
    run.now += 10.0
    assert run.look() == []
    run.save(1, whole=1)
    assert run.look() == [(1, "a")]
