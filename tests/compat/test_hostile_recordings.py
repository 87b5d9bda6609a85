"""Damaged and hostile recordings of smdebug: an error of tdcore, or the values that were stored.

smdebug 1.0.34 stores no checksum of a message, so a changed bit of a value cannot be detected in its own
files. In the tests of changed bits, the recording has the checksums that the framing defines.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.compat import convert, open_smdebug
from tdcore.errors import RunCorrupt, TdcoreError
from tests.compat.recordings import expected, folder, frame, split
from tests.test_fuzz_run import attempt, copied, files_of, little_memory

_SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + length]
        at += length + 16


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose messages have checksums."""
    root = tmp_path_factory.mktemp("hostile") / "recording"
    shutil.copytree(folder("keras"), root)
    for path in root.rglob("*.tfevents"):
        path.write_bytes(b"".join(map(frame, messages(path.read_bytes()))))
    return root


def read_all(root: Path) -> None:
    """Read everything; each value must be the stored one, or the read raises an error of tdcore."""
    trial: td.Trial | None = attempt(lambda: open_smdebug(root))
    if trial is None:
        return
    for question in (trial.steps, trial.stats, trial.collections, trial.ends, trial.modes):
        attempt(question)
    for key, want in expected("keras").values.items():
        name, step, worker = split(key)
        found = attempt(lambda n=name, s=step, w=worker: trial.tensor(n).value(s, worker=w))  # type: ignore[misc]
        assert found is None or found.tobytes() == want.tobytes(), key


@_SETTINGS
@given(data=st.data())
def test_cut_files_give_errors_or_the_stored_values(
    pristine: Path, tmp_path: Path, data: st.DataObject
) -> None:
    root = copied(pristine, tmp_path)
    path = root / data.draw(st.sampled_from([each for each in files_of(root) if not each.endswith(".ts")]))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with little_memory():
        read_all(root)


@_SETTINGS
@given(data=st.data())
def test_changed_bits_give_errors_or_the_stored_values(
    pristine: Path, tmp_path: Path, data: st.DataObject
) -> None:
    root = copied(pristine, tmp_path)
    path = root / data.draw(st.sampled_from([each for each in files_of(root) if not each.endswith(".ts")]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(content))
    with little_memory():
        read_all(root)


@_SETTINGS
@given(data=st.data())
def test_messages_of_changed_bits_with_right_checksums_give_errors_or_arrays(
    pristine: Path, tmp_path: Path, data: st.DataObject
) -> None:
    root = copied(pristine, tmp_path)
    path = root / data.draw(st.sampled_from([each for each in files_of(root) if each.endswith("events")]))
    found = [bytearray(each) for each in messages(path.read_bytes())]
    message = found[data.draw(st.integers(0, len(found) - 1))]
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(b"".join(frame(bytes(each)) for each in found))
    with little_memory():
        trial: td.Trial | None = attempt(lambda: open_smdebug(root))
        if trial is None:
            return
        for name in trial.tensor_names():
            for step in trial.tensor(name).steps():
                attempt(lambda n=name, s=step: trial.tensor(n).value(s))  # type: ignore[misc]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "x", "../x", "a" * 70000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@_SETTINGS
@given(replacement=_JSON, data=st.data())
def test_documents_with_absurd_fields_give_errors_or_the_stored_values(
    pristine: Path, tmp_path: Path, replacement: Any, data: st.DataObject
) -> None:
    root = copied(pristine, tmp_path)
    path = root / data.draw(st.sampled_from([each for each in files_of(root) if each.endswith(".json")]))
    document = place = json.loads(path.read_text())
    while True:
        field = data.draw(
            st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place))))
        )
        inner = place[field]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[field] = replacement
    path.write_text(json.dumps(document))
    with little_memory():
        read_all(root)


