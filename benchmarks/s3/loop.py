"""Question "loop": iterations of a training loop that holds the GIL most of the time, while data is uploaded.

An iteration is about 1 ms of small operations of torch and NumPy, and Python code. Between iterations, a
tensor of 4 MB is handed over when it is due. The time of this is reported separately ("handing over"), so
that the times of iterations show only the effect of concurrent uploads on the loop.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.s3.peers import Target, boto3_client
from benchmarks.s3.sessions import Capturing, open_session, until_ready

_TENSOR = 1 << 20  # float32: 4 MB
_TENSORS_PER_OBJECT = 4
_LEAD_IN_SECONDS = 0.3
_ROUNDS = 4  # repeats of the small operations: about 1 ms

Where = Literal["process", "thread"]
WAYS: dict[str, tuple[Where, str] | None] = {
    "no uploads": None,
    "tdcore, folder": ("process", ""),
    "tdcore, obstore": ("process", "obstore"),
    "tdcore, aiobotocore": ("process", "aiobotocore"),
    "tdcore in a thread, obstore": ("thread", "obstore"),
    "tdcore in a thread, aiobotocore": ("thread", "aiobotocore"),
    "boto3 in a thread": None,
}


@dataclass(frozen=True, kw_only=True)
class LoopJob:
    """One measurement. way: one of WAYS. url: a run in the bucket. folder: a run on this machine."""

    way: str
    url: str
    folder: str
    prefix: str
    seconds: float
    bytes_per_second: float
    endpoint: str
    bucket: str


class Nothing:
    """Ignores the tensors, as the baseline."""

    def offer(self) -> None:
        """Accept a tensor."""

    def sent(self) -> int:
        """Number of acknowledged bytes."""
        return 0

    def close(self) -> dict[str, float]:
        """End the uploads. Returns additional results."""
        return {"drops": 0}


class WithTdcore(Nothing):
    """A session with its flusher in a process or a thread."""

    def __init__(self, place: str, where: Where) -> None:
        self._session = open_session(place, flusher=where)
        until_ready(self._session)
        values = torch.randn(_TENSOR, generator=torch.Generator().manual_seed(0))
        self._capturing = Capturing(self._session, [values])

    def offer(self) -> None:
        self._capturing.capture()

    def sent(self) -> int:
        return self._session.progress().bytes

    def close(self) -> dict[str, float]:
        self._session.close()
        return {"drops": self._session.counters().dropped_tensors}


class ByHand(Nothing):
    """Upload code by hand: copies go to a queue, and a thread uploads four of them as one object."""

    def __init__(self, job: LoopJob) -> None:
        target = Target(endpoint=job.endpoint, bucket=job.bucket, ca_bundle=None, concurrency=1)
        self._client = boto3_client(target)
        self._bucket, self._prefix = job.bucket, job.prefix
        self._values = torch.randn(_TENSOR, generator=torch.Generator().manual_seed(0))
        self._queue: queue.Queue[Any] = queue.Queue()
        self._sent = 0
        self._put(0, [self._values.numpy()])  # connect before the measurement
        self._thread = threading.Thread(target=self._upload)
        self._thread.start()

    def offer(self) -> None:
        self._queue.put(self._values.detach().cpu().clone().numpy())

    def sent(self) -> int:
        return self._sent

    def close(self) -> dict[str, float]:
        self._queue.put(None)
        self._thread.join()
        return super().close()

    def _upload(self) -> None:
        number, some = 1, []
        while (tensor := self._queue.get()) is not None:
            some.append(tensor)
            if len(some) == _TENSORS_PER_OBJECT:
                self._put(number, some)
                number, some = number + 1, []

    def _put(self, number: int, tensors: list[Any]) -> None:
        body = b"".join(tensors)
        self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{number:06}", Body=body)
        self._sent += len(body)


def make_work() -> Callable[[], float]:
    """One iteration: a small network and its gradient, small arrays, and lists and dictionaries."""
    torch.manual_seed(0)
    weight = torch.randn(32, 32, requires_grad=True)
    data = torch.randn(8, 32)
    numbers = np.random.default_rng(0).standard_normal(512)
    metrics: dict[str, float] = {}

    def iteration() -> float:
        for round_ in range(_ROUNDS):
            loss = (data @ weight).relu().square().mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(gradient, alpha=0.001)
            metrics[f"mean/{round_}"] = float(np.abs(numbers * 1.5 + round_).mean())
            sorted(metrics.items(), key=lambda item: item[1])
        return loss.item()

    return iteration


def measure(job: LoopJob) -> dict[str, float]:
    """Run the measurement in its own process."""
    torch.set_num_threads(1)
    iteration, taker = make_work(), _taker(job)
    times: list[float] = []
    handing: list[float] = []
    given, already = 0, taker.sent()
    start = now = time.perf_counter()
    end = start + _LEAD_IN_SECONDS + job.seconds
    while now < end:
        if given <= (now - start) * job.bytes_per_second and job.way != "no uploads":
            taker.offer()
            given += 4 * _TENSOR
            before, now = now, time.perf_counter()
            handing.append(now - before)
        iteration()
        before, now = now, time.perf_counter()
        if now > start + _LEAD_IN_SECONDS:
            times.append(now - before)
    sent = taker.sent() - already
    told = taker.close()
    return {
        **_percentiles("", times),
        **_percentiles("handing_", handing or [0.0]),
        "iterations": len(times),
        "given_mb_per_s": given / (now - start) / 1e6,
        "sent_mb_per_s": sent / (now - start) / 1e6,
        **told,
    }


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    values = np.asarray(seconds) * 1e3
    p50, p99, p999 = np.percentile(values, [50, 99, 99.9])
    return {
        f"{name}p50_ms": float(p50),
        f"{name}p99_ms": float(p99),
        f"{name}p999_ms": float(p999),
        f"{name}max_ms": float(values.max()),
        f"{name}mean_ms": float(values.mean()),
    }


def _taker(job: LoopJob) -> Nothing:
    if job.way == "boto3 in a thread":
        return ByHand(job)
    way = WAYS[job.way]
    if way is None:
        return Nothing()
    where, engine = way
    return WithTdcore(f"{job.url}&engine={engine}" if engine else job.folder, where)
