"""A flusher that starts again on the same ring: nothing is lost, nothing is written twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.format.layout import data_prefix, index_prefix
from tdcore.sinks import MemorySink
from tests.flushing import (
    FlusherThread,
    Killed,
    Trainer,
    flush_all,
    index_ranges,
    payloads,
    read_end,
    read_index,
    weights,
)
from tests.waiting import wait_until


def test_a_new_flusher_writes_what_the_last_one_had_not_given_back(
    trainer: Trainer, sink: MemorySink
) -> None:
    for step in range(3):
        trainer.capture(step, weights(step))
    _core.Consumer(trainer.ring.fd).drain(1 << 40, 2)  # a flusher took two records, wrote nothing and died
    assert flush_all(trainer, sink)
    assert read_index(sink).num_rows == 9
    assert read_end(sink)["flusher_restarts"] == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("killed_at", range(12))
def test_a_flusher_killed_at_any_write_loses_nothing_and_doubles_nothing(
    trainer: Trainer, sink: MemorySink, killed_at: int, after: bool
) -> None:
    options = FlusherOptions(segment_bytes=3000, merge_fan_in=2, grace=timedelta())
    writes = [0]
    dead = [False]

    class Deadly(MemorySink):
        """A sink that dies at a given write, before or after the write took effect."""

        def put(self, key: str, parts: Any) -> None:
            self._write(lambda: sink.put(key, parts))

        def delete(self, key: str) -> None:
            self._write(lambda: sink.delete(key))

        def _write(self, write: Callable[[], None]) -> None:
            assert not dead[0]
            writes[0] += 1
            if writes[0] == killed_at + 1 and not after:
                dead[0] = True
                raise Killed
            write()
            if writes[0] == killed_at + 1:
                dead[0] = True
                raise Killed

        def list(self, prefix: str, after: str = "") -> list[str]:
            return sink.list(prefix, after)

        def get(self, key: str) -> bytes:
            return sink.get(key)

    for step in range(6):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    with pytest.raises(Killed):
        Flusher(
            _core.Consumer(trainer.ring.fd), Deadly(), worker="worker_0", attempt=0, options=options
        ).run()
    assert flush_all(trainer, sink, options=options)
    table = read_index(sink)
    assert sorted(table["step"].to_pylist()) == [step for step in range(6) for _ in range(3)]
    found = payloads(sink, table)
    assert len(found) == 18
    for (name, step, _), data in found.items():
        assert data == weights(step)[name].tobytes()
    named = {row["segment"] for row in table.select(["segment"]).to_pylist()}
    assert {key.rpartition("/")[2] for key in sink.list(data_prefix("worker_0"))} == named
    assert len(sink.list(index_prefix("worker_0"))) == len(index_ranges(sink))
    end = read_end(sink)
    assert (end["totals"]["rows"], end["totals"]["records"], end["totals"]["payload_bytes"]) == (18, 6, 7200)
    assert (end["last_step"], end["gaps"]) == (5, [])


def test_other_attempts_and_workers_are_left_alone(trainer: Trainer, sink: MemorySink) -> None:
    keys = [
        "index/worker_0/0001-000000000000-000000000009.parquet",
        "data/worker_0/0001-000000000000-000000000009.safetensors",
        "data/worker_1/0000-000000000000-000000000009.safetensors",
        "data/worker_0/notes.txt",
    ]
    for key in keys:
        sink.put(key, [b"not mine"])
    _core.Consumer(trainer.ring.fd)
    trainer.capture(0, weights(0))
    flush_all(trainer, sink)
    assert [sink.objects[key] for key in keys] == [b"not mine"] * 4


def test_a_damaged_index_file_of_an_earlier_flusher_does_not_stop_the_next(
    trainer: Trainer, sink: MemorySink
) -> None:
    flusher = FlusherThread(
        trainer, sink, options=FlusherOptions(visible_delay=timedelta(), grace=timedelta(hours=1))
    )
    trainer.capture(0, weights(0))
    wait_until(lambda: trainer.pending() == 0)
    damaged = sink.list(index_prefix("worker_0"))[0]
    sink.objects[damaged] = b"nonsense"
    _core.Consumer(trainer.ring.fd)  # supersedes the consumer of the first flusher, which raises
    trainer.capture(1, weights(1))
    with pytest.raises(RuntimeError, match="another consumer"):
        flusher.join()
    assert flush_all(trainer, sink)
    assert sink.objects[damaged] == b"nonsense"
    assert len(sink.list(data_prefix("worker_0"))) >= 2  # the damaged file may refer to any of them
