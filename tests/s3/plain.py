"""A minimal S3 client: one signed request per connection, independent of the clients under test."""

from __future__ import annotations

import http.client
import ssl
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.s3.sigv4 import Keys, canonical_query, quoted, sign


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The <Code> of an error document; empty if there is none."""
        return text_of(self.body, "Code")


def text_of(document: bytes, name: str) -> str:
    """Return the text of the first element of this name; empty if there is none."""
    return next(iter(texts_of(document, name)), "")


def texts_of(document: bytes, name: str) -> list[str]:
    """Return the text of every element of this name, in any namespace."""
    if not document.lstrip().startswith(b"<"):
        return []
    return [node.text or "" for node in ET.fromstring(document).iter() if node.tag.rpartition("}")[2] == name]


@dataclass(frozen=True, kw_only=True)
class PlainClient:
    """Requests to one bucket, in path style. Any thread: the client keeps no connection."""

    endpoint: str
    bucket: str
    keys: Keys
    region: str = "us-east-1"
    ca_bundle: str | None = None
    timeout_s: float = 10.0
    extra: Mapping[str, str] = field(default_factory=dict)

    def request(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        signed: bool = True,
    ) -> Reply:
        """Send one request for a key of the bucket, or for the bucket itself if `key` is empty.

        Raises OSError and http.client.HTTPException unchanged.
        """
        parts = urlsplit(self.endpoint)
        target = f"/{quoted(self.bucket)}" + (f"/{quoted(key, '/')}" if key else "")
        if query is not None:
            plain = "&".join(f"{quoted(name)}={quoted(value)}" for name, value in query.items())
            target += "?" + canonical_query(plain)
        sent = {"host": parts.netloc, **self.extra, **(headers or {})}
        if signed:
            sent = sign(self.keys, method=method, target=target, headers=sent, body=body, region=self.region)
        connection = self.connect()
        try:
            connection.request(method, target, body=body or None, headers=sent)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(status=answer.status, headers=names, body=answer.read())
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        """Open a new connection to the endpoint; the caller closes it."""
        parts = urlsplit(self.endpoint)
        host, port = parts.hostname or "", parts.port or 443
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        context = ssl.create_default_context(cafile=self.ca_bundle)
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=context)

    def keys_below(self, prefix: str = "") -> list[str]:
        """Return every key that begins with `prefix`, from all pages of the listing."""
        found: list[str] = []
        query = {"list-type": "2", "prefix": prefix}
        while True:
            reply = self.request("GET", query=query)
            assert reply.status == 200, reply
            found += texts_of(reply.body, "Key")
            following = text_of(reply.body, "NextContinuationToken")
            if not following:
                return found
            query["continuation-token"] = following

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return every object whose key begins with `prefix`, with its content."""
        read: dict[str, bytes] = {}
        for key in self.keys_below(prefix):
            reply = self.request("GET", key)
            assert reply.status == 200, (key, reply)
            read[key] = reply.body
        return read
