"""The warning that a bucket cannot keep up, in trainings with a server on this machine."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tdcore as td
from tdcore.hooks import sink_load
from tdcore.hooks.pytorch import Hook
from tests.s3.fault import Fault
from tests.s3.proxy import FaultProxy
from tests.s3.servers import StubServer, stub_server

pytestmark = pytest.mark.full


_WIDTH, _STEPS, _SECONDS = 250, 150, 0.05  # 250 kB for each saved step, 20 steps per second
_LIMIT = 4e5  # bytes per second


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StubServer, FaultProxy]]:
    """A server, and a proxy in front of it; windows of the warning are short."""
    monkeypatch.setattr(sink_load, "_MIN_SECONDS", 1.0)
    monkeypatch.setattr(sink_load, "_SAMPLE_SECONDS", 0.05)
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spool"))
    with stub_server() as server, FaultProxy(server.port) as proxy:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server, proxy


def recover(proxy: FaultProxy) -> None:
    """End all limits and faults of the bucket."""
    proxy.plan(None)
    proxy.limit(None)


def train(
    bucket: tuple[StubServer, FaultProxy],
    name: str,
    *,
    interval: int,
) -> list[str]:
    """The notes about a slow sink of a training whose weights are saved every `interval` steps."""
    model = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)
    server, proxy = bucket
    url = server.url(name, endpoint_url=proxy.endpoint)
    hook = Hook(
        url,
        save_config=td.SaveConfig(save_interval=interval),
        include_collections=["weights"],
        ring=td.RingConfig(ring_bytes=1 << 21),
        flusher="thread",
    )
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        model(torch.ones(1, _WIDTH)).sum().backward()
        optimizer.step()
        time.sleep(_SECONDS)
    recover(proxy)
    hook.close()
    return list(td.create_trial(url).notes().get("slow_sink", []))


def test_a_training_with_a_slow_bucket_gets_one_warning_whose_proposal_fits(
    bucket: tuple[StubServer, FaultProxy], caplog: pytest.LogCaptureFixture
) -> None:
    _, proxy = bucket
    proxy.limit(_LIMIT)
    with caplog.at_level(logging.WARNING, "tdcore"):
        (note,) = train(bucket, "slow", interval=1)
    messages = [each.getMessage() for each in caplog.records]
    assert [each for each in messages if "spool" in each or "slow" in each] == [f"tdcore: {note}"]
    proposed = re.search(r"save_interval=(\d+) would fit", note)
    assert proposed is not None
    proxy.limit(_LIMIT)
    assert train(bucket, "fits", interval=int(proposed[1])) == []


@pytest.mark.parametrize("fault", ["none", "outage"])
def test_a_training_with_a_bucket_that_keeps_up_gets_no_warning(
    fault: str, bucket: tuple[StubServer, FaultProxy]
) -> None:
    _, proxy = bucket
    if fault == "outage":
        end = time.monotonic() + 4
        proxy.plan(lambda numbers: Fault(kind="answer") if end - 3 < time.monotonic() < end else None)
    assert train(bucket, "good", interval=8) == []
