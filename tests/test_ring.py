"""The ring in Python: the trainer's side, the flusher's side, segments, and files.

The protocol itself is tested in tests/cpp (test_ring, test_segment, model_ring, stress_ring).
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import safetensors.numpy
import torch

from tdcore import _core

ROW: np.dtype[Any] = np.dtype(cast("Any", _core.ROW_DTYPE))
PAYLOAD, STATISTICS = 1, 2
EVERYTHING = (1 << 40, 1 << 20)  # max_bytes, max_records
Array = npt.NDArray[Any]


def new_ring(*, data_bytes: int = 1 << 22, slots: int = 64, policy: str = "drop") -> _core.Ring:
    return _core.Ring(data_bytes=data_bytes, slots=slots, policy=policy, block_timeout_seconds=0.01)


def capture(
    ring: _core.Ring, tensors: dict[str, object], *, step: int = 1, call: int = 0, flags: int = PAYLOAD
) -> int:
    ids = np.array([ring.intern(name, 1) for name in tensors], np.uint32)
    return int(ring.capture(list(tensors.values()), ids, bytes([flags]) * len(tensors), step, 1, step, call))


def rows_of(drained: _core.Drained) -> Array:
    return np.frombuffer(drained.rows, ROW)


def write_segment(consumer: _core.Consumer, drained: _core.Drained, path: Path) -> Array:
    size = drained.plan_segment([name for name, *_ in consumer.names(0)])
    _core.write_file(str(path), drained.segment_parts())
    assert path.stat().st_size == size
    rows: Array = rows_of(drained).copy()
    consumer.release(drained)
    return rows


def run_python(code: str, *arguments: str, fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, pass_fds=fds, capture_output=True, text=True, timeout=120, check=False)


# ---- segments


def test_a_segment_opens_with_the_safetensors_library_and_holds_the_tensors(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    tensors: dict[str, object] = {
        "small": generator.normal(size=(3, 5)).astype(np.float32),
        "scalar": np.float64(2.5),
        "large": generator.normal(size=(300, 500)).astype(np.float32),
        "odd": np.arange(7, dtype=np.uint8),
        "empty": np.zeros((0, 4), np.int16),
        "flags": np.array([True, False]),
        'quote " back \\ line \n ü': np.arange(3),
    }
    ring = new_ring(data_bytes=1 << 24)
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, tensors, step=12) == 0
    assert capture(ring, {"later": np.arange(100_000)}, step=13) == 0
    rows = write_segment(consumer, consumer.drain(*EVERYTHING), tmp_path / "segment.safetensors")
    saved = safetensors.numpy.load_file(tmp_path / "segment.safetensors")
    expected = {f"{name}@12": np.asarray(value) for name, value in tensors.items()}
    expected["later@13"] = np.arange(100_000)
    assert {key for key in saved if not key.startswith("__pad__")} == set(expected)
    for key, value in expected.items():
        np.testing.assert_array_equal(saved[key], value)
        assert saved[key].dtype == value.dtype
    content = (tmp_path / "segment.safetensors").read_bytes()
    for row in rows:
        start, size = int(row["segment_offset"]), int(row["payload_bytes"])
        assert _core.crc32c(content[start : start + size]) == row["crc32c"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "complex64"])
def test_element_types_that_numpy_lacks_are_stored_under_their_own_names(tmp_path: Path, dtype: str) -> None:
    tensor = torch.arange(10).to(getattr(torch, dtype)).reshape(2, 5)
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, {"t": tensor}) == 0
    write_segment(consumer, consumer.drain(*EVERYTHING), tmp_path / "segment.safetensors")
    with safetensors.safe_open(tmp_path / "segment.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("t@1").view(torch.uint8), tensor.view(torch.uint8))


def test_complex128_is_stored_as_pairs_of_float64(tmp_path: Path) -> None:
    value = np.array([1 + 2j, 3 - 4j])
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, {"z": value}) == 0
    write_segment(consumer, consumer.drain(*EVERYTHING), tmp_path / "segment.safetensors")
    saved = safetensors.numpy.load_file(tmp_path / "segment.safetensors")["z@1"]
    np.testing.assert_array_equal(saved, value.view(np.float64).reshape(2, 2))


def test_a_tensor_larger_than_a_record_is_stored_in_parts(tmp_path: Path) -> None:
    value = np.arange(1 << 19, dtype=np.float32).reshape(512, 1024)  # 2 MiB; records are at most 512 KiB
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, {"big": value}, call=3) == 0
    rows = write_segment(consumer, consumer.drain(*EVERYTHING), tmp_path / "segment.safetensors")
    saved = safetensors.numpy.load_file(tmp_path / "segment.safetensors")
    parts = [saved[f"big@1:3+{part}"] for part in range(len(rows))]
    np.testing.assert_array_equal(np.concatenate(parts), value.ravel())
    assert len(rows) > 4
    assert [tuple(row["shape"][: row["ndim"]]) for row in rows] == [(512, 1024)] * len(rows)


def test_the_same_tensor_twice_in_a_step_gets_keys_of_its_own(tmp_path: Path) -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    for value in (1.0, 2.0, 3.0):
        assert capture(ring, {"loss": np.float64(value)}) == 0
    write_segment(consumer, consumer.drain(*EVERYTHING), tmp_path / "segment.safetensors")
    saved = safetensors.numpy.load_file(tmp_path / "segment.safetensors")
    assert [float(saved[key]) for key in ("loss@1", "loss@1~2", "loss@1~3")] == [1.0, 2.0, 3.0]


def test_statistics_alone_make_rows_and_no_segment() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, {"a": np.arange(5.0)}, flags=STATISTICS) == 0
    drained = consumer.drain(*EVERYTHING)
    assert drained.plan_segment(["a"]) == 0
    assert drained.segment_parts() == []
    (row,) = rows_of(drained)
    assert row["stats"]["mean"] == 2.0
    assert row["segment_offset"] == _core.NO_PAYLOAD


def test_a_truncated_segment_is_refused_by_the_safetensors_library(tmp_path: Path) -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, {"a": np.arange(1000)}) == 0
    path = tmp_path / "segment.safetensors"
    write_segment(consumer, consumer.drain(*EVERYTHING), path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.numpy.load_file(path)


def test_parts_of_a_segment_live_as_long_as_they_are_held() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    value = np.arange(200_000, dtype=np.int64)
    assert value.nbytes > ring.max_record_bytes
    assert capture(ring, {"a": value}) == 0
    drained = consumer.drain(*EVERYTHING)
    drained.plan_segment(["a"])
    parts = drained.segment_parts()
    expected = [bytes(part) for part in parts]
    del consumer, drained
    ring.close()
    gc.collect()
    assert [bytes(part) for part in parts] == expected
    assert len(parts) > 2  # the large records are in the ring


# ---- both sides


def test_a_drain_can_be_released_once_and_not_planned_after() -> None:
    ring, another = new_ring(), new_ring()
    consumer, other = _core.Consumer(ring.fd), _core.Consumer(another.fd)
    assert capture(ring, {"a": np.arange(5)}) == 0
    drained = consumer.drain(*EVERYTHING)
    with pytest.raises(ValueError, match="another Consumer"):
        other.release(drained)
    consumer.release(drained)
    with pytest.raises(ValueError, match="already"):
        consumer.release(drained)
    with pytest.raises(ValueError, match="before release"):
        drained.plan_segment([])
    with pytest.raises(ValueError, match="before release"):
        drained.segment_parts()


def test_drains_are_released_in_order_and_may_overlap() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    for step in range(4):
        assert capture(ring, {"a": np.arange(5)}, step=step) == 0
    first, second = consumer.drain(1, 2), consumer.drain(1 << 20, 2)
    assert (first.first_ticket, first.end_ticket, second.end_ticket) == (0, 1, 3)
    with pytest.raises(RuntimeError, match="in order"):
        consumer.release(second)
    consumer.release(first)
    consumer.release(second)
    assert (consumer.head_ticket, consumer.pending_records) == (3, 1)
    assert consumer.fill == 1 / 64  # one of 64 slots


def test_a_new_consumer_reads_what_the_last_one_did_not_release() -> None:
    ring = new_ring()
    first = _core.Consumer(ring.fd)
    for step in range(3):
        assert capture(ring, {f"t{step}": np.arange(5)}, step=step) == 0
    first.release(first.drain(1, 1))
    lost = first.drain(*EVERYTHING)
    second = _core.Consumer(ring.fd)
    again = second.drain(*EVERYTHING)
    assert (second.epoch, again.first_ticket, again.end_ticket) == (2, 1, 3)
    assert [int(step) for step in rows_of(again)["step"]] == [1, 2]
    assert second.names(0) == [("t0", 1, "", ""), ("t1", 1, "", ""), ("t2", 1, "", "")]
    assert second.names(2) == [("t2", 1, "", "")]
    second.release(again)
    with pytest.raises(RuntimeError, match="another consumer"):
        first.release(lost)


CONSUME = """
import os, signal, sys
import numpy as np
from tdcore import _core
consumer = _core.Consumer(int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    drained = consumer.drain(1, 1)
    print(*np.frombuffer(drained.rows, np.dtype(_core.ROW_DTYPE))["step"].tolist(), flush=True)
    consumer.release(drained)
consumer.drain(1, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_flusher_process_loses_and_repeats_nothing_it_released() -> None:
    ring = new_ring()
    for step in range(10):
        assert capture(ring, {"a": np.arange(5)}, step=step) == 0
    steps: list[int] = []
    for count in (3, 1, 4):
        ended = run_python(CONSUME, str(ring.fd), str(count), fds=(ring.fd,))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        steps += [int(line) for line in ended.stdout.split()]
    assert steps == list(range(8))
    assert ring.progress()["epoch"] == 3
    assert ring.progress()["pending_records"] == 2


TORN = """
import os, signal, sys, threading
import numpy as np
from tdcore import _core
ring = _core.Ring(data_bytes=1 << 28, slots=64, policy="block")
ids, flags = np.array([ring.intern("t", 1)], np.uint32), bytes([1])
small, large = np.arange(5), np.ones(3 << 20)
ring.capture([small], ids, flags, 0, 1, 0)
def go_on():
    for step in range(1, 1000):
        ring.capture([large], ids, flags, step, 1, step)
threading.Thread(target=go_on, daemon=True).start()
print(os.getpid(), ring.fd, flush=True)
threading.Event().wait()
"""


def test_what_a_killed_trainer_committed_is_read_whole() -> None:
    trainer = subprocess.Popen([sys.executable, "-c", TORN], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pid, number = (int(word) for word in trainer.stdout.readline().split())
    fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    consumer = _core.Consumer(fd)
    os.close(fd)
    while consumer.pending_records < 2:  # the large captures have begun
        assert trainer.poll() is None
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    drained = consumer.drain(*EVERYTHING, producer_dead=True)
    rows = rows_of(drained)
    assert drained.torn <= 1
    assert drained.records == len(rows) >= 1
    drained.plan_segment(["t"])
    content = b"".join(bytes(part) for part in drained.segment_parts())
    one = np.float64(1.0).tobytes()
    for row in rows[1:]:
        start, size = int(row["segment_offset"]), int(row["payload_bytes"])
        assert content[start : start + size] == one * (size // 8)
    consumer.release(drained)
    assert consumer.pending_records == 0
    assert consumer.counters()["drops"].get("torn", {"tensors": 0})["tensors"] == drained.torn


def test_a_forked_child_can_do_nothing_and_harms_nothing() -> None:
    code = """
import gc, os
import numpy as np
from tdcore import _core
ring = _core.Ring(data_bytes=1 << 22, slots=64, policy="block", block_timeout_seconds=1000.0)
consumer = _core.Consumer(ring.fd)
ring.prefault()
ids = np.array([ring.intern("t", 1)], np.uint32)
pid = os.fork()
if pid == 0:
    nothing = [
        not ring.usable,
        ring.capture([np.ones(5)], ids, bytes([1]), 1, 1, 1) == 0,
        ring.intern("u", 1) == -1,
        not ring.put_document("a", b""),
        not ring.mark_step_end(0),
        ring.stop_request() is None,
        ring.counters()["captures"] == 0,
        consumer.drain(1, 1).records == 0,
        consumer.names(0) == [],
        consumer.counters()["captures"] == 0,
    ]
    ring.set_closing()
    consumer.report(records=1, bytes=1, rows=1, last_step=1)
    ring.close()
    del ring, consumer
    gc.collect()
    os._exit(0 if all(nothing) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert ring.usable and not consumer.closing and ring.progress()["records"] == 0
assert ring.capture([np.ones(5)], ids, bytes([1]), 1, 1, 1) == 0
assert consumer.drain(1, 1).records == 1
"""
    ended = run_python(code)
    assert ended.returncode == 0, ended.stderr


def test_an_interpreter_may_end_while_pages_are_being_touched() -> None:
    code = "from tdcore import _core; r = _core.Ring(data_bytes=1 << 29, slots=64); r.prefault()"
    ended = run_python(code)
    assert ended.returncode == 0, ended.stderr


def test_a_closed_ring_does_nothing_and_keeps_its_totals() -> None:
    ring = new_ring()
    assert capture(ring, {"a": np.arange(5)}) == 0
    totals = ring.counters()
    ring.close()
    ring.close()
    assert (ring.fd, ring.usable) == (-1, False)
    assert ring.intern("a", 1) == -1
    assert ring.capture([np.arange(5)], np.zeros(1, np.uint32), bytes([PAYLOAD]), 1, 1, 1) == 0
    assert not ring.put_document("a", b"")
    assert not ring.mark_step_end(0)
    assert ring.counters() == totals
    assert totals["tensors"] == 1


def test_documents_travel_beside_the_records() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert ring.put_document("collections.json", b'{"a": 1}')
    assert ring.put_document("ü", b"")
    assert not ring.put_document("big", bytes(ring.max_record_bytes))
    drained = consumer.drain(*EVERYTHING)
    assert drained.documents == [("collections.json", b'{"a": 1}'), ("ü", b"")]
    assert (drained.records, drained.plan_segment([])) == (2, 0)


def test_the_end_of_a_step_is_a_record_without_rows() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, {"a": np.arange(5)}) == 0
    assert ring.mark_step_end(0)
    drained = consumer.drain(*EVERYTHING)
    rows = len(drained.rows) // _core.ROW_DTYPE["itemsize"]
    assert (drained.records, rows, drained.end_ticket - drained.first_ticket) == (2, 1, 2)
    assert (drained.torn, drained.documents) == (0, [])
    totals = ring.counters()
    assert (totals["captures"], totals["tensors"], totals["drops"]) == (1, 1, {})


def test_marks_say_up_to_which_step_all_is_there() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert capture(ring, {"a": np.arange(5)}) == 0
    assert consumer.drain(*EVERYTHING).whole_step is None
    assert ring.mark_step_end(-1)
    assert consumer.drain(*EVERYTHING).whole_step == -1
    assert ring.mark_step_end(3_000_000_000)
    assert ring.mark_step_end(2)
    assert consumer.drain(*EVERYTHING).whole_step == 3_000_000_000


def test_the_end_of_a_step_does_not_wait_for_room() -> None:
    ring = new_ring(policy="block")
    while ring.mark_step_end(0):
        pass
    assert ring.counters()["drops"] == {}


def test_reports_and_requests_reach_the_trainer() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert ring.progress()["error"] is None
    assert ring.stop_request() is None
    consumer.report(records=2, bytes=30, rows=4, last_step=7)
    consumer.report(records=1, bytes=3, rows=1, last_step=9, error="disk full")
    consumer.count_drop(10, 2, 64)
    consumer.request_stop(json.dumps({"rule": "vanishing_gradient"}))
    progress = ring.progress()
    assert [progress[key] for key in ("records", "bytes", "rows", "last_step")] == [3, 33, 5, 9]
    assert (progress["errors"], progress["error"]) == (1, "disk full")
    assert progress["heartbeat_ns"] > 0
    consumer.report(records=0, bytes=0, rows=0, last_step=0, error="")  # the sink works again
    assert (ring.progress()["errors"], ring.progress()["error"]) == (1, None)
    assert json.loads(ring.stop_request() or "") == {"rule": "vanishing_gradient"}
    assert ring.counters()["drops"] == {"io_error": {"tensors": 2, "bytes": 64}}
    assert ring.counters() == consumer.counters()
    with pytest.raises(ValueError, match="DROP_REASONS"):
        consumer.count_drop(0, 1, 1)
    with pytest.raises(ValueError, match="8192"):
        consumer.request_stop("x" * 9000)


def test_other_requests_reach_the_trainer_one_after_the_other() -> None:
    ring = new_ring()
    consumer = _core.Consumer(ring.fd)
    assert (ring.was_asked(), ring.take_request()) == (False, None)
    assert consumer.try_post_request('{"steps": 3, "tensors": ["ü"]}')
    assert not consumer.try_post_request("{}")
    assert ring.was_asked()
    assert json.loads(ring.take_request()) == {"steps": 3, "tensors": ["ü"]}
    assert (ring.was_asked(), ring.take_request()) == (False, None)
    later = _core.Consumer(ring.fd)
    assert later.requests_posted == 1
    assert later.try_post_request("{}")
    assert (later.requests_posted, ring.take_request()) == (2, "{}")
    for text in ("", "x" * 9000):
        with pytest.raises(ValueError, match="8192"):
            later.try_post_request(text)
    ring.close()
    assert (ring.was_asked(), ring.take_request()) == (False, None)


def test_a_closing_ring_takes_no_more_records() -> None:
    ring = new_ring(policy="block")
    consumer = _core.Consumer(ring.fd)
    seen = [consumer.closing]
    ring.set_closing()
    seen.append(consumer.closing)
    assert seen == [False, True]
    assert capture(ring, {"a": np.arange(5)}) == 1
    assert ring.counters()["drops"]["ring_full"]["tensors"] == 1


def test_a_full_table_of_names_says_so() -> None:
    ring = _core.Ring(data_bytes=1 << 20, slots=16, names_bytes=4096)
    ids = [ring.intern(f"{number:0200}", 1) for number in range(30)]
    assert ids[0] == 0
    assert ids[-1] == -1
    assert ring.intern(f"{0:0200}", 1) == 0


def test_wrong_arguments_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="power of two from 65536 to 68719476736, got 100"):
        _core.Ring(data_bytes=100, slots=64)
    with pytest.raises(ValueError, match="'block', 'drop' or 'degrade', got 'wait'"):
        _core.Ring(data_bytes=1 << 16, slots=64, policy="wait")
    with pytest.raises(ValueError, match="block_timeout_seconds"):
        _core.Ring(data_bytes=1 << 16, slots=64, block_timeout_seconds=float("nan"))
    with pytest.raises(OSError, match="descriptor"):
        _core.Consumer(-1)
    with open(os.devnull, "rb") as file, pytest.raises(ValueError, match="not a tdcore ring"):
        _core.Consumer(file.fileno())


# ---- files


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_holds_its_parts_whatever_their_alignment(tmp_path: Path, direct: bool) -> None:
    block = np.random.default_rng(2).integers(0, 256, 3 << 20, np.uint8)
    parts = [b"header", block, block[1:5000], b"", block[: 1 << 20], b"tail"]
    _core.write_file(tmp_path / "file", parts, direct=direct, sync=False)
    assert (tmp_path / "file").read_bytes() == b"".join(bytes(part) for part in parts)


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _core.write_file(str(path), [b"abc"])
    with pytest.raises(FileExistsError) as raised:
        _core.write_file(str(path), [b"xyz"])
    assert (raised.value.errno, raised.value.filename) == (errno.EEXIST, str(path))
    assert path.read_bytes() == b"abc"


def test_a_file_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from tdcore import _core
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    _core.write_file(sys.argv[1], [bytes(1 << 19)] * 4, direct=sys.argv[2] == "direct")
except OSError as error:
    print(error.errno)
"""
    for direct in ("direct", "buffered"):
        ended = run_python(code, str(tmp_path / "file"), direct)
        assert ended.stdout.strip() == str(errno.EFBIG), ended.stderr
        assert list(tmp_path.iterdir()) == []


def test_parts_that_are_no_buffers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        _core.write_file(str(tmp_path / "file"), [b"a", cast("bytes", 5)])
    assert list(tmp_path.iterdir()) == []
