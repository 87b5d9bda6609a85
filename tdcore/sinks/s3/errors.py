"""S3Error: a request to S3 that failed, its kind, and the SinkError that the caller gets.

Both engines raise S3Error, so that failures are classified and described in one place. Messages of equal
failures are equal: they contain no request id, time or address, and no secret, signature or query string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tdcore.errors import SinkError, SinkErrorKind, SinkKeyError
from tdcore.sinks.s3.options import S3Place

__all__ = [
    "S3Action",
    "S3Error",
    "S3ErrorKind",
    "connection_error",
    "error_from_reply",
    "required_permission",
]

S3ErrorKind: TypeAlias = Literal[
    "throttled",  # the service limits the rate of requests
    "timeout",  # no answer in time
    "connection",  # refused, reset, no such host, TLS
    "server",  # the service failed: 500, 502, 503, 504
    "damaged",  # the bytes changed on the way, as their checksum shows
    "conflict",  # another conditional write was in progress
    "exists",  # a conditional write found an existing object
    "missing",  # no such object
    "range",  # the object ends before the range begins
    "no_bucket",  # no such bucket
    "region",  # the bucket is in another region
    "credentials",  # expired, unknown or missing
    "denied",  # the credentials are valid, but the permission is missing
    "settings",  # the AWS configuration cannot be read any more; another process may be writing it
    "unsupported",  # the service does not implement the request
    "refused",  # any other rejection
]

S3Action: TypeAlias = Literal["put", "get", "list", "delete"]

_RETRYABLE: frozenset[str] = frozenset(
    {"throttled", "timeout", "connection", "server", "damaged", "conflict", "settings"}
)

_KINDS: dict[str, S3ErrorKind] = {
    **dict.fromkeys(
        (
            *("SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "TooManyRequestsException"),
            *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
            *("RequestLimitExceeded", "BandwidthLimitExceeded", "ProvisionedThroughputExceededException"),
        ),
        "throttled",
    ),
    **dict.fromkeys(("RequestTimeout", "RequestTimeoutException"), "timeout"),
    # TemporaryRedirect: the bucket was created a few minutes ago
    **dict.fromkeys(("InternalError", "ServiceUnavailable", "ServerBusy", "TemporaryRedirect"), "server"),
    **dict.fromkeys(
        (
            *("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"),
            "IncompleteBody",
        ),
        "damaged",
    ),
    **dict.fromkeys(("ConditionalRequestConflict", "OperationAborted"), "conflict"),
    "PreconditionFailed": "exists",
    "NoSuchKey": "missing",
    "InvalidRange": "range",
    "NoSuchBucket": "no_bucket",
    **dict.fromkeys(
        (
            *("PermanentRedirect", "Redirect", "AuthorizationHeaderMalformed"),
            *("IllegalLocationConstraintException", "IncorrectEndpoint"),
        ),
        "region",
    ),
    **dict.fromkeys(
        (
            *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"),
            *("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException", "NoCredentials"),
        ),
        "credentials",
    ),
    **dict.fromkeys(
        (
            *("AccessDenied", "AllAccessDisabled", "AccountProblem", "SignatureDoesNotMatch"),
            *("RequestTimeTooSkewed", "NotSignedUp", "InvalidPayer", "KMS.DisabledException"),
            *("KMS.NotFoundException", "KMS.KMSInvalidStateException", "InvalidObjectState"),
        ),
        "denied",
    ),
    **dict.fromkeys(("NotImplemented", "MethodNotAllowed"), "unsupported"),
}
_STATUSES: dict[int, S3ErrorKind] = {
    **dict.fromkeys((301, 308), "region"),
    307: "server",
    401: "credentials",
    403: "denied",
    404: "missing",
    405: "unsupported",
    408: "timeout",
    409: "conflict",
    412: "exists",
    416: "range",
    429: "throttled",
    501: "unsupported",
}
_TAG = re.compile(r"<(Code|Region|Message)>\s*([^<]{1,2000}?)\s*</\1>")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,80}")

_MEANING: dict[S3ErrorKind, str] = {
    "throttled": "the service limits the rate of requests",
    "timeout": "no answer in time",
    "connection": "the connection failed",
    "server": "the service failed",
    "damaged": "the bytes changed during the transfer: their checksum differs",
    "conflict": "another write of the same object was in progress",
    "exists": "an object was there already",
    "missing": "no such object",
    "range": "the object ends before that",
    "no_bucket": "there is no such bucket",
    "region": "the bucket is in another region",
    "credentials": "the credentials are not valid",
    "denied": "permission denied",
    "settings": "the AWS configuration can no longer be used",
    "unsupported": "the service does not implement this",
    "refused": "the service refused",
}
_CONNECTION: tuple[tuple[tuple[str, ...], str], ...] = (
    (("certificate",), "the server's certificate is not trusted (is the S3 option ca_bundle right?)"),
    (("dns error", "name or service", "name resolution", "getaddrinfo"), "the endpoint's host is not known"),
    (("refused", "connect call failed"), "no server answers at the endpoint"),
    (("reset", "broken pipe", "disconnected", "closed"), "the connection broke"),
)
_TO = {"put": "write to", "get": "read from", "list": "list", "delete": "delete from"}
_PERMISSIONS = {
    "put": "s3:PutObject",
    "get": "s3:GetObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
}


@dataclass(eq=False)
class S3Error(Exception):
    """A request that failed. This internal error is converted to a SinkError before it leaves this package.

    Attributes:
        kind: Kind of failure.
        code: The error code of S3, such as "SlowDown", or "".
        status: HTTP status; 0 without an answer.
        message: Description; equal failures have equal messages.
        retry_after: Seconds to wait, if the service requires a wait.
        region: Region of the bucket, if the answer contains it.
        resent: Whether the client may have sent the request twice.
    """

    kind: S3ErrorKind
    code: str = ""
    status: int = 0
    message: str = ""
    retry_after: float | None = None
    region: str | None = None
    resent: bool = False

    def __str__(self) -> str:
        detail = ", ".join(filter(None, [self.code, str(self.status or "")]))
        return (self.message or _MEANING[self.kind]) + (f" ({detail})" if detail else "")

    @property
    def retry(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in _RETRYABLE

    @property
    def ambiguous(self) -> bool:
        """Whether the service may have executed the request although it failed."""
        return self.resent or self.kind in ("timeout", "connection", "server")

    def error(self, action: S3Action, place: S3Place, key: str = "") -> SinkError:
        """The SinkError for the caller. key: relative; only the error about a missing object contains it."""
        if self.kind == "missing" and action == "get":
            return SinkKeyError(f"nothing under {key!r} in {place.where!r}")
        if self.kind == "missing":  # for a put, list or delete, the bucket is missing
            return S3Error("no_bucket", code=self.code, status=self.status).error(action, place)
        kind: SinkErrorKind = "transient" if self.retry else "denied"
        return SinkError(
            f"cannot {_TO[action]} {place.where!r}: {self}; {self._advice(action, place)}", kind=kind
        )

    def _advice(self, action: S3Action, place: S3Place) -> str:
        if self.retry:
            return "tdcore tries again"
        if self.kind == "no_bucket":
            return f"create the bucket {place.bucket!r}, or correct its name, region or endpoint_url"
        if self.kind == "region":
            return "add the region of the bucket to the URL: ?region=..."
        if self.kind == "credentials":
            return (
                "check the credentials of the AWS chain: AWS_ACCESS_KEY_ID and similar, the profile, the role"
            )
        if self.code == "SignatureDoesNotMatch":
            return "check the secret key, and a proxy that may change requests"
        if self.code == "RequestTimeTooSkewed":
            return "set this machine's clock"
        if self.kind == "denied":
            return f"it needs {required_permission(action, place)}"
        if self.kind == "unsupported":
            return "remove the S3 option that this store does not support, or set checksum=none"
        return "read the log of the service"


def required_permission(action: S3Action, place: S3Place) -> str:
    """The permission that `action` needs, as written in an AWS policy."""
    arn = f"arn:aws:s3:::{place.bucket}"
    objects = f"{arn}/{place.key('*')}"
    if action == "list":
        return f"s3:ListBucket on {arn}"
    needed = f"{_PERMISSIONS[action]} on {objects}"
    options = place.options
    if action == "get":
        return f"{needed} (also kms:Decrypt under a KMS key, and s3:ListBucket to detect a missing object)"
    if action == "put":
        if options.tags:
            needed += " and s3:PutObjectTagging"
        if options.sse_kms_key_id or (options.sse or "").startswith("aws:kms"):
            needed += " and kms:GenerateDataKey on the KMS key"
    return needed


def error_from_reply(
    status: int,
    body: str = "",
    *,
    code: str = "",
    detail: str = "",
    retry_after: str | None = None,
    region: str | None = None,
) -> S3Error:
    """The error in a reply of the service. Only the code and the region of its text are kept.

    Args:
        status: HTTP status.
        body: XML of the reply.
        code, detail, region: Values that the client has parsed; they have priority over `body`.
        retry_after: The header Retry-After.
    """
    found = dict(_TAG.findall(body))
    code, detail = code or found.get("Code", ""), detail or found.get("Message", "")
    code = code if _WORD.fullmatch(code) else ""
    kind = _KINDS.get(code) or _STATUSES.get(status) or ("server" if status >= 500 else "refused")
    if status == 503 and kind == "server":
        kind = "throttled"
    if kind == "refused" and "region" in detail and "expecting" in detail:
        kind = "region"
    return S3Error(
        kind=kind,
        code=code,
        status=status,
        retry_after=_seconds(retry_after),
        region=(region or found.get("Region")) if kind == "region" else None,
    )


def connection_error(text: str) -> S3Error:
    """The error for a failed connection. text: the client's message, which is not kept."""
    lower = text.lower()
    for hints, message in _CONNECTION:
        if any(hint in lower for hint in hints):
            return S3Error("connection", message=message)
    return S3Error("connection")


def _seconds(text: str | None) -> float | None:
    """Retry-After as seconds; None for its other form, a date."""
    try:
        return min(300.0, max(0.0, float(text))) if text else None
    except ValueError:
        return None
