"""Ring.capture() on streams that are captured into CUDA graphs, with a simulated device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import _sim
from tests.capturing import BOTH, NO_PAYLOAD, OK, STATISTICS, Array, check_statistics
from tests.simulating import DeviceTap, InterfaceArray

STREAM = 7


class Training:
    """Buffers that change on a stream of a simulated device, and graphs that read them."""

    def __init__(self, *, seed: int = 1, delay_us: int = 30, rung: str = "stream_write") -> None:
        self.tap = DeviceTap()
        self.device = _sim.simulate_device(self.tap.ring, 0, seed=seed, delay_us=delay_us, rung=rung)
        assert self.tap.ring.prepare_device(0)  # not possible while a graph is recorded
        self.graphs: list[int] = []
        self.refused = 0

    def store(self, buffer: Array, values: Array) -> None:
        self.device.store(STREAM, buffer.data, values.astype(buffer.dtype).tobytes())

    def record(self, *calls: dict[str, Array], flags: int = STATISTICS) -> int:
        """Record a graph with these capture calls of named buffers."""
        graph = self.device.begin_capture(STREAM)
        for named in calls:
            self.refused += self.capture(named, flags)
        self.device.end_capture(STREAM)
        self.graphs.append(graph)
        return graph

    def capture(self, named: dict[str, Array], flags: int, step: int = 0) -> int:
        ids = np.array([self.tap.ring.intern(name, 1) for name in named], np.uint32)
        tensors = [InterfaceArray(buffer, stream=STREAM) for buffer in named.values()]
        return int(self.tap.ring.capture(tensors, ids, bytes([flags]) * len(ids), step, 1, step))

    def arm(self) -> bool:
        return self.tap.ring.arm_graphs(0, STREAM)

    def collect(self, step: int) -> int:
        return self.tap.ring.collect_graphs(0, STREAM, step, 1, step)

    def rows(self) -> dict[tuple[int, str], Any]:
        """Return the rows by step and name, when all work has ended."""
        assert self.device.synchronize(STREAM)
        assert self.tap.ring.mark_step_end(1 << 20)
        found: dict[tuple[int, str], Any] = {}
        while any(report["in_flight"] for report in self.tap.ring.device_reports()):
            pass
        taken = self.tap.take().rows
        names = [name for name, *_ in self.tap.consumer.names(0)]
        for row in taken:
            key = int(row["step"]), names[int(row["name"])]
            assert key not in found
            found[key] = row
        return found

    def close(self) -> None:
        self.device.synchronize(STREAM)
        for graph in self.graphs:
            self.device.destroy_graph(graph)
        self.tap.ring.close()


@pytest.fixture
def training() -> Iterator[Training]:
    training = Training()
    yield training
    training.close()


def test_a_saved_step_has_the_statistics_of_its_replay(training: Training) -> None:
    buffer = np.zeros(1000, np.float32)
    graph = training.record({"x": buffer}, {"y": buffer[:10]})
    assert training.tap.ring.graph_devices() == [0]
    values = [np.arange(1000) * step - 7 for step in range(9)]
    for step in range(9):  # the host is ahead of the device
        training.store(buffer, values[step])
        saved = step % 3 == 0
        assert not saved or training.arm()
        training.device.replay(graph, STREAM)
        assert not saved or training.collect(step) == 0
    rows = training.rows()
    assert sorted(rows) == [(step, name) for step in (0, 3, 6) for name in "xy"]
    for (step, name), row in rows.items():
        check_statistics(row["stats"], values[step][: 1000 if name == "x" else 10])
        assert row["status"] == OK
    assert training.tap.ring.counters()["tensors"] == 6
    assert training.tap.drops() == {}
    assert training.device.violations == 0


def test_values_are_left_out_of_graphs_with_a_reason_and_a_count(training: Training) -> None:
    graph = training.record({"x": np.ones(5)}, flags=BOTH)
    for step in range(2):
        assert training.arm()
        training.device.replay(graph, STREAM)
        training.collect(step)
    rows = training.rows()
    assert len(rows) == 2
    for row in rows.values():
        check_statistics(row["stats"], np.ones(5))
        assert row["payload_offset"] == NO_PAYLOAD
    assert training.tap.drops() == {"graph_capture": 2}


def test_a_device_that_is_lost_counts_the_tensors_of_its_graphs(training: Training) -> None:
    graph = training.record({"x": np.ones(5)})
    training.device.fail()
    for step in range(3):
        training.arm()
        training.device.replay(graph, STREAM)
        training.collect(step)
    assert training.tap.drops() == {"device_error": 3}


def test_a_collection_while_a_graph_is_recorded_adds_no_work_to_it_and_is_counted(training: Training) -> None:
    graph = training.record({"x": np.ones(5)})
    assert training.arm()
    training.device.replay(graph, STREAM)
    training.graphs.append(training.device.begin_capture(STREAM))
    training.collect(0)
    training.device.end_capture(STREAM)
    assert training.tap.drops() == {"graph_capture": 1}
    assert training.arm()
    training.device.replay(graph, STREAM)
    assert training.collect(1) == 0
    assert sorted(training.rows()) == [(1, "x")]
    assert training.device.violations == 0


def test_a_forked_child_captures_nothing_of_a_graph(training: Training) -> None:
    graph = training.record({"x": np.ones(5)})
    child = os.fork()
    if child == 0:
        ring = training.tap.ring
        idle = ring.graph_devices() == [] and not training.arm() and training.collect(0) == 0
        os._exit(0 if idle else 1)
    assert os.waitpid(child, 0)[1] == 0
    training.arm()
    training.device.replay(graph, STREAM)
    training.collect(1)
    assert sorted(training.rows()) == [(1, "x")]


def test_a_graph_outlives_the_ring_that_recorded_it(training: Training) -> None:
    graph = training.record({"x": np.ones(5)})
    training.arm()
    training.tap.ring.close()
    for _ in range(3):
        assert training.device.replay(graph, STREAM)
    assert training.device.synchronize(STREAM)
    assert not training.arm()
    second = Training()
    later = second.record({"x": np.full(4, 2.0)})
    second.arm()
    assert training.device.replay(graph, STREAM)  # of the first ring
    second.device.replay(later, STREAM)
    second.collect(1)
    (row,) = second.rows().values()
    check_statistics(row["stats"], np.full(4, 2.0))
    second.close()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_trainings_have_exactly_the_rows_of_their_replays(data: st.DataObject) -> None:
    draw = data.draw
    rung = draw(st.sampled_from(["stream_write", "commit_kernel", "poll"]))
    training = Training(seed=draw(st.integers(0, 99)), delay_us=draw(st.sampled_from([0, 40])), rung=rung)
    sizes = draw(st.lists(st.sampled_from([1, 7, 300, 20_000]), min_size=2, max_size=3))
    buffers = [np.zeros(size, np.float32) for size in sizes]
    now: list[Array] = [np.zeros(size) for size in sizes]
    which = st.integers(0, len(sizes) - 1)
    graphs: dict[int, tuple[str, int]] = {}  # number -> name and buffer
    expected: dict[tuple[int, str], Array] = {}
    for step in range(draw(st.integers(1, 8))):
        if len(graphs) < 3 and (not graphs or draw(st.booleans())):
            position, name = draw(which), draw(st.sampled_from("abc"))
            graphs[training.record({name: buffers[position]})] = name, position
        saved = draw(st.booleans())
        if saved:
            assert training.arm()
        ran: dict[int, Array] = {}
        for graph in draw(st.lists(st.sampled_from(sorted(graphs)), max_size=4)):
            position = draw(which)
            now[position] = np.arange(sizes[position]) * draw(st.integers(-9, 9)) - step
            training.store(buffers[position], now[position])
            training.device.replay(graph, STREAM)
            ran[graph] = now[graphs[graph][1]]
        eager = draw(which) if saved and draw(st.booleans()) else None
        if eager is not None:
            training.capture({"a": buffers[eager]}, STATISTICS, step)
        if saved:
            assert training.collect(step) == 0
            for graph in sorted(ran):
                expected[step, graphs[graph][0]] = ran[graph]
            if eager is not None:
                expected[step, "a"] = now[eager]
    rows = training.rows()
    assert sorted(rows) == sorted(expected)
    for key, row in rows.items():
        check_statistics(row["stats"], expected[key])
    assert training.tap.drops() == {}
    assert training.refused == training.device.violations == 0
    training.close()
