"""A view in a process of its own, as `tdcore view` starts it, and requests to it through real HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tests.signals import default_signals
from tests.waiting import PATIENCE_SECONDS

__all__ = ["Answer", "ViewServer", "view_server"]

ROOT = Path(__file__).resolve().parents[2]
_ADDRESS = re.compile(rb"http://\S+")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer of the server. headers: by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(kw_only=True)
class ViewServer:
    """A running server.

    Attributes:
        process: Its process.
        url: Address of the page.
        printed: The lines that it printed so far.
    """

    process: subprocess.Popen[bytes]
    url: str
    printed: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """Send a request. path: as it is sent, if it begins with "/"; else below the address of the page."""
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            whole = path if path.startswith("/") else self.path + path
            connection.request(method, whole, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(status=answer.status, headers=found, body=answer.read())

    def get(self, request: str, **parameters: object) -> Answer:
        """An answer of the application."""
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items())
        return self.request("GET", f"api/{request}" + (f"?{query}" if query else ""))

    def post(self, request: str, document: Any, **headers: str) -> Answer:
        """A request that writes, as the page sends it. headers: "_" stands for "-"."""
        given = {"Origin": f"http://{self.host}", "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", f"api/{request}", headers=given, body=json.dumps(document).encode())

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of the server, from the moment at which the block begins."""
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", self.path + "api/events")
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.readline().startswith(b"retry:")

            def read() -> Iterator[dict[str, Any]]:
                for line in answer:
                    if line.startswith(b"data: "):
                        yield json.loads(line.removeprefix(b"data: "))

            yield read()

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code of the process."""
        self.process.send_signal(by)
        return self.process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def view_server(place: str | Path, *options: str, **environment: str) -> Iterator[ViewServer]:
    """Start `tdcore view`, and end it after the block."""
    command = [sys.executable, "-m", "tdcore.cli", "view", str(place), "--no-browser", *options]
    with default_signals():
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    assert process.stdout is not None
    try:
        server = ViewServer(process=process, url="")
        for line in process.stdout:
            server.printed.append(line.decode())
            found = _ADDRESS.search(line)
            if found:
                server.url = found[0].decode()
                break
        assert server.url, f"the server has not started: {server.printed}"
        reader = threading.Thread(target=_read, args=(process, server.printed), daemon=True)
        reader.start()
        yield server
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


def _read(process: subprocess.Popen[bytes], printed: list[str]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # closed
        printed.extend(line.decode() for line in process.stdout)
