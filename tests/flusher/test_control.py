"""The flusher passes requests in control/ to the training: each once, in order, whatever their content."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tdcore import _core
from tdcore.flusher import control_requests
from tdcore.flusher.control_requests import ControlRequests
from tdcore.format.control import MAX_CAPTURE_REQUESTS
from tdcore.format.layout import capture_key, stop_key
from tdcore.sinks import MemorySink, SinkError
from tests.flushing import QUICK, FlusherThread, Trainer
from tests.waiting import wait_until


class Far(MemorySink):
    """A sink that counts its requests, and refuses them on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refuses = False

    def get(self, key: str) -> bytes:
        self.asked.append(key)
        if self.refuses:
            raise SinkError("away")
        return super().get(key)


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


def requests(trainer: Trainer, sink: MemorySink, attempt: int = 0) -> Callable[[], None]:
    """Return a function that polls the requests once, one second after the last call."""
    times = iter(range(10_000))
    consumer = _core.Consumer(trainer.ring.fd)
    found = ControlRequests(sink, attempt, QUICK, consumer)
    return lambda: found.poll(float(next(times)))


def test_requests_come_one_after_the_other_in_the_order_of_their_numbers(trainer: Trainer) -> None:
    sink = Far()
    look = requests(trainer, sink)
    for number in (1, 0):
        sink.put(capture_key(0, number), [f"request {number}".encode()])
    look()
    look()
    assert trainer.ring.take_request() == "request 0"
    assert trainer.ring.take_request() is None
    look()
    assert trainer.ring.take_request() == "request 1"
    look()
    assert trainer.ring.take_request() is None


def test_a_look_asks_for_two_keys_and_for_one_after_the_stop(trainer: Trainer) -> None:
    sink = Far()
    look = requests(trainer, sink, attempt=3)
    look()
    assert sink.asked == [stop_key(3), capture_key(3, 0)]
    sink.put(stop_key(3), [b'{"reason": "enough"}'])
    look()
    sink.asked.clear()
    look()
    assert sink.asked == [capture_key(3, 0)]
    assert json.loads(str(trainer.ring.stop_request())) == {"reason": "enough"}


def test_while_a_request_waits_to_be_taken_the_sink_is_left_alone(trainer: Trainer) -> None:
    sink = Far()
    look = requests(trainer, sink)
    for number in range(3):
        sink.put(capture_key(0, number), [b"{}"])
    for _ in range(9):
        look()
    assert [key for key in sink.asked if "capture" in key] == [capture_key(0, 0), capture_key(0, 1)]


def test_a_restarted_flusher_goes_on_with_the_next_number(trainer: Trainer) -> None:
    sink = Far()
    sink.put(capture_key(0, 0), [b"first"])
    requests(trainer, sink)()
    sink.put(capture_key(0, 1), [b"second"])
    again = requests(trainer, sink)
    assert trainer.ring.take_request() == "first"
    again()
    assert trainer.ring.take_request() == "second"
    assert sink.asked[-1] == capture_key(0, 1)


def test_a_sink_that_refuses_is_asked_again(trainer: Trainer) -> None:
    sink = Far()
    look = requests(trainer, sink)
    sink.put(capture_key(0, 0), [b"{}"])
    sink.refuses = True
    look()
    assert not trainer.ring.was_asked()
    sink.refuses = False
    look()
    assert trainer.ring.take_request() == "{}"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", '{"too_large": 0}'),
        (b"x" * 8193, '{"too_large": 8193}'),
        (b"\xff" * 8000, '{"too_large": 8000}'),  # three bytes each, once replaced
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 8192, "x" * 8192),
    ],
    ids=["empty", "large", "large as text", "not UTF-8", "just fits"],
)
def test_whatever_a_file_holds_is_passed_on_as_text_that_fits(
    trainer: Trainer, data: bytes, text: str
) -> None:
    sink = Far()
    sink.put(capture_key(0, 0), [data])
    requests(trainer, sink)()
    assert trainer.ring.take_request() == text


def test_after_so_many_requests_no_more_are_looked_for(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_requests, "MAX_CAPTURE_REQUESTS", 2)
    assert MAX_CAPTURE_REQUESTS == 100
    sink = Far()
    look = requests(trainer, sink)
    for number in range(3):
        sink.put(capture_key(0, number), [b"{}"])
    taken = []
    for _ in range(9):
        look()
        taken.append(trainer.ring.take_request())
    assert taken.count("{}") == 2
    assert capture_key(0, 2) not in sink.asked


def test_every_worker_of_an_attempt_gets_each_request() -> None:
    sink = MemorySink()
    trainers = [Trainer(), Trainer()]
    flushers = [FlusherThread(trainer, sink) for trainer in trainers]
    sink.put(capture_key(0, 0), [b'{"steps": 3}'])
    sink.put(capture_key(1, 0), [b"of another attempt"])
    for trainer in trainers:
        wait_until(trainer.ring.was_asked)
        assert trainer.ring.take_request() == '{"steps": 3}'
    time.sleep(0.02)
    for trainer, flusher in zip(trainers, flushers, strict=True):
        assert trainer.ring.take_request() is None
        trainer.ring.set_closing()
        assert flusher.join()


def test_a_request_in_a_bucket_reaches_the_trainer(trainer: Trainer) -> None:
    """A bucket answers later, so the sink returns futures."""
    from concurrent.futures import Future

    class Pipelined(Far):
        trouble, waiting = "", 0

        def __init__(self) -> None:
            super().__init__()
            self.futures: list[Future[bytes]] = []

        def start_get(self, key: str) -> Future[bytes]:
            self.asked.append(key)
            self.futures.append(Future())
            return self.futures[-1]

        def _unused(self, *_: Any) -> Any:
            raise NotImplementedError

        left_behind = relieve = report = start = start_over = put_straight = start_delete = _unused
        upload_totals = _unused

    sink = Pipelined()
    look = requests(trainer, sink)
    for _ in range(3):
        look()
    assert sink.asked == [stop_key(0), capture_key(0, 0)]
    sink.futures[0].set_exception(SinkError("nothing there"))
    sink.futures[1].set_result(b"{}")
    look()
    assert trainer.ring.take_request() == "{}"
    for _ in range(3):
        look()
    assert sink.asked[2:] == [stop_key(0), capture_key(0, 1)]
