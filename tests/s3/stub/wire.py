"""The part of HTTP/1.1 that the stub needs: heads, bodies, aws-chunked bodies with trailers, replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

from tests.s3.stub.errors import S3Error


class CutError(Exception):
    """The connection ended within a request."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """A request before its body; header names in lower case, repeated headers joined with commas."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        """The path, decoded."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """The query, decoded; names without a value have an empty value."""
        pairs = [part.partition("=") for part in self.target.partition("?")[2].split("&") if part]
        # A plus stands for a blank, as in forms; a plus itself is sent as %2B.
        return {unquote(name): unquote(value.replace("+", " ")) for name, _, value in pairs}


@dataclass(kw_only=True)
class Body:
    """The content after a head, decoded."""

    data: bytes = b""
    trailers: dict[str, str] = field(default_factory=dict)
    received_bytes: int = 0


@dataclass(kw_only=True)
class Reply:
    """A reply. size: Content-Length of a reply without a body (HEAD)."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    size: int | None = None


def _fields(lines: list[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise CutError(f"not a header: {line!r}")
        name, value = name.strip().lower(), value.strip()
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read the next request's head; return None if the connection ended before one. Raises CutError."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise CutError("within a head") from error
    except asyncio.LimitOverrunError as error:
        raise CutError("the head is too long") from error
    first, *lines = raw[:-4].split(b"\r\n")
    parts = first.decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise CutError(f"not a request: {first[:100]!r}")
    return Head(method=parts[0], target=parts[1], headers=_fields(lines))


async def read_body(reader: asyncio.StreamReader, head: Head) -> Body:
    """Read the body that the head announces. Raises CutError if it is incomplete, S3Error if it is wrong."""
    try:
        if head.headers.get("transfer-encoding", "").lower() == "chunked":
            raw = await _read_chunked(reader)
        else:
            raw = await reader.readexactly(int(head.headers.get("content-length", "0")))
    except asyncio.IncompleteReadError as error:
        raise CutError("within a body") from error
    if "aws-chunked" not in head.headers.get("content-encoding", ""):
        return Body(data=raw, received_bytes=len(raw))
    data, trailers = decode_aws_chunked(raw)
    if str(len(data)) != head.headers.get("x-amz-decoded-content-length"):
        raise S3Error("IncompleteBody", "x-amz-decoded-content-length does not match the body")
    return Body(data=data, trailers=trailers, received_bytes=len(raw))


async def _read_chunked(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).partition(b";")[0].strip(), 16)
        if size == 0:
            while (await reader.readuntil(b"\r\n")) != b"\r\n":
                pass
            return b"".join(pieces)
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)


def decode_aws_chunked(raw: bytes) -> tuple[bytes, dict[str, str]]:
    """Return data and trailers of an aws-chunked body without chunk signatures. Raises S3Error for others."""
    pieces: list[bytes] = []
    at = 0
    while True:
        end = raw.find(b"\r\n", at)
        try:
            size = int(raw[at:end], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        at = end + 2
        if size < 0 or (size and raw[at + size : at + size + 2] != b"\r\n"):
            raise S3Error("IncompleteBody", "The request body is not aws-chunked as announced")
        if size == 0:
            lines = [line for line in raw[at:].split(b"\r\n") if line]
            return b"".join(pieces), _fields(lines)
        pieces.append(raw[at : at + size])
        at += size + 2


async def send(writer: asyncio.StreamWriter, reply: Reply, *, close: bool = False) -> None:
    """Write the whole reply."""
    size = len(reply.body) if reply.size is None else reply.size
    headers = {**reply.headers, "Server": "tests", "Connection": "close" if close else "keep-alive"}
    if reply.status not in (204, 304):
        headers["Content-Length"] = str(size)
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    writer.writelines([head, reply.body] if reply.body else [head])
    await writer.drain()
