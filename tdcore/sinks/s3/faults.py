"""Fault: one request to S3 that failed, what that means, and the SinkError it becomes.

Both engines report through this module, so that a failure is judged and worded in one place. Messages are the
same each time: they hold no request id, time or address, and no secret, signature or query string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tdcore.errors import SinkError, SinkErrorKind, SinkKeyError
from tdcore.sinks.s3.options import S3Place

__all__ = ["Action", "Fault", "FaultKind", "fault_from_reply", "fault_of_connection", "permission"]

FaultKind: TypeAlias = Literal[
    "throttled",  # the service asks to slow down
    "timeout",  # no answer in time
    "connection",  # refused, reset, no such host, TLS
    "server",  # the service failed: 500, 502, 503, 504
    "damaged",  # the bytes changed on the way, as their checksum shows
    "conflict",  # another conditional write was in progress
    "exists",  # a conditional write found an object
    "missing",  # no such object
    "range",  # the object ends before the range begins
    "no_bucket",  # no such bucket
    "region",  # the bucket is in another region
    "credentials",  # expired, unknown, or none at all
    "denied",  # credentials are good, the permission is not there
    "settings",  # the AWS configuration cannot be read any more; it may be half written just now
    "unsupported",  # the service does not implement what was asked for
    "refused",  # any other refusal
]

Action: TypeAlias = Literal["put", "get", "list", "delete"]

_PASSING: frozenset[str] = frozenset(
    {"throttled", "timeout", "connection", "server", "damaged", "conflict", "settings"}
)

_KINDS: dict[str, FaultKind] = {
    **dict.fromkeys(
        (
            *("SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "TooManyRequestsException"),
            *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
            *("RequestLimitExceeded", "BandwidthLimitExceeded", "ProvisionedThroughputExceededException"),
        ),
        "throttled",
    ),
    **dict.fromkeys(("RequestTimeout", "RequestTimeoutException"), "timeout"),
    # TemporaryRedirect: a bucket made minutes ago, before all of S3 knows of it
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
_STATUSES: dict[int, FaultKind] = {
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

_MEANING: dict[FaultKind, str] = {
    "throttled": "the service asks to slow down",
    "timeout": "no answer in time",
    "connection": "the connection failed",
    "server": "the service failed",
    "damaged": "the bytes changed on the way, says their checksum",
    "conflict": "another write of the same object was in progress",
    "exists": "an object was there already",
    "missing": "no such object",
    "range": "the object ends before that",
    "no_bucket": "there is no such bucket",
    "region": "the bucket is in another region",
    "credentials": "the credentials are not valid",
    "denied": "permission denied",
    "settings": "the AWS configuration cannot be used any more",
    "unsupported": "the service does not implement this",
    "refused": "the service refused",
}
_CONNECTION: tuple[tuple[tuple[str, ...], str], ...] = (
    (("certificate",), "the server's certificate is not trusted (is the S3 option ca_bundle right?)"),
    (("dns error", "name or service", "name resolution", "getaddrinfo"), "the end point's host is not known"),
    (("refused", "connect call failed"), "nobody answers at the end point"),
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
class Fault(Exception):  # noqa: N818 -- internal: it becomes a SinkError before it leaves this package
    """A request that failed.

    code: S3's own word, such as "SlowDown", or "". status: of HTTP, 0 when there was no answer. message: what
    happened, the same each time. retry: the same request may succeed later. retry_after: seconds the service
    asks for. region: where the bucket is, when the answer said so. resent: the client may have sent the
    request twice by itself.
    """

    kind: FaultKind
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
        return self.kind in _PASSING

    @property
    def ambiguous(self) -> bool:
        """Whether the request may have been carried out all the same."""
        return self.resent or self.kind in ("timeout", "connection", "server")

    def error(self, action: Action, place: S3Place, key: str = "") -> SinkError:
        """The SinkError that tells the user. key: relative; named for a missing object only."""
        if self.kind == "missing" and action == "get":
            return SinkKeyError(f"nothing under {key!r} in {place.where!r}")
        if self.kind == "missing":  # what else can be missing
            return Fault("no_bucket", code=self.code, status=self.status).error(action, place)
        kind: SinkErrorKind = "transient" if self.retry else "denied"
        return SinkError(
            f"cannot {_TO[action]} {place.where!r}: {self}; {self._advice(action, place)}", kind=kind
        )

    def _advice(self, action: Action, place: S3Place) -> str:
        if self.retry:
            return "will be tried again"
        if self.kind == "no_bucket":
            return f"make the bucket {place.bucket!r}, or correct its name, region or endpoint_url"
        if self.kind == "region":
            return "name the bucket's region: ?region=..."
        if self.kind == "credentials":
            return "check what the AWS chain gives: AWS_ACCESS_KEY_ID and the like, the profile, or the role"
        if self.code == "SignatureDoesNotMatch":
            return "check the secret key, and a proxy that may change requests"
        if self.code == "RequestTimeTooSkewed":
            return "set this machine's clock"
        if self.kind == "denied":
            return f"it needs {permission(action, place)}"
        if self.kind == "unsupported":
            return "leave out the S3 option that this store does not know, or set checksum=none"
        return "look into the service's own log"


def permission(action: Action, place: S3Place) -> str:
    """The permission that `action` needs, in the words of an AWS policy."""
    arn = f"arn:aws:s3:::{place.bucket}"
    objects = f"{arn}/{place.key('*')}"
    if action == "list":
        return f"s3:ListBucket on {arn}"
    needed = f"{_PERMISSIONS[action]} on {objects}"
    options = place.options
    if action == "get":
        return f"{needed} (also kms:Decrypt under a KMS key, and s3:ListBucket to tell a missing object)"
    if action == "put":
        if options.tags:
            needed += " and s3:PutObjectTagging"
        if options.sse_kms_key_id or (options.sse or "").startswith("aws:kms"):
            needed += " and kms:GenerateDataKey on the KMS key"
    return needed


def fault_from_reply(
    status: int,
    body: str = "",
    *,
    code: str = "",
    detail: str = "",
    retry_after: str | None = None,
    region: str | None = None,
) -> Fault:
    """The fault in an answer of the service. body: its XML; code, detail, region: when they are known apart.

    Of the service's own words only its code is kept, and the region.
    """
    found = dict(_TAG.findall(body))
    code, detail = code or found.get("Code", ""), detail or found.get("Message", "")
    code = code if _WORD.fullmatch(code) else ""
    kind = _KINDS.get(code) or _STATUSES.get(status) or ("server" if status >= 500 else "refused")
    if status == 503 and kind == "server":
        kind = "throttled"
    if kind == "refused" and "region" in detail and "expecting" in detail:
        kind = "region"
    return Fault(
        kind=kind,
        code=code,
        status=status,
        retry_after=_seconds(retry_after),
        region=(region or found.get("Region")) if kind == "region" else None,
    )


def fault_of_connection(text: str) -> Fault:
    """The fault behind a client's words for a connection that failed; its own words are not kept."""
    lower = text.lower()
    for hints, message in _CONNECTION:
        if any(hint in lower for hint in hints):
            return Fault("connection", message=message)
    return Fault("connection")


def _seconds(text: str | None) -> float | None:
    """Retry-After as seconds; its other form, a date, is left aside."""
    try:
        return min(300.0, max(0.0, float(text))) if text else None
    except ValueError:
        return None
