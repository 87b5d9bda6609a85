"""The servers start, store objects, and leave no process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.s3.fixtures import Place
from tests.s3.servers import ROOT, Server, StubServer, moto_server, rclone_server, stub_server
from tests.waiting import wait_until


def test_every_server_keeps_objects_and_lists_them(s3_place: Place) -> None:
    client = s3_place.server.client()
    for name in ("a b/c+d.txt", "x/y", "x/z\u00e9"):
        assert client.request("PUT", f"{s3_place.prefix}/{name}", body=name.encode()).status == 200
    assert s3_place.objects() == {name: name.encode() for name in ("a b/c+d.txt", "x/y", "x/z\u00e9")}
    assert client.objects(f"{s3_place.prefix}/x/") == {
        f"{s3_place.prefix}/{name}": name.encode() for name in ("x/y", "x/z\u00e9")
    }
    assert client.request("GET", f"{s3_place.prefix}/none").code == "NoSuchKey"


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("make", [moto_server, rclone_server, stub_server])
def test_servers_speak_tls_and_are_gone_afterwards(
    make: Callable[..., contextlib.AbstractContextManager[Server]],
) -> None:
    with make(tls=True) as server:
        assert server.endpoint.startswith("https://")
        assert server.client().request("PUT", "k", body=b"1").status == 200
        assert server.objects() == {"k": b"1"}
        assert f"ca_bundle={server.ca_bundle}" in server.url().replace("%2F", "/")
    assert not server.folder.exists()
    wait_until(lambda: not is_open(server.port))


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = "from tests.s3.servers import *\nwith stub_server() as s: print(s.port, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # no process is left to remove its folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        port = int(starter.stdout.readline())
        assert is_open(port)
        os.kill(starter.pid, signal.SIGKILL)
    wait_until(lambda: not is_open(port))


def test_a_url_says_how_to_reach_the_server(stub: StubServer) -> None:
    parts = urlsplit(stub.url("runs/1", addressing=None, storage_class="STANDARD_IA"))
    assert (parts.scheme, parts.netloc, parts.path) == ("s3", stub.bucket, "/runs/1")
    assert parse_qs(parts.query) == {
        "endpoint_url": [stub.endpoint],
        "region": ["us-east-1"],
        "storage_class": ["STANDARD_IA"],
    }


def test_the_environment_is_the_servers_alone(stub: StubServer) -> None:
    ours = {name for name in os.environ if name.startswith("AWS_")}
    assert ours == {name for name in stub.environment if name.startswith("AWS_")}
