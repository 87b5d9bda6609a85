"""Signature version 4 of the S3 API, for signing (plain.py) and for checking (stub.py).

Implements the S3 API reference, "Authenticating Requests: Using the Authorization Header".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import quote, unquote

UNSIGNED = "UNSIGNED-PAYLOAD"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[^/,\s]+)/"
    r"(?P<service>[^/,\s]+)/aws4_request, *SignedHeaders=(?P<headers>[^,\s]+), *"
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Credentials of a client."""

    access_key: str
    secret_key: str
    session_token: str | None = None


@dataclass(frozen=True, kw_only=True)
class Authorization:
    """The parts of an Authorization header."""

    key: str
    date: str
    region: str
    service: str
    headers: tuple[str, ...]
    signature: str

    @classmethod
    def parse(cls, header: str) -> Authorization | None:
        """Parse a header; return None for anything except an AWS4-HMAC-SHA256 header."""
        match = _AUTHORIZATION.fullmatch(header.strip())
        if match is None:
            return None
        parts = match.groupdict()
        names = tuple(parts.pop("headers").split(";"))
        return cls(headers=names, **parts)


def quoted(text: str, safe: str = "") -> str:
    """Percent-encode as signatures require: all characters except letters, digits and -._~"""
    return quote(text, safe=safe + "-._~")


def canonical_query(query: str) -> str:
    """Decode the raw query of a request target (a plus stands for a blank), encode it again and sort it."""
    pairs = [part.partition("=") for part in query.replace("+", " ").split("&") if part]
    return "&".join(sorted(f"{quoted(unquote(name))}={quoted(unquote(value))}" for name, _, value in pairs))


def signature(
    *,
    secret: str,
    method: str,
    target: str,
    headers: Mapping[str, str],
    signed: Sequence[str],
    scope: tuple[str, str, str],
) -> str:
    """Return the signature of a request, as 64 hex digits.

    target: path and query as sent. headers: names in lower case. scope: date, region, service.
    """
    path, _, query = target.partition("?")
    lines = [f"{name}:{' '.join(headers.get(name, '').split())}" for name in signed]
    request = "\n".join(
        [
            method,
            quoted(unquote(path), "/"),
            canonical_query(query),
            *lines,
            "",
            ";".join(signed),
            headers.get("x-amz-content-sha256", ""),
        ]
    )
    digest = hashlib.sha256(request.encode()).hexdigest()
    date, region, service = scope
    to_sign = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            headers.get("x-amz-date", ""),
            f"{date}/{region}/{service}/aws4_request",
            digest,
        ]
    )
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def sign(
    keys: Keys,
    *,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    region: str,
    now: datetime | None = None,
) -> dict[str, str]:
    """Return the headers (which must contain "host") with the date, the body's hash and the signature added.

    An existing header x-amz-content-sha256 is kept.
    """
    moment = now or datetime.now(timezone.utc)
    made = {name.lower(): value for name, value in headers.items()}
    made["x-amz-date"] = moment.strftime("%Y%m%dT%H%M%SZ")
    made.setdefault("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
    if keys.session_token is not None:
        made["x-amz-security-token"] = keys.session_token
    signed = sorted(name for name in made if name in ("host", "content-md5") or name.startswith("x-amz-"))
    scope = (made["x-amz-date"][:8], region, "s3")
    made["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{'/'.join(scope)}/aws4_request, "
        f"SignedHeaders={';'.join(signed)}, Signature="
        + signature(
            secret=keys.secret_key, method=method, target=target, headers=made, signed=signed, scope=scope
        )
    )
    return made
