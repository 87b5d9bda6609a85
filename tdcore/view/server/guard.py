"""Guard: an ASGI application that passes only permitted requests on to another one.

The address of the view contains a random token, so that another user or another page cannot guess it. In
addition:

- The Host header must name this machine. A page of another site whose name resolves to 127.0.0.1 (DNS
  rebinding) sends the name of its own site.
- A request of a page of another origin is refused, by its headers Origin and Sec-Fetch-Site. A request that
  writes must have an Origin.
- Each answer has headers that forbid the browser to load anything from other hosts, to show the page in a
  frame, and to send its address to another site.

Threads: the event loop.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "HostNames"]

_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class HostNames:
    """The names of this server in Host headers.

    Args:
        names: Names and addresses in addition to those of the loopback interface.
        any_address: Whether every IP address is a name of this server, because it listens on all interfaces.
            DNS rebinding needs a name, so that addresses are safe.
    """

    def __init__(self, names: Iterable[str] = (), *, any_address: bool = False) -> None:
        self._names = _LOCAL | {name.lower() for name in names}
        self._any_address = any_address

    def accept(self, host: str) -> bool:
        """Whether a Host header names this server. The port is not compared: a tunnel has another port."""
        name = _without_port(host.lower())
        if name in self._names:
            return True
        if self._any_address:
            with suppress(ValueError):
                ipaddress.ip_address(name)
                return True
        return False


class Guard:
    """Passes on the requests of the view's own pages, without the token in their paths.

    Args:
        app: The application.
        token: First part of each path.
        hosts: Accepted Host headers.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: HostNames) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # a WebSocket is closed by the server

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        _, _, rest = _path(scope)[1:].partition("/")
        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}
        await self._app(inner, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that is not passed on; None for other requests."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.accept(hosts[0]):
            return _refused(
                headers, "this server does not have the name in the Host header; use the printed address"
            )
        token, slash, _ = _path(scope)[1:].partition("/")
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            return _refused(
                headers, "the address lacks its token, or has an old one; use the printed address"
            )
        problem = _cross_origin(scope["method"], headers, hosts[0])
        if problem:
            return _refused(headers, problem)
        return None if slash else RedirectResponse(f"/{token}/", status_code=308)


def _path(scope: Scope) -> str:
    """The path with the token. Prometheus can send the token of /metrics in a header instead."""
    path: str = scope["path"]
    kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    return f"/{token.strip()}/metrics" if path == "/metrics" and kind.lower() == "bearer" else path


def _cross_origin(method: str, headers: Headers, host: str) -> str:
    """Why a request may come from a page of another origin; "" if it cannot."""
    site, origin = headers.get("sec-fetch-site", "same-origin"), headers.get("origin")
    reads = method in ("GET", "HEAD")
    if site not in ("same-origin", "none") and not (reads and headers.get("sec-fetch-dest") == "document"):
        return "a page of another origin may not use this server"
    if origin is None:
        return "" if reads else "a request that writes needs an Origin header"
    if origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "a page of another origin may not use this server"
    return ""


def _refused(headers: Headers, text: str) -> Response:
    if "text/html" in headers.get("accept", ""):  # a person reads it
        return PlainTextResponse(f"{text}\n", status_code=403)
    return JSONResponse({"error": text}, status_code=403)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
