"""serve: run the server of the view until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

import uvicorn

from tdcore.errors import ConfigError
from tdcore.view.server.app import ViewApp
from tdcore.view.server.guard import HostNames
from tdcore.view.server.pages import load_pages
from tdcore.view.server.run_list import RunList
from tdcore.view.server.served_runs import ServedRuns

__all__ = ["ServeOptions", "is_loopback", "serve"]

# An address may name a tensor: 65,536 characters of 4 bytes, each of them escaped as %XX.
_MAX_REQUEST_BYTES = 1 << 20
_MAX_CONNECTIONS = 256
_GRACE_SECONDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of the server.

    Attributes:
        place: A run, or a folder or prefix with runs below it. It need not exist yet.
        host: Address or name of the interface.
        port: Port; 0: a free port.
        can_write: Whether pages may request a stop and a capture.
        judges: Whether rules judge the runs.
        browser: Whether the address is opened in a browser, if there is a display.
    """

    place: str
    host: str = "127.0.0.1"
    port: int = 0
    can_write: bool = True
    judges: bool = True
    browser: bool = True


class _Server(uvicorn.Server):
    """A server that prepares the first answer, and ends the streams of events first when it gets a signal."""

    def __init__(self, config: uvicorn.Config, app: ViewApp) -> None:
        super().__init__(config)
        self._app = app
        self._preparing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._preparing = asyncio.create_task(self._app.prepare())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.events.close()
        super().handle_exit(sig, frame)


def serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve the view until SIGINT or SIGTERM. Must run in the main thread.

    Args:
        options: The options.
        ready: Called with the address of the page when it can be opened.

    Raises:
        ConfigError: The host or port cannot be used.
        RunNotFound: The place is a file.
        RunError: The installation lacks the files of the page.
    """
    pages = load_pages()
    runs = ServedRuns(RunList(options.place), judges=options.judges)
    app = ViewApp(runs, pages, can_write=options.can_write)
    token = secrets.token_urlsafe(24)
    with _listening(options.host, options.port) as listener:
        config = uvicorn.Config(
            app.asgi(token=token, hosts=_names(options.host)),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_REQUEST_BYTES,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        server = _Server(config, app)
        with _own_signals(server):
            address = f"http://{_shown(options.host)}:{listener.getsockname()[1]}/{token}/"
            ready(address)
            threading.Thread(target=_import_readers, name="tdcore-view-imports", daemon=True).start()
            if options.browser and _has_display():
                webbrowser.open(address)
            server.run(sockets=[listener])
        runs.close()


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach this address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_MAX_CONNECTIONS)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"the server cannot listen on {host!r}, port {port}: {error}; choose another --port, or leave it "
            "out for a free port, and use an address of this machine as --host"
        ) from error
    with listener:
        yield listener


@contextlib.contextmanager
def _own_signals(server: _Server) -> Iterator[None]:
    """End the server by SIGINT and SIGTERM without an exception. uvicorn raises them again at its end."""

    def end(*_: object) -> None:
        server.should_exit = True

    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _names(host: str) -> HostNames:
    if is_loopback(host):
        return HostNames([host])
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return HostNames([socket.gethostname(), socket.getfqdn()], any_address=True)
    return HostNames([host])


def _shown(host: str) -> str:
    """The host in an address that a browser of this machine can open."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return socket.gethostname()
        return f"[{host}]" if address.version == 6 else host
    return host


def _import_readers() -> None:
    """Import the modules of the answers, which takes a second, before the page requests the first answer.

    The first conversion of an array imports pandas, if it is installed.
    """
    import pyarrow as pa

    import tdcore.view.answers  # noqa: F401

    pa.array([0]).to_numpy(zero_copy_only=False)


def _has_display() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
