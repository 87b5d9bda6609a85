"""The proxy makes exactly the requested faults, and none without a request."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.s3.plain import PlainClient, Reply
from tests.s3.proxy import KINDS, Fault, FaultProxy, chance
from tests.s3.servers import ROOT, StubServer
from tests.s3.stub import checksums
from tests.waiting import wait_until

DATA = random.Random(5).randbytes(300_000)


@pytest.fixture
def proxy(stub: StubServer) -> Iterator[FaultProxy]:
    with FaultProxy(stub.port) as made:
        yield made


@pytest.fixture
def client(stub: StubServer, proxy: FaultProxy) -> PlainClient:
    return replace(stub.client(), endpoint=proxy.endpoint, timeout_s=5.0)


def put(client: PlainClient, key: str = "k", data: bytes = DATA) -> Reply:
    """Put an object with a checksum, so that the service detects damage on the way."""
    headers = {
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
        "x-amz-checksum-crc32c": checksums.encoded("crc32c", data),
    }
    return client.request("PUT", key, headers=headers, body=data)


def test_without_faults_everything_passes(stub: StubServer, proxy: FaultProxy, client: PlainClient) -> None:
    assert put(client).status == 200
    assert client.objects() == stub.objects() == {"k": DATA}
    assert (proxy.counts["connections"], proxy.counts["requests"]) == (3, 3)
    assert proxy.counts["request_bytes"] > len(DATA)
    assert not set(proxy.counts) & set(KINDS)


def test_requests_of_one_connection_have_their_own_faults(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    connection = client.connect()
    proxy.next(Fault(kind="delay"), Fault(kind="reset", only="/third"))
    for path in ("/first", "/second"):
        connection.request("GET", path)
        assert connection.getresponse().read()
    connection.request("GET", "/third")
    with pytest.raises(ConnectionResetError):
        connection.getresponse()
    connection.close()
    assert (proxy.counts["connections"], proxy.counts["requests"]) == (1, 3)
    assert (proxy.counts["delay"], proxy.counts["reset"]) == (1, 1)


@pytest.mark.parametrize("after_bytes", [0, 100, 200_000])
def test_a_reset_of_a_request_is_a_reset_and_nothing_is_stored(
    stub: StubServer, proxy: FaultProxy, client: PlainClient, after_bytes: int
) -> None:
    proxy.next(Fault(kind="reset", after_bytes=after_bytes))
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        put(client)
    assert proxy.counts["reset"] == 1
    assert stub.objects() == {}


def test_a_reset_of_a_response_leaves_the_object_stored(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    proxy.next(Fault(kind="reset", direction="response"))
    with pytest.raises(ConnectionResetError):
        put(client)
    assert stub.objects() == {"k": DATA}


def test_a_closed_response_is_cut_short(stub: StubServer, proxy: FaultProxy, client: PlainClient) -> None:
    put(client)
    proxy.next(Fault(kind="close", direction="response", after_bytes=50_000))
    with pytest.raises(http.client.IncompleteRead) as caught:
        client.request("GET", "k")
    assert 0 < len(caught.value.partial) < 50_000
    assert DATA.startswith(caught.value.partial)


def test_a_request_closed_half_way_is_not_stored(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    for kind in ("close", "half_close"):
        proxy.next(Fault(kind=kind, after_bytes=100_000))
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            put(client)
        assert proxy.counts[kind] == 1
    assert stub.objects() == {}
    wait_until(lambda: [entry["note"] for entry in stub.log()] == ["cut within a body"] * 2)


@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_stall_lasts_until_the_client_gives_up(
    stub: StubServer, proxy: FaultProxy, client: PlainClient, direction: str
) -> None:
    proxy.next(Fault(kind="stall", direction=direction))  # type: ignore[arg-type]
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        put(replace(client, timeout_s=0.2))
    assert time.monotonic() - begin >= 0.2
    wait_until(lambda: proxy.counts["stall"] == 1)
    assert bool(stub.objects()) == (direction == "response")


@pytest.mark.parametrize("status", [500, 503])
def test_the_proxy_can_answer_itself(
    stub: StubServer, proxy: FaultProxy, client: PlainClient, status: int
) -> None:
    proxy.next(Fault(kind="answer", status=status))
    reply = put(client)
    assert (reply.status, reply.code) == (status, {500: "InternalError", 503: "SlowDown"}[status])
    assert stub.log() == []
    assert put(client).status == 200


@pytest.mark.parametrize("at", [0, 1, 299_999, 300_001])
def test_a_flipped_bit_of_a_request_is_refused_by_a_checksum(
    stub: StubServer, proxy: FaultProxy, client: PlainClient, at: int
) -> None:
    proxy.next(Fault(kind="flip", after_bytes=at))
    assert put(client).code == "BadDigest"
    assert proxy.counts["flip"] == 1
    assert stub.objects() == {}


def test_a_flipped_bit_without_a_checksum_is_stored(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    proxy.next(Fault(kind="flip", after_bytes=7))
    unsigned = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    assert client.request("PUT", "k", headers=unsigned, body=DATA).status == 200
    assert stub.objects() == {"k": DATA[:7] + bytes([DATA[7] ^ 1]) + DATA[8:]}


def test_a_flipped_bit_of_a_response_reaches_the_client(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    put(client)
    proxy.next(Fault(kind="flip", direction="response", after_bytes=250_000))
    got = client.request("GET", "k").body
    assert [place for place in range(len(DATA)) if got[place] != DATA[place]] == [250_000]


@pytest.mark.parametrize("direction", ["request", "response"])
def test_a_throttle_takes_the_time_it_says(
    stub: StubServer, proxy: FaultProxy, client: PlainClient, direction: str
) -> None:
    put(client)
    proxy.next(Fault(kind="throttle", direction=direction, bytes_per_s=2e6))  # type: ignore[arg-type]
    begin = time.monotonic()
    reply = put(client) if direction == "request" else client.request("GET", "k")
    assert time.monotonic() - begin >= 0.9 * len(DATA) / 2e6
    assert reply.status == 200
    assert stub.objects() == {"k": DATA}


def test_a_delay_takes_the_time_it_says(stub: StubServer, proxy: FaultProxy, client: PlainClient) -> None:
    proxy.next(Fault(kind="delay", seconds=0.1))
    begin = time.monotonic()
    assert put(client).status == 200
    assert time.monotonic() - begin >= 0.1


def test_while_it_is_down_connections_are_refused_and_old_ones_are_reset(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as old:
        old.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert old.recv(1 << 16).startswith(b"HTTP/1.1 403")
        proxy.down()
        with pytest.raises(ConnectionResetError):
            old.recv(1)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            put(client)
    proxy.up()
    assert put(client).status == 200


def test_connections_can_be_cut_without_an_outage(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    connection = client.connect()
    connection.request("GET", "/x")
    connection.getresponse().read()
    proxy.cut()
    with pytest.raises(ConnectionError):
        connection.request("GET", "/x")
    connection.close()
    assert put(client).status == 200


def test_a_server_that_is_not_there_resets() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with (
            FaultProxy(unused.getsockname()[1]) as proxy,
            pytest.raises(ConnectionResetError),  # the error may come at once, or only when the client reads
            socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client,
        ):
            client.recv(1)


def test_clients_can_speak_tls_to_the_proxy(stub: StubServer, tmp_path: Path) -> None:
    tls = pytest.importorskip("tests.s3.tls")
    made = tls.make_certificates(tmp_path)
    with FaultProxy(stub.port, certificate=str(made.certificate), certificate_key=str(made.key)) as proxy:
        client = replace(stub.client(), endpoint=proxy.endpoint, ca_bundle=str(made.ca))
        assert put(client).status == 200
        proxy.next(Fault(kind="reset", direction="response"))
        with pytest.raises(ConnectionResetError):
            put(client)
        proxy.next(Fault(kind="flip"))
        assert put(client).code == "BadDigest"


def test_the_same_seed_draws_the_same_faults() -> None:
    schedule = chance(0.3)
    first, second = ([schedule(numbers) for _ in range(200)] for numbers in map(random.Random, (3, 3)))
    assert first == second
    struck = [fault for fault in first if fault is not None]
    assert 30 < len(struck) < 90
    assert {fault.kind for fault in struck} == set(KINDS)


def test_in_a_storm_every_put_that_was_confirmed_is_stored_whole(
    stub: StubServer, proxy: FaultProxy, client: PlainClient
) -> None:
    proxy.plan(chance(0.5, most_seconds=0.01, slowest_bytes_per_s=5e6))
    numbers = random.Random(1)
    wanted = {f"k{n}": numbers.randbytes(numbers.randrange(40_000)) for n in range(60)}
    quick = replace(client, timeout_s=0.3)

    def until_done(key: str) -> None:
        for _ in range(50):
            with contextlib.suppress(OSError, http.client.HTTPException):
                if put(quick, key, wanted[key]).status == 200:
                    return
        raise AssertionError(f"{key} was never confirmed")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(until_done, wanted))
    assert stub.objects() == wanted
    assert sum(proxy.counts[kind] for kind in KINDS) > 20


def test_it_also_runs_in_a_process_of_its_own(stub: StubServer) -> None:
    command = [sys.executable, "-m", "tests.s3.proxy", "--target", str(stub.port)]
    command += ["--rate", "1", "--kinds", "answer"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        assert put(replace(stub.client(), endpoint=endpoint)).status >= 500
        process.kill()
    assert stub.log() == []
