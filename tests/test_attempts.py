"""The attempt of a job: one number for all workers, whatever earlier jobs left in the folder."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.format.layout import end_key
from tdcore.session.attempts import claim_attempt
from tdcore.sinks import MemorySink, Sink

GONE = 2**22 - 3  # no process has this number


def claims(sink: Sink, ranks: Iterable[int], size: int, **changes: Any) -> list[int]:
    """Return the attempts that the ranks of a job claim, in the order in which they begin."""
    names = [f"worker_{rank}" for rank in range(size)]
    options: dict[str, Any] = {
        "where": "runs/x",
        "configuration": {},
        "framework": "numpy",
        "framework_version": "0",
        "world_size": size,
        "workers": names,
        **changes,
    }
    return [claim_attempt(sink, worker=names[rank], **options).attempt for rank in ranks]


def end(sink: Sink, attempt: int, ranks: Iterable[int]) -> None:
    """Write the files that flushers leave at their end."""
    for rank in ranks:
        sink.put(end_key(f"worker_{rank}", attempt), [b'{"clean": false}'])


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), data=st.data())
def test_all_ranks_of_a_job_are_in_one_attempt_whatever_the_sizes_of_the_jobs_before(
    sizes: list[int], data: st.DataObject
) -> None:
    sink = MemorySink()
    for number, size in enumerate(sizes):
        order = data.draw(st.permutations(range(size)))
        assert claims(sink, order, size, pid=GONE) == [number] * size
        end(sink, number, range(size))


def test_jobs_that_include_other_workers_are_told_apart() -> None:
    sink = MemorySink()
    assert claims(sink, (0, 1), 2) == [0, 0]
    assert claims(sink, (0,), 2, workers=["worker_0"]) == [1]
    assert claims(sink, (1, 0), 2) == [2, 2]


def test_a_rank_that_never_began_an_attempt_does_not_join_it_when_the_job_is_started_again() -> None:
    sink = MemorySink()
    assert claims(sink, (0, 1), 3, pid=GONE) == [0, 0]
    end(sink, 0, (0, 1))
    assert claims(sink, (2, 1, 0), 3) == [1, 1, 1]


def test_a_slow_rank_joins_the_attempt_that_another_has_ended_and_followed_by_the_next() -> None:
    sink = MemorySink()
    assert claims(sink, (0, 0), 2) == [0, 1]
    end(sink, 0, (0,))
    assert claims(sink, (1, 1), 2) == [0, 1]


def test_a_rank_whose_peers_look_gone_from_its_container_still_joins_them() -> None:
    sink = MemorySink()
    assert claims(sink, (0, 1), 2, pid=GONE) == [0, 0]


def test_a_rank_of_another_machine_does_not_join_an_attempt_that_ended_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = MemorySink()
    now = time.time_ns
    monkeypatch.setattr("socket.gethostname", lambda: "node-a")
    monkeypatch.setattr("time.time_ns", lambda: now() - 86_400 * 10**9)
    assert claims(sink, (0,), 2) == [0]  # the other rank died before its hook
    end(sink, 0, (0,))
    monkeypatch.setattr("time.time_ns", now)
    assert claims(sink, (0,), 2, pid=GONE) == [1]
    monkeypatch.setattr("socket.gethostname", lambda: "node-b")
    assert claims(sink, (1,), 2) == [1]


def test_an_attempt_that_another_rank_begins_while_this_one_looks_is_joined() -> None:
    class Behind(MemorySink):
        """A sink whose first listing does not contain the other rank's claim yet."""

        looked = False

        def list(self, prefix: str, after: str = "") -> Any:
            if not self.looked:
                self.looked = True
                other = claims(self, (0,), 2)
                assert other == [0]
                return []
            return super().list(prefix, after)

    assert claims(Behind(), (1,), 2) == [0]


@pytest.mark.supports("torchrun", "values")
def test_jobs_that_the_launcher_tells_apart_do_not_share_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MemorySink()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    assert claims(sink, (0,), 2) == [0]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "b")
    assert claims(sink, (1, 0), 2) == [1, 1]
