"""A fault-injecting proxy between a client and a local server: resets, stalls, damaged bytes, outages.

    with FaultProxy(server.port) as proxy:
        sink = S3Sink(server.url("run", endpoint_url=proxy.endpoint))
        proxy.next(Fault(kind="reset", direction="response"))   # the next request is done, its reply is lost
        proxy.down(), proxy.up()                                # the service is unavailable in between
        proxy.counts["reset"]                                   # the number of faults that happened

A fault strikes one request: bytes are counted from the begin of the request or of its response, including the
head. The proxy recognises a new request as a chunk from the client after a chunk from the server, which is
correct for HTTP/1.1 without pipelining. In a separate process: python -m tests.s3.proxy --target PORT --rate
0.1
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from tests.s3.fault import CODES, KINDS, Direction, Fault, Kind, Schedule, chance

__all__ = ["KINDS", "Fault", "FaultProxy", "chance"]

_CHUNK_BYTES = 1 << 16
_TICK_SECONDS = 0.01
_LINGER_SECONDS = 5.0


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a TCP reset."""
    with contextlib.suppress(OSError, AttributeError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def _ended(writer: asyncio.StreamWriter, how: str) -> None:
    """End a connection, by "reset" or "close"; a close with unread bytes becomes a reset."""
    if how == "reset":
        _reset(writer)
        return
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), _LINGER_SECONDS)
    except (OSError, asyncio.TimeoutError):
        _reset(writer)


class _Flip:
    """Inverts a bit of a body that comes in chunks; the head contains the body's length."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._head = b""
        self._position: int | None = None  # position of the byte to change, from the begin of the next chunk
        self.done = False

    def __call__(self, piece: bytes) -> bytes:
        begin = 0
        if self._position is None:
            before = len(self._head)
            self._head += piece
            end = self._head.find(b"\r\n\r\n") + 4
            if end < 4 or self.done:
                return piece
            length = _content_length(self._head[:end])
            if not length:
                self.done = True  # nothing to damage
                return piece
            begin = end - before
            self._position = begin + self._at % length
        if not self.done and self._position < len(piece):
            self.done = True
            changed = bytearray(piece)
            changed[self._position] ^= 0x01
            return bytes(changed)
        self._position -= len(piece)
        return piece


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


class _Connection:
    """One client's connection, its connection to the server, and the fault of the current request."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._fault: Fault | None = None
        self._flip: _Flip | None = None
        self._passed = {"request": 0, "response": 0}
        self._answered = True  # the next chunk from the client begins a request

    async def run(self) -> None:
        """Run until the client, the server or a fault ends the connection."""
        client = self._client[1]
        try:
            self._server = await asyncio.open_connection("127.0.0.1", self._proxy.target_port)
        except OSError:
            _reset(client)
            return
        pumps = [asyncio.ensure_future(self._guarded(pump())) for pump in (self._requests, self._responses)]
        how = "reset"
        try:
            how = await self._over
        finally:
            for pump in pumps:
                pump.cancel()
            for writer in (client, self._server[1]):
                await _ended(writer, how)

    def end(self, how: str) -> None:
        """End the connection, by "reset" or "close"."""
        if not self._over.done():
            self._over.set_result(how)

    async def _guarded(self, pump: Coroutine[Any, Any, None]) -> None:
        try:
            await pump
        except OSError:
            self.end("reset")

    async def _requests(self) -> None:
        while chunk := await self._client[0].read(_CHUNK_BYTES):
            if self._answered:
                self._begin(chunk)
                if self._fault is not None and self._fault.kind == "delay":
                    self._count("delay")
                    await asyncio.sleep(self._fault.seconds)
                elif self._fault is not None and self._fault.kind == "answer":
                    await self._answer(chunk, self._fault.status)
                    return
            if not await self._pass("request", chunk, self._server[1]):
                return
        if self._fault is not None and self._fault.kind == "stall":
            self.end("close")
        self._server[1].write_eof()

    async def _responses(self) -> None:
        while chunk := await self._server[0].read(_CHUNK_BYTES):
            self._answered = not chunk.startswith(b"HTTP/1.1 100")
            if not await self._pass("response", chunk, self._client[1]):
                return
        self.end("close")

    def _begin(self, chunk: bytes) -> None:
        self._answered = False
        self._passed = {"request": 0, "response": 0}
        self._fault = self._proxy.draw(chunk.partition(b"\r\n")[0].decode("latin-1"))
        self._flip = None
        if self._fault is not None and self._fault.kind == "flip":
            self._flip = _Flip(self._fault.after_bytes)
        self._proxy.counts["requests"] += 1

    def _count(self, kind: str) -> None:
        self._proxy.counts[kind] += 1

    async def _pass(self, direction: Direction, chunk: bytes, writer: asyncio.StreamWriter) -> bool:
        """Pass a chunk on, or apply the fault; return whether this direction continues."""
        fault = self._fault if self._fault is not None and self._fault.direction == direction else None
        begin = self._passed[direction]
        self._passed[direction] += len(chunk)
        self._proxy.counts[f"{direction}_bytes"] += len(chunk)
        if fault is not None and fault.kind in ("reset", "close", "half_close", "stall"):
            left = fault.after_bytes - begin
            if left < len(chunk):
                writer.write(chunk[:left])
                await writer.drain()
                await self._cut(fault.kind, writer)
                return False
        elif fault is not None and fault.kind == "throttle":
            if begin == 0:
                self._count("throttle")
            await self._slowly(chunk, writer, fault.bytes_per_s)
            return True
        elif fault is not None and self._flip is not None and not self._flip.done:
            changed = self._flip(chunk)
            if changed != chunk:
                self._count("flip")
            chunk = changed
        if direction == "request":
            await self._proxy.share(len(chunk))
        writer.write(chunk)
        await writer.drain()
        return True

    async def _cut(self, kind: Kind, writer: asyncio.StreamWriter) -> None:
        self._count(kind)
        if kind in ("reset", "close"):
            self.end(kind)
        elif kind == "half_close" and writer.can_write_eof():
            writer.write_eof()
        elif kind == "half_close":
            self.end("close")  # TLS cannot end one direction
        await asyncio.Event().wait()  # until the connection ends

    async def _slowly(self, chunk: bytes, writer: asyncio.StreamWriter, bytes_per_s: float) -> None:
        step = max(1, int(bytes_per_s * _TICK_SECONDS))
        for begin in range(0, len(chunk), step):
            piece = chunk[begin : begin + step]
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(len(piece) / bytes_per_s)

    async def _answer(self, chunk: bytes, status: int) -> None:
        """Read the whole request, unless the client waits for "100 Continue", and answer it."""
        reader, writer = self._client
        while b"\r\n\r\n" not in chunk:
            chunk += await reader.readuntil(b"\r\n\r\n")
        head, _, body = chunk.partition(b"\r\n\r\n")
        if b"100-continue" not in head.lower():
            await reader.readexactly(max(0, _content_length(head) - len(body)))
        self._count("answer")
        code = CODES.get(status, "InternalError")
        document = f"<Error><Code>{code}</Code><Message>The proxy's answer</Message></Error>"
        lines = [f"HTTP/1.1 {status} Fault", "Connection: close", "Content-Type: application/xml"]
        lines += [f"Content-Length: {len(document)}", "", document]
        writer.write("\r\n".join(lines).encode())
        await writer.drain()
        self.end("close")


