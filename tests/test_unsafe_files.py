"""Links, FIFOs, devices and huge files below a run: readers, rules and writers refuse them immediately.

The time limit of each test detects a reader that hangs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tdcore.errors import TdcoreError, UnsafeFile
from tdcore.rules import run as run_rules
from tdcore.sinks import LocalSink
from tdcore.trial import create_trial
from tests.test_fuzz_run import little_memory, write_run

pytestmark = pytest.mark.timeout(120)

DOCUMENTS = ["run.json", "collections.json", "end/worker_0/0000.json", "findings/rule.jsonl"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "runs" / "hostile"
    write_run(place)
    return place


def as_link(path: Path) -> None:
    target = path.parent / f"real-{path.name}"
    path.rename(target)
    path.symlink_to(target)


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # paths of sockets must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def as_huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(20 << 30)  # sparse: takes no space


ODD = [as_link, as_fifo, as_socket, as_huge]


def ask(root: Path) -> None:
    """Functions that read all documents, the index and the payloads."""
    trial = create_trial(root)
    trial.collections()
    trial.findings()
    trial.ends()
    trial.tensor("x").value(0)


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("key", DOCUMENTS)
def test_a_document_that_is_no_plain_file_is_refused_without_waiting(
    root: Path, key: str, make: Callable[[Path], None]
) -> None:
    make(root / key)
    with little_memory(), pytest.raises(UnsafeFile, match=key):
        ask(root)


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("folder", ["index", "data"])
def test_an_index_file_or_segment_that_is_no_plain_file_is_refused_without_waiting(
    root: Path, folder: str, make: Callable[[Path], None]
) -> None:
    make(sorted((root / folder / "worker_0").iterdir())[0])
    if make is as_huge and folder == "data":
        ask(root)  # the segment is memory-mapped, and its values are unchanged
        return
    with little_memory(), pytest.raises(UnsafeFile, match=folder):
        ask(root)


@pytest.mark.parametrize("folder", ["index", "index/worker_0", "data", "end", "findings", "attempts"])
def test_a_folder_of_the_run_that_is_a_link_is_refused(root: Path, tmp_path: Path, folder: str) -> None:
    (root / folder).mkdir(exist_ok=True)
    (root / folder).rename(tmp_path / "outside")
    (root / folder).symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeFile, match="is a link"):
        ask(root)


@pytest.mark.parametrize("folder", ["collections", "findings", "index/worker_0", "end/worker_0", "attempts"])
def test_files_whose_names_are_no_keys_are_none_of_the_run(root: Path, folder: str) -> None:
    (root / folder).mkdir(exist_ok=True)
    for name in ("0000-\x1b[2J\n.json", "a\\b.jsonl", ".tmp-x.json"):
        (root / folder / name).write_text("{")
    ask(root)
    assert all("x1b" not in repr(key) for key in LocalSink(root).list(""))


def test_the_folder_of_a_run_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(root)
    ask(tmp_path / "latest")


def test_rules_write_and_delete_nothing_through_a_link(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("LossNotDecreasing.jsonl", "VanishingGradient.jsonl"):
        (outside / name).write_text("mine\n")
    (root / "findings/rule.jsonl").unlink()
    (root / "findings").rmdir()
    (root / "findings").symlink_to(outside)
    report = run_rules(root, ["loss_not_decreasing", "vanishing_gradient:threshold=1e9"], ended=True)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {
        "LossNotDecreasing.jsonl": "mine\n",
        "VanishingGradient.jsonl": "mine\n",
    }
    assert any("findings" in problem and "is a link" in problem for problem in report.problems)


def test_rules_replace_a_link_at_the_place_of_their_findings(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine\n")
    (root / "findings/AllZero.jsonl").symlink_to(mine)
    with pytest.raises(TdcoreError):
        create_trial(root).findings()
    run_rules(root, ["all_zero"], ended=True)
    assert mine.read_text() == "mine\n"
    assert not (root / "findings/AllZero.jsonl").is_symlink()


@pytest.mark.parametrize("folder", ["index", "index/worker_0"])
def test_a_sink_makes_no_folder_and_writes_no_file_through_a_link(tmp_path: Path, folder: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (root / folder).parent.mkdir(parents=True)
    (root / folder).symlink_to(outside)
    sink = LocalSink(root)
    for write in (
        lambda: sink.put("index/worker_0/a", [b"x"]),
        lambda: sink.put_new("index/worker_0/a", [b"x"]),
        lambda: sink.delete("index/worker_0/a"),
        lambda: sink.clean("index/worker_0/"),
    ):
        with pytest.raises(UnsafeFile, match="is a link") as caught:
            write()
        assert caught.value.kind == "denied"
    assert list(outside.iterdir()) == []


def test_a_put_replaces_a_link_and_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    sink = LocalSink(tmp_path / "run")
    sink.put("end/a", [b"x"])
    (tmp_path / "run/end/b").symlink_to(tmp_path / "mine")
    assert not sink.put_new("end/b", [b"y"])
    sink.put("end/b", [b"y"])
    assert sink.get("end/b") == b"y"
    assert (tmp_path / "mine").read_bytes() == b"mine"