def change_index(root: Path, **fields: Any) -> None:
    """Change fields of the last tensor in the index of step 0."""
    path = root / "index/000000000/000000000000_worker_0.json"
    document = json.loads(path.read_text())
    document["tensor_payload"][-1].update(fields)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 1 << 62}, "length is"),
        ({"length": (1 << 31) - 1}, "its length is"),
        ({"start_idx": 1 << 62}, "is cut short"),
        ({"start_idx": 0}, "the end of the tensor before"),
        ({"start_idx": 182, "length": 86}, "checksum of the length"),
        ({"length": 86}, "its length is"),
        ({"tensorname": "other"}, "its name is 'loss'"),
        ({"start_idx": -1}, "start_idx is"),
        ({"length": 1.5}, "length is"),
    ],
)
def test_an_index_with_impossible_places_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    root = copied(folder("keras"), tmp_path)
    change_index(root, **fields)
    with little_memory(), pytest.raises(RunCorrupt, match=message) as raised:
        open_smdebug(root).stats()
    assert "000000000000_worker_0" in str(raised.value)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"tensorname": "\ud800", "shape": [2]}, "tensorname"),
        ({"tensorname": "", "shape": [2]}, "tensorname"),
        ({"tensorname": "n" * 70_000, "shape": [2]}, "tensorname"),
        ({"tensorname": "n", "shape": [1 << 62, 1 << 62]}, "shape"),
        ({"tensorname": "n", "shape": [1] * 33}, "shape"),
        ({"tensorname": "n", "shape": [-1]}, "shape"),
    ],
)
def test_a_shape_with_an_impossible_name_or_size_is_refused(
    tmp_path: Path, entry: dict[str, Any], field: str
) -> None:
    root = copied(folder("keras"), tmp_path)
    path = root / "index/000000000/000000000000_worker_0.json"
    document = json.loads(path.read_text())
    document["shape_payload"] = [entry]
    path.write_text(json.dumps(document))
    with pytest.raises(RunCorrupt, match=rf"shape_payload 0.*{field} is"):
        open_smdebug(root).stats()


@pytest.mark.parametrize(
    "events",
    [
        "/etc/passwd",
        "../other/events/000000000000/000000000000_worker_0.tfevents",
        "events/../events/000000000000_worker_0.tfevents",
        "events/000000000002/000000000002_worker_0.tfevents",
        "events/000000000000/000000000000_worker_1.tfevents",
        "index/000000000/000000000000_worker_0.json",
    ],
)
def test_an_index_that_names_another_file_is_refused(tmp_path: Path, events: str) -> None:
    root = copied(folder("keras"), tmp_path)
    path = root / "index/000000000/000000000000_worker_0.json"
    document = json.loads(path.read_text())
    document["meta"]["event_file_name"] = events
    path.write_text(json.dumps(document))
    with pytest.raises(RunCorrupt, match="event_file_name"):
        open_smdebug(root)


@pytest.mark.parametrize("part", ["events/000000000002", "index/000000000", "collections/000000000"])
@pytest.mark.parametrize("what", ["link", "fifo", "folder link"])
def test_links_and_fifos_are_refused_without_waiting(tmp_path: Path, part: str, what: str) -> None:
    root = copied(folder("keras"), tmp_path)
    outside = tmp_path / "outside"
    (path,) = [each for each in (root / part).iterdir() if "000000000000" not in each.name][:1]
    if what == "folder link":
        shutil.move(root / part, outside)
        (root / part).symlink_to(outside)
    else:
        shutil.move(path, outside)
        path.symlink_to(outside) if what == "link" else os.mkfifo(path)
    with pytest.raises(TdcoreError, match=r"link|FIFO"):
        open_smdebug(root).stats()
    with pytest.raises(TdcoreError, match=r"link|FIFO"):
        convert(root, tmp_path / "new")


def test_a_sparse_file_of_a_terabyte_takes_no_memory(tmp_path: Path) -> None:
    for name, message in (("index/000000000/000000000002_worker_0.json", "maximum"), ("events", "checksum")):
        root = copied(folder("keras"), tmp_path)
        path = root / (name if name != "events" else "events/000000000000/000000000000_worker_0.tfevents")
        if name == "events":
            change_index(root, start_idx=1 << 30, length=1 << 30)
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        with little_memory(), pytest.raises(RunCorrupt, match=message):
            open_smdebug(root).stats()


def test_two_index_files_of_one_step_are_refused(tmp_path: Path) -> None:
    root = copied(folder("keras"), tmp_path)
    shutil.copytree(root / "index/000000000", root / "index/000000001")
    with pytest.raises(RunCorrupt, match="same step and worker"):
        open_smdebug(root)


def test_values_that_are_neither_true_nor_false_are_refused(tmp_path: Path) -> None:
    root = copied(folder("pytorch"), tmp_path)
    want = expected("pytorch").values
    (key,) = [key for key in want if key.startswith("extra/bool|") and key.endswith("worker_0")]
    step = split(key)[1]
    path = root / f"events/{step:012d}/{step:012d}_worker_0.tfevents"
    at = path.read_bytes().index(b'"\x02\x01\x00')
    with path.open("r+b") as file:
        file.seek(at + 2)
        file.write(b"\x07")
    with pytest.raises(RunCorrupt, match="neither true nor false"):
        open_smdebug(root)


def test_a_changed_value_is_detected_after_the_index_was_computed(tmp_path: Path) -> None:
    root = copied(folder("keras"), tmp_path)
    trial = open_smdebug(root)
    path = root / "events/000000000000/000000000000_worker_0.tfevents"
    stored = expected("keras").values["loss|0|worker_0"]
    at = path.read_bytes().index(np.asarray(stored).tobytes())
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    with pytest.raises(RunCorrupt, match="checksum"):
        trial.tensor("loss").value(0)
