"""When a live step counts as complete: never half of it, and soon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tdcore.rules.source import RunSource
from tests.trial.writer import RunWriter


class Followed:
    """A run and a source that follows it, with a clock of its own."""

    def __init__(self, place: Path) -> None:
        self.now = 0.0
        self.writer = RunWriter(place)
        self.source = RunSource(place, clock=lambda: self.now)

    def save(self, step: int, *names: str, tickets: int = 0) -> None:
        """Rows of a step, then so many tickets without rows."""
        for name in names:
            self.writer.add(name, np.ones(2), step=step)
        self.writer.skip_tickets(tickets)
        self.writer.flush()

    def look(self) -> list[tuple[int, str]]:
        table = self.source.next(["step", "name"]).table
        names = [str(name) for name in table.column("name").to_pylist()]
        return list(zip(table.column("step").to_pylist(), names, strict=True))


@pytest.fixture
def run(tmp_path: Path) -> Followed:
    return Followed(tmp_path / "run")


def test_a_row_of_a_later_step_completes_a_step(run: Followed) -> None:
    run.save(0, "a")
    assert run.look() == []
    run.save(1, "a")
    assert run.look() == [(0, "a")]


def test_a_ticket_without_rows_completes_a_step_at_once(run: Followed) -> None:
    run.save(0, "a")
    assert run.look() == []
    run.save(0, tickets=1)
    assert run.look() == [(0, "a")]
    run.save(100, "a", "b", tickets=1)
    assert run.look() == [(100, "a"), (100, "b")]


def test_a_ticket_without_rows_before_a_step_says_nothing_of_it(run: Followed) -> None:
    run.save(0, tickets=1)
    run.save(0, "a")
    assert run.look() == []
    run.save(0, "b", tickets=1)
    assert run.look() == [(0, "a"), (0, "b")]


def test_a_worker_that_does_not_tell_is_given_two_seconds_of_silence(run: Followed) -> None:
    run.save(0, "a")
    run.look()
    run.now = 1.9
    assert run.look() == []
    run.now = 2.0
    assert run.look() == [(0, "a")]


def test_a_slow_step_of_a_worker_that_tells_is_not_cut_in_two(run: Followed) -> None:
    run.save(0, tickets=1)
    run.save(0, "forward")
    assert run.look() == []
    run.now = 19.9
    assert run.look() == []
    run.save(0, "backward", tickets=1)
    assert run.look() == [(0, "forward"), (0, "backward")]
    run.save(1, "forward")
    run.look()
    run.now += 20.0
    assert run.look() == [(1, "forward")]  # a very long pause


def test_a_merge_changes_nothing(run: Followed) -> None:
    for step in (0, 10):
        run.save(step, "a", tickets=1)
    run.save(20, "a")
    run.writer.merge()
    assert run.look() == [(0, "a"), (10, "a")]
    run.now = 10.0
    assert run.look() == []


def test_what_a_worker_has_told_is_known_after_a_restart(run: Followed, tmp_path: Path) -> None:
    run.save(0, "a", tickets=1)
    run.save(1, "a")
    assert run.look() == [(0, "a")]
    again = RunSource(tmp_path / "run", clock=lambda: run.now)
    again.resume(run.source.position())
    run.source = again
    assert run.look() == []
    run.now += 10.0
    assert run.look() == []
    run.save(1, tickets=1)
    assert run.look() == [(1, "a")]
