"""The stub's connections: one request after the other, with the faults of connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import time

from tests.s3.stub.errors import S3Error
from tests.s3.stub.service import Entry, HangError, Service
from tests.s3.stub.settings import Settings
from tests.s3.stub.wire import Body, CutError, Head, Reply, read_body, read_head, send


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with a reset; bytes that were not sent yet are lost."""
    with contextlib.suppress(OSError, AttributeError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class Connections:
    """Serves connections, on one event loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._numbers = itertools.count(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends; the callback of asyncio.start_server."""
        number = next(self._numbers)
        try:
            for count in itertools.count(1):
                head = await read_head(reader)
                if head is None or not await self._request(head, reader, writer, number):
                    break
                if count == self._service.settings.requests_per_connection:
                    break
        except HangError:
            with contextlib.suppress(OSError):
                await reader.read()
        except (CutError, OSError):
            pass  # the client closed the connection; the log contains whether its request was done
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _request(
        self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        """Serve one request; return whether the connection continues."""
        service = self._service
        if head.path.startswith("/_admin"):
            await send(writer, service.admin(head, await read_body(reader, head)))
            return True
        settings, entry = service.settings, service.entry(head, number)
        body: Body | None = None
        try:
            if head.headers.get("expect", "").lower() == "100-continue":
                await asyncio.sleep(settings.latency)
                service.before(head, entry)  # a client whose request is refused need not send the body
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await self._body(head, reader, entry)
            else:
                body = await self._body(head, reader, entry)
                await asyncio.sleep(settings.latency)
                service.before(head, entry)
            reply = service.do(head, entry, body)
        except S3Error as error:
            reply = refusal(error, head, settings)
            entry.code = error.code
        except CutError as cut:
            entry.note = f"cut {cut}"
            raise
        entry.seconds = time.monotonic() - entry.begun
        if self._loses(entry, settings, writer):
            return False
        entry.status = reply.status
        reply.headers["x-amz-request-id"] = f"{number:06X}{len(service.log):010X}"
        close = body is None or head.headers.get("connection", "").lower() == "close"
        await send(writer, reply, close=close)
        return not close

    async def _body(self, head: Head, reader: asyncio.StreamReader, entry: Entry) -> Body:
        """Read the body. Raises S3Error if its length is unknown or it takes too long, and CutError."""
        streamed = "aws-chunked" in head.headers.get("content-encoding", "")
        if head.method == "PUT" and entry.key and "content-length" not in head.headers and not streamed:
            raise S3Error("MissingContentLength")
        try:
            body = await asyncio.wait_for(read_body(reader, head), self._service.settings.body_timeout)
        except asyncio.TimeoutError:
            raise S3Error("RequestTimeout") from None
        entry.received_bytes = body.received_bytes
        return body

    def _loses(self, entry: Entry, settings: Settings, writer: asyncio.StreamWriter) -> bool:
        """Return whether this reply is to be lost; resets the connection if the settings require it."""
        if not self._service.strikes(entry):
            return False
        if settings.lose_replies:
            settings.lose_replies -= 1
        elif settings.reset_replies:
            settings.reset_replies -= 1
            reset(writer)
        else:
            return False
        entry.note = "reply lost"
        return True


def refusal(error: S3Error, head: Head, settings: Settings) -> Reply:
    """Return the reply for an error."""
    headers = {"Content-Type": "application/xml", **error.headers}
    if settings.retry_after and error.status in (429, 503):
        headers["Retry-After"] = f"{settings.retry_after:g}"
    document = b"" if head.method == "HEAD" else error.document(resource=head.path, request_id="0")
    return Reply(status=error.status, headers=headers, body=document)
