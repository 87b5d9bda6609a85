"""How often the flusher polls its ring: rarely while it is idle, often while many records arrive."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions, compactor, merge
from tdcore.sinks import MemorySink
from tests.flushing import MIB, Trainer


def paced(trainer: Trainer, sink: MemorySink, act: Callable[[float], None], seconds: float) -> list[float]:
    """Run a flusher with a simulated clock that advances only in its pauses; return the times of its polls.

    act: called with the time at each pause. seconds: the time at which the ring is closed.
    """
    now, looks = [0.0], list[float]()

    def wait(pause: float) -> None:
        now[0] += pause
        looks.append(now[0])
        act(now[0])
        if now[0] >= seconds:
            trainer.ring.set_closing()

    consumer = _core.Consumer(trainer.ring.fd)
    flusher = Flusher(
        consumer, sink, worker="worker_0", attempt=0, options=FlusherOptions(), clock=lambda: now[0]
    )
    assert flusher.run(wait=wait)
    return looks


def test_an_idle_flusher_looks_at_most_20_times_a_second(trainer: Trainer, sink: MemorySink) -> None:
    looks = paced(trainer, sink, lambda now: None, 11.0)
    assert len([at for at in looks if 1.0 <= at < 11.0]) <= 200


def test_a_few_small_records_a_second_do_not_keep_it_awake(trainer: Trainer, sink: MemorySink) -> None:
    steps = iter(range(1, 1000))
    due = [0.0]

    def act(now: float) -> None:
        if now >= due[0]:
            due[0] = now + 0.25
            trainer.capture(next(steps), {"a": np.zeros(10)})

    looks = paced(trainer, sink, act, 10.0)
    assert len(looks) <= 400


def test_a_record_is_written_about_a_second_after_it_came(trainer: Trainer, sink: MemorySink) -> None:
    captured: list[float] = []
    seen: list[float] = []

    def act(now: float) -> None:
        if now >= 5.0 and not captured:
            captured.append(now)
            trainer.capture(0, {"a": np.zeros(10)})
        if not seen and any(key.startswith("index/") for key in sink.list("")):
            seen.append(now)

    paced(trainer, sink, act, 9.0)
    assert 1.0 <= seen[0] - captured[0] <= 1.5


def test_while_the_ring_fills_fast_it_looks_every_10_ms(sink: MemorySink) -> None:
    trainer = Trainer(data_bytes=8 * MIB)
    begun: list[float] = []

    def act(now: float) -> None:
        if now >= 5.0 and len(begun) < 20:
            begun.append(now)
            trainer.capture(len(begun), {"a": np.zeros(MIB // 16)})  # 0.5 MB: a quarter of a flush's size

    paced(trainer, sink, act, 8.0)
    trainer.ring.close()
    assert max(np.diff(begun)[1:]) <= 0.0101


def test_files_are_not_looked_through_again_before_there_is_a_new_one(
    trainer: Trainer, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []
    original = merge.next_group

    def search(entries: list[object], options: FlusherOptions) -> object:
        searches.append(len(entries))
        return original(entries, options)  # type: ignore[arg-type]

    monkeypatch.setattr(compactor, "next_group", search)
    due = [0.0, 2.0, 4.0]

    def act(now: float) -> None:
        if due and now >= due[0]:
            trainer.capture(len(due), {"a": np.zeros(10)})
            due.pop(0)

    paced(trainer, sink, act, 10.0)
    assert searches == [2, 3]
