"""A remote run: new files are found in few requests, and none is missed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tdcore.sinks.cache import CachedSink, DiskCache
from tdcore.trial import Trial
from tdcore.trial.trial_factory import open_trial
from tests.trial.far import FarSink
from tests.trial.writer import RunWriter

ONE = np.ones(3, dtype=np.float32)
POLL = 3  # requests of a poll that finds nothing: end/, attempts/, index/


def save(run: RunWriter, step: int) -> None:
    """Flush one row in one index file."""
    run.add("a", ONE * step, step=step, payload=False)
    run.flush()


def far_trial(sink: FarSink) -> Trial:
    """Open a trial whose pauses take no time."""
    return open_trial(sink, wait=lambda _: None)


def many_files(root: Path, workers: int, files: int) -> FarSink:
    """Write a run of several workers, each with several one-row index files, in a sink."""
    sink, runs = FarSink(), []
    for at in range(workers):
        run = RunWriter(root, worker=f"worker_{at}", world_size=workers)
        for step in range(files):
            save(run, step)
            for path in run.index_files():
                sink.objects[path.relative_to(root).as_posix()] = path.read_bytes()
                path.unlink()
        runs.append(run)
    for path in root.rglob("*"):
        if path.is_file():
            sink.objects[path.relative_to(root).as_posix()] = path.read_bytes()
    return sink


def test_a_look_that_finds_nothing_costs_three_requests(run: RunWriter) -> None:
    save(run, 0)
    sink = FarSink(run.root)
    trial = far_trial(sink)
    sink.reset()
    trial.refresh()
    assert len(sink.requests) == POLL


def test_the_cost_of_a_look_does_not_grow_with_the_run(
    run: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.trial.listing._PAGE_KEYS", 20)
    save(run, 0)
    sink = FarSink(run.root, page_keys=20)
    trial = far_trial(sink)
    costs = []
    for step in range(1, 201):
        save(run, step)
        path = run.index_files()[-1]
        sink.objects[path.relative_to(run.root).as_posix()] = path.read_bytes()
        sink.reset()
        trial.refresh()
        assert sink.count("get") == 1
        costs.append(len(sink.requests) - 1)
    assert len(trial.index) == 201
    assert sorted(costs)[: len(costs) - len(costs) // 30] == [POLL] * (len(costs) - len(costs) // 30)
    assert max(costs) <= POLL + 10  # once in 30 polls the complete listing is read, in pages of 20


def test_new_files_of_a_worker_are_listed_after_its_last_one(run: RunWriter) -> None:
    for step in range(3):
        save(run, step)
    sink = FarSink(run.root)
    trial = far_trial(sink)
    save(run, 3)
    sink.follow(run.root)
    sink.reset()
    trial.refresh()
    assert trial.steps(show_incomplete_steps=True) == [0, 1, 2, 3]
    assert ("list", "index/worker_0/0000-") in sink.requests
    assert ("list", "index/") not in sink.requests


def test_a_whole_listing_is_taken_where_it_is_less_than_one_per_worker(tmp_path: Path) -> None:
    sink = many_files(tmp_path, workers=4, files=3)
    trial = far_trial(sink)
    sink.reset()
    trial.refresh()
    assert [key for operation, key in sink.requests if operation == "list"].count("index/") == 1
    assert len(sink.requests) == POLL


def test_a_merged_file_that_holds_unread_rows_is_found_through_the_hole_before_the_next_file(
    run: RunWriter,
) -> None:
    for step in range(3):
        save(run, step)
    sink = FarSink(run.root)
    trial = far_trial(sink)
    for step in range(3, 6):
        save(run, step)
    run.merge()
    sink.follow(run.root)
    # the key of the merged file sorts before the last key that was read, so it is not read yet
    trial.refresh()
    save(run, 6)
    sink.follow(run.root)
    trial.refresh()
    assert trial.steps(show_incomplete_steps=True) == list(range(7))
    assert trial.gaps == []


def test_a_merged_file_that_holds_unread_rows_is_found_when_the_worker_ends(run: RunWriter) -> None:
    for step in range(3):
        save(run, step)
    sink = FarSink(run.root)
    trial = far_trial(sink)
    save(run, 3)
    run.merge()
    run.end()
    sink.follow(run.root)
    trial.refresh()
    assert trial.steps() == [0, 1, 2, 3]
    assert trial.status == "ended"


def test_a_merged_file_that_holds_unread_rows_is_found_at_last_when_nothing_follows(run: RunWriter) -> None:
    for step in range(3):
        save(run, step)
    sink = FarSink(run.root)
    trial = far_trial(sink)
    save(run, 3)
    run.merge()
    sink.follow(run.root)
    for _ in range(31):
        trial.refresh()
    assert trial.steps(show_incomplete_steps=True) == [0, 1, 2, 3]


def test_a_worker_that_begins_later_is_found(run: RunWriter) -> None:
    save(run, 0)
    sink = FarSink(run.root)
    trial = far_trial(sink)
    save(RunWriter(run.root, worker="worker_1"), 0)
    sink.follow(run.root)
    trial.refresh()
    assert trial.workers() == ["worker_0", "worker_1"]


def test_an_earlier_attempt_that_is_still_written_out_is_read_beside_the_new_one(run: RunWriter) -> None:
    save(run, 0)
    later = RunWriter(run.root, attempt=1)
    save(later, 5)
    sink = FarSink(run.root)
    trial = far_trial(sink)
    save(run, 1)
    save(later, 6)
    sink.follow(run.root)
    trial.refresh()
    assert trial.steps(show_incomplete_steps=True) == [0, 1, 5, 6]


def test_a_run_that_has_ended_is_not_listed_again(run: RunWriter) -> None:
    save(run, 0)
    run.end()
    sink = FarSink(run.root)
    trial = far_trial(sink)
    sink.reset()
    trial.refresh()
    assert not [key for _, key in sink.requests if key.startswith("index/")]


def test_a_live_run_is_read_row_by_row_while_it_is_merged(run: RunWriter) -> None:
    sink = FarSink(run.root)
    trial, random, seen = far_trial(sink), np.random.default_rng(4), list[int]()
    for step in range(120):
        save(run, step)
        if random.random() < 0.1:
            run.merge()
        if random.random() < 0.4:
            sink.follow(run.root)
            trial.refresh()
            seen += trial.index.poll(["step"]).column("step").to_pylist()
            assert seen == sorted(seen)
    run.end()
    sink.follow(run.root)
    trial.refresh()
    seen += trial.index.poll(["step"]).column("step").to_pylist()
    assert seen == list(range(120))
    assert trial.gaps == []


def test_opening_a_run_of_many_workers_waits_for_few_requests(tmp_path: Path) -> None:
    sink = many_files(tmp_path, workers=64, files=2)
    trial = far_trial(sink)
    assert len(sink.waits) == 4  # run.json, and the listings of end/, attempts/ and index/
    assert sink.count("get") == 64 * 2 + 1
    assert len(trial.workers()) == 64


def test_opening_reads_many_pages_once(tmp_path: Path) -> None:
    sink = many_files(tmp_path, workers=2, files=1)
    for at in range(2):  # 2,500 files without new rows: the listing has three pages
        last = sink.objects[f"index/worker_{at}/0000-{0:012d}-{0:012d}.parquet"]
        sink.objects |= {f"index/worker_{at}/note-{n:06d}": last for n in range(1250)}
    far_trial(sink)
    assert [key for operation, key in sink.requests if operation == "list"].count("index/") == 3


def test_ends_of_many_workers_are_fetched_together(tmp_path: Path) -> None:
    for at in range(20):
        run = RunWriter(tmp_path, worker=f"worker_{at}")
        save(run, 0)
        run.end()
    sink = FarSink(tmp_path)
    trial = far_trial(sink)
    assert len(sink.waits) == 4
    assert len(trial.ends()) == 20


def test_index_files_come_from_the_cache_when_a_run_is_opened_again(run: RunWriter, tmp_path: Path) -> None:
    for step in range(5):
        save(run, step)
    sink, cache = FarSink(run.root), tmp_path / "cache"
    for _ in range(2):
        sink.reset()
        trial = open_trial(CachedSink(sink, "here", DiskCache(cache)))
        assert trial.steps(show_incomplete_steps=True) == list(range(5))
    assert not [key for operation, key in sink.requests if operation == "get" and key.startswith("index/")]


def test_answers_may_be_as_old_as_the_refresh_interval(run: RunWriter) -> None:
    save(run, 0)
    sink, now = FarSink(run.root), [0.0]
    trial = open_trial(sink, refresh_interval=timedelta(seconds=1), clock=lambda: now[0])
    sink.reset()
    for _ in range(10):
        trial.steps()
    assert sink.requests == []
    now[0] = 1.0
    trial.steps()
    assert len(sink.requests) == POLL


@pytest.mark.parametrize("steps", [1, 5])
def test_waiting_for_steps_looks_once_a_second(run: RunWriter, steps: int) -> None:
    save(run, 0)
    sink, waited = FarSink(run.root), list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        save(run, len(waited))
        sink.follow(run.root)

    trial = open_trial(sink, wait=wait)
    trial.wait_for_steps([steps - 1])
    assert waited == [1.0] * steps
