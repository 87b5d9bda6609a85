"""Values of a remote run: read in ranges, neighbours together, never a whole segment for one tensor."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tdcore.errors import RunCorrupt, TensorUnavailableForStep
from tdcore.rules.run_source import RunSource
from tdcore.trial.segments import FetchedSegments, SegmentRange, joined
from tdcore.trial.trial_factory import open_trial
from tests.trial.far import FarSink
from tests.trial.writer import RunWriter

KIB, MIB = 1 << 10, 1 << 20


def array(at: int, size: int = 256) -> npt.NDArray[Any]:
    return np.full(size, at, dtype=np.float32)


def segment(size: int) -> tuple[FarSink, FetchedSegments]:
    """A sink with one segment of `size` random bytes, and a reader of the segment."""
    sink = FarSink()
    sink.put("data/a", [np.random.default_rng(0).bytes(size)])
    return sink, FetchedSegments(sink)


def test_one_tensor_of_a_large_segment_costs_a_little_of_it(run: RunWriter) -> None:
    for at in range(32):
        run.add(f"t{at}", array(at, 64 * KIB), step=0)
    run.flush()
    sink = FarSink(run.root)
    trial = open_trial(sink)
    sink.reset()
    assert trial.tensor("t5").value(0).tolist() == array(5, 64 * KIB).tolist()
    assert sink.count("get_ranges") == 1
    assert sink.sent < 512 * KIB  # of 8 MiB


def test_neighbours_in_a_segment_come_with_one_request(run: RunWriter) -> None:
    for at in range(20):
        run.add(f"t{at:02d}", array(at), step=0)
    run.flush()
    sink = FarSink(run.root)
    trial = open_trial(sink, refresh_interval=timedelta(hours=1))
    sink.reset()
    for at in range(20):
        assert trial.tensor(f"t{at:02d}").value(0).tolist() == array(at).tolist()
    assert len(sink.requests) == 1


def test_reading_on_in_a_large_segment_takes_ever_larger_pieces(run: RunWriter) -> None:
    for at in range(64):
        run.add(f"t{at:02d}", array(at, 32 * KIB), step=0)
    run.flush()
    sink = FarSink(run.root)
    trial = open_trial(sink, refresh_interval=timedelta(hours=1))
    sink.reset()
    for at in range(64):
        assert trial.tensor(f"t{at:02d}").value(0)[0] == at
    assert len(sink.requests) <= 8


def test_all_steps_of_a_tensor_are_asked_for_together(run: RunWriter) -> None:
    for step in range(40):
        run.add("x", array(step), step=step)
        run.add("y", array(-step), step=step)
        if step % 4 == 3:
            run.flush()
    run.end()
    sink = FarSink(run.root)
    trial = open_trial(sink, refresh_interval=timedelta(hours=1))
    sink.reset()
    values = trial.tensor("x").values()
    assert {step: value[0] for step, value in values.items()} == {step: step for step in range(40)}
    assert sink.count("get_ranges") == 10  # one per segment
    assert len(sink.requests) == 10


def test_parts_of_a_tensor_come_with_one_request(run: RunWriter) -> None:
    run.add("x", np.arange(1000.0), step=0, parts=7)
    run.flush()
    sink = FarSink(run.root)
    trial = open_trial(sink)
    assert trial.tensor("x").value(0).tolist() == np.arange(1000.0).tolist()
    assert sink.count("get_ranges") == 1


def test_values_are_found_where_their_segments_were_merged_to(run: RunWriter) -> None:
    for step in range(12):
        run.add("x", array(step), step=step)
        run.flush()
    run.end()
    sink = FarSink(run.root)
    trial = open_trial(sink, refresh_interval=timedelta(hours=1))
    run.merge(segments=True)
    sink.follow(run.root)
    sink.reset()
    values = trial.tensor("x").values()
    assert {step: value[0] for step, value in values.items()} == {step: step for step in range(12)}
    assert len(sink.requests) <= 4  # a listing, the merged index file, a range of the merged segment


def test_a_lost_segment_is_said_to_be_lost(run: RunWriter) -> None:
    run.add("x", array(1), step=0)
    run.flush()
    sink = FarSink(run.root)
    trial = open_trial(sink)
    for key in [key for key in sink.objects if key.startswith("data/")]:
        sink.delete(key)
    with pytest.raises(TensorUnavailableForStep) as caught:
        trial.tensor("x").value(0)
    assert caught.value.reason == "lost"
    assert trial.tensor("x").values() == {}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1] + b"!", "have checksum"),
        (lambda data: data[:-3], "only 1021 of these bytes exist"),
    ],
    ids=["a wrong byte", "cut short"],
)
def test_a_damaged_segment_is_refused(run: RunWriter, damage: Any, message: str) -> None:
    run.add("x", array(1), step=0)
    run.flush()
    sink = FarSink(run.root)
    (key,) = (key for key in sink.objects if key.startswith("data/"))
    sink.objects[key] = damage(sink.objects[key])
    with pytest.raises(RunCorrupt, match=message):
        open_trial(sink).tensor("x").value(0)


def test_what_is_held_is_given_up_when_the_run_was_made_anew(run: RunWriter, tmp_path: Path) -> None:
    run.add("x", array(1), step=0)
    run.flush()
    sink = FarSink(run.root)
    segments = open_trial(sink)._reader.payloads
    assert open_trial(sink).tensor("x").value(0)[0] == 1
    other = RunWriter(tmp_path / "other")
    other.add("x", array(2), step=0)
    other.flush()
    sink.follow(other.root)
    trial = open_trial(sink)
    trial._reader.payloads = segments  # holds the old bytes
    assert trial.tensor("x").value(0)[0] == 2


def test_a_rule_that_reads_values_asks_for_those_of_a_step_together(run: RunWriter) -> None:
    for step in range(3):
        for at in range(10):
            run.add(f"relu{at}_relu_output_0", array(at - 5), step=step, kind="output", origin="ReLU")
        run.add("w", array(1, 400 * KIB), step=step)
        run.flush()
    run.end()
    sink = FarSink(run.root)
    source = RunSource("here", sink=sink)
    batch = source.next(["name", "kind", "step"])
    sink.reset()
    for row, kind in enumerate(batch.table.column("kind").to_pylist()):
        if kind == "output":
            batch.payload(row)
    assert sink.count("get_ranges") == 3
    assert len(sink.requests) == 3
    assert sink.sent < 512 * KIB


def test_a_run_that_is_followed_is_waited_for_while_its_place_is_away(run: RunWriter) -> None:
    from tdcore.errors import SinkError
    from tdcore.rules import VanishingGradient
    from tdcore.rules.engine import Engine
    from tdcore.rules.runner import follow

    run.add("gradient/w", array(1), step=0, kind="gradient")
    run.flush()
    sink, pauses = FarSink(run.root), 0

    def away(operation: str, key: str) -> None:
        raise SinkError("cannot list: the service does not answer", kind="transient")

    def wait(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        sink.fault = away if pauses < 3 else None
        if pauses == 3:
            run.end()
            sink.follow(run.root)

    source = RunSource("here", sink=sink)
    engine = Engine(source, [VanishingGradient()])
    report = follow(engine, source, until_end=True, poll_interval=source.pause, wait=wait)
    assert report.finished
    assert report.rows == 1
    assert report.problems == ("cannot list: the service does not answer",)


# Segments. ---------------------------------------------------------------------------------------------


def test_any_places_come_as_they_are() -> None:
    sink, segments = segment(8 * MIB)
    data, random = sink.objects["data/a"], np.random.default_rng(1)
    for _ in range(300):
        places = [
            SegmentRange("data/a", int(offset), int(random.integers(1, 300 * KIB)))
            for offset in random.integers(0, 8 * MIB, 3)
        ]
        if random.random() < 0.5:
            segments.expect(places)
        for place in places:
            assert segments.read(place) == data[place.offset : place.offset + place.nbytes]


def test_what_is_held_is_bounded_and_still_right() -> None:
    sink, _ = segment(8 * MIB)
    segments = FetchedSegments(sink, held_bytes=MIB)
    data = sink.objects["data/a"]
    for offset in [*range(0, 8 * MIB, 300 * KIB), *range(0, 8 * MIB, 900 * KIB)]:
        assert segments.read(SegmentRange("data/a", offset, 1000)) == data[offset : offset + 1000]
        assert segments._bytes <= MIB
    assert segments._bytes == sum(map(len, segments._blocks.values()))


def test_a_hint_takes_no_more_than_fits() -> None:
    sink = FarSink()
    for at in range(40):
        sink.put(f"data/{at:02d}", [bytes(4 * MIB)])
    places = [SegmentRange(f"data/{at:02d}", 0, 4 * MIB) for at in range(40)]
    taken = FetchedSegments(sink).expect(places)
    assert 10 <= taken < 20
    assert sink.count("get_ranges") == taken


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [
        ([], []),
        ([(5, 10)], [(0, 64 * KIB)]),
        ([(3 * MIB, 10), (0, 10)], [(0, 64 * KIB), (3 * MIB, 64 * KIB)]),
        ([(0, 10), (MIB, 10)], [(0, MIB + 64 * KIB)]),
        ([(0, 10 * MIB), (5 * MIB, 10)], [(0, 10 * MIB)]),
    ],
    ids=["none", "one", "far apart", "close together", "one in another"],
)
def test_ranges_are_joined_in_whole_blocks(
    ranges: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    assert joined(ranges) == wanted