class FaultProxy:
    """The proxy in its own thread; a context manager. Its methods may be called from any thread."""

    def __init__(
        self,
        target_port: int,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
        certificate: str | None = None,
        certificate_key: str | None = None,
        port: int = 0,
    ) -> None:
        """Create the proxy.

        target_port: a server without TLS on 127.0.0.1. certificate: PEM file; clients then use TLS.
        """
        self.target_port = target_port
        self.counts: collections.Counter[str] = collections.Counter()
        self._numbers = random.Random(seed)
        self._schedule = schedule
        self._by_hand: list[Fault] = []
        self._bytes_per_s: float | None = None  # of all requests together
        self._free_at = 0.0  # when the next bytes may pass, by the loop's clock
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate, certificate_key)
        # never listens: reserves the port, which refuses connections while the proxy is down
        self._held = _bound(port)
        self.port: int = self._held.getsockname()[1]
        self.endpoint = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, asyncio.Task[None]] = {}

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._held.close()

    def next(self, *faults: Fault) -> None:
        """Add faults for the next requests that they fit, one each; they have priority over the schedule."""
        with self._lock:
            self._by_hand += faults

    def plan(self, schedule: Schedule | None) -> None:
        """Set another schedule; None for none."""
        with self._lock:
            self._schedule = schedule

    def limit(self, bytes_per_s: float | None) -> None:
        """Limit the rate of all requests together, without their responses; None for no limit."""
        self._bytes_per_s = bytes_per_s

    async def share(self, size: int) -> None:
        """Wait until `size` bytes of a request may pass. Called by the proxy's own thread."""
        if self._bytes_per_s is None:
            return
        now = self._loop.time()
        self._free_at = max(now, self._free_at) + size / self._bytes_per_s
        await asyncio.sleep(self._free_at - now)

    def draw(self, first_line: str) -> Fault | None:
        """Return the fault of a new request. Called by the proxy's own thread."""
        with self._lock:
            for place, fault in enumerate(self._by_hand):
                if fault.only in first_line:
                    return self._by_hand.pop(place)
            return None if self._schedule is None else self._schedule(self._numbers)

    def down(self, *, cut: bool = True) -> None:
        """Refuse new connections; reset the existing ones, unless told not to cut."""
        self._call(self._stop(cut))

    def up(self) -> None:
        """Accept connections again, on the same port."""
        self._call(self._start())

    def cut(self) -> None:
        """Reset every existing connection; new ones are accepted."""
        self._call(self._cut())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        future: concurrent.futures.Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(timeout=30)

    async def _start(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, sock=_bound(self.port), ssl=self._tls, limit=_CHUNK_BYTES, backlog=1024
            )

    async def _stop(self, cut: bool) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self.counts["down"] += 1
        if cut:
            await self._cut()

    async def _cut(self) -> None:
        tasks = list(self._connections.values())
        for connection in list(self._connections):
            connection.end("reset")
        if tasks:
            await asyncio.wait(tasks, timeout=10)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        connection = _Connection(self, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections[connection] = task
        try:
            await connection.run()
        finally:
            del self._connections[connection]


def _bound(port: int) -> socket.socket:
    """Return a socket on 127.0.0.1 that shares its port with other sockets of this user."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def main() -> None:
    """Read the arguments, print the address, and make faults until killed."""
    parser = argparse.ArgumentParser(description="A TCP proxy that makes faults.")
    parser.add_argument("--target", type=int, required=True, help="port of the server on 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="probability of a fault per request")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    schedule = chance(options.rate, options.kinds)
    with FaultProxy(options.target, port=options.port, seed=options.seed, schedule=schedule) as proxy:
        print(proxy.endpoint, flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
