"""The upload journal: a restarted flusher reads which files are written or begun, or that this is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tdcore.flusher.index_summary import IndexGap, IndexSummary
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.upload_journal import UploadJournal
from tdcore.format.layout import FileRange
from tdcore.sinks import MemorySink
from tests.flushing import Trainer, flush_all, weights

GAP = IndexGap(first_step=1, last_step=2, tensors=3, bytes=4, reason="io_error")


def place(first: int, last: int) -> FileRange:
    return FileRange("worker_0", 0, first, last)


def summary(rows: int) -> IndexSummary:
    return IndexSummary(rows=rows, records=rows, gaps=(GAP,), segments={"a": 5}, last_mode_steps={"TRAIN": 7})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker_0" / "0000.journal"


@pytest.fixture
def open_journal(path: Path) -> Callable[[], UploadJournal]:
    return lambda: UploadJournal(path, worker="worker_0", attempt=0)


def test_what_was_written_comes_back_whole(open_journal: Callable[[], UploadJournal]) -> None:
    journal = open_journal()
    journal.start()
    journal.begin(place(0, 9))
    journal.add(place(0, 9), 100, summary(10))
    journal.add(place(10, 19), 200, None)
    recorded = open_journal().read()
    assert recorded is not None
    assert recorded.files == [(place(0, 9), 100, summary(10)), (place(10, 19), 200, None)]
    assert recorded.begun == []


def test_what_was_begun_and_not_written_is_known(open_journal: Callable[[], UploadJournal]) -> None:
    journal = open_journal()
    journal.start()
    for first in (0, 10, 20):
        journal.begin(place(first, first + 9))
    journal.add(place(0, 9), 100, summary(10))
    recorded = open_journal().read()
    assert recorded is not None
    assert recorded.begun == [place(10, 19), place(20, 29)]


def test_what_is_begun_anew_replaces_what_was_begun_from_there_on(
    open_journal: Callable[[], UploadJournal],
) -> None:
    journal = open_journal()
    journal.start()
    for first, last in ((0, 9), (10, 19), (0, 4)):
        journal.begin(place(first, last))
    recorded = open_journal().read()
    assert recorded is not None
    assert recorded.begun == [place(0, 4)]


def test_a_merge_takes_the_place_of_what_it_covers(open_journal: Callable[[], UploadJournal]) -> None:
    journal = open_journal()
    journal.start()
    for first in (0, 10, 20):
        journal.add(place(first, first + 9), 100, summary(10))
    journal.replace(place(0, 19), 150, summary(20))
    recorded = open_journal().read()
    assert recorded is not None
    assert recorded.files == [(place(0, 19), 150, summary(20)), (place(20, 29), 100, summary(10))]


def test_half_a_line_is_left_out_and_the_next_line_is_whole(
    open_journal: Callable[[], UploadJournal], path: Path
) -> None:
    journal = open_journal()
    journal.start()
    journal.add(place(0, 9), 100, summary(10))
    with path.open("ab") as file:
        file.write(b'{"file": {"first": 10, "la')
    again = open_journal()
    assert again.read() is not None
    again.add(place(10, 19), 200, None)
    recorded = open_journal().read()
    assert recorded is not None
    assert [each for each, _, _ in recorded.files] == [place(0, 9), place(10, 19)]


@pytest.mark.parametrize("text", ["nonsense\n", '{"merge": {"first": 0}}\n', "[]\n", '{"file": 3}\n', "{}\n"])
def test_a_journal_that_makes_no_sense_is_not_trusted(
    open_journal: Callable[[], UploadJournal], path: Path, text: str
) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert open_journal().read() is None


def test_without_a_journal_nothing_is_claimed(open_journal: Callable[[], UploadJournal]) -> None:
    assert open_journal().read() is None


def test_a_journal_that_cannot_be_written_is_given_up_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = UploadJournal(tmp_path / "file" / "0000.journal", worker="worker_0", attempt=0)
    journal.start()
    journal.begin(place(0, 9))
    assert journal.read() is None
    assert capsys.readouterr().err.count("and is removed") == 1


def test_a_journal_that_was_lost_comes_back_complete(
    trainer: Trainer, sink: MemorySink, open_journal: Callable[[], UploadJournal]
) -> None:
    """An incomplete journal would make the next sweep delete files that the journal does not list."""
    for step in range(3):
        trainer.capture(step, weights(step))
    flush_all(trainer, sink)
    found = [key for key in sink.list("") if key.startswith(("index/", "data/"))]
    Ledger(sink, worker="worker_0", attempt=0, journal=open_journal()).recover()
    ledger = Ledger(sink, worker="worker_0", attempt=0, journal=open_journal())
    ledger.recover()
    ledger.add(IndexEntry(range=place(ledger.covered + 1, ledger.covered + 5), size=1, summary=None))
    last = Ledger(sink, worker="worker_0", attempt=0, journal=open_journal())
    last.recover()
    last.sweep()
    assert [key for key in sink.list("") if key.startswith(("index/", "data/"))] == found
