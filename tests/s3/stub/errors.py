"""Errors of the S3 API: codes, their statuses, and the XML document."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

# code: status, message. From "Error responses" of the S3 API reference.
_KNOWN: dict[str, tuple[int, str]] = {
    "AccessDenied": (403, "Access Denied"),
    "AuthorizationHeaderMalformed": (400, "The authorization header is malformed."),
    "BadDigest": (400, "The Content-MD5 or checksum value you specified did not match what we received."),
    "ConditionalRequestConflict": (409, "A conflicting operation occurred."),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed size."),
    "ExpiredToken": (400, "The provided token has expired."),
    "IllegalLocationConstraintException": (
        400,
        "The location constraint is incompatible with this endpoint.",
    ),
    "IncompleteBody": (400, "You did not provide the number of bytes specified by Content-Length."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist in our records."),
    "InvalidArgument": (400, "Invalid Argument"),
    "InvalidDigest": (400, "The Content-MD5 you specified is not valid."),
    "InvalidEncryptionAlgorithmError": (400, "The encryption request you specified is not valid."),
    "InvalidRange": (416, "The requested range is not satisfiable"),
    "InvalidRequest": (400, "Invalid Request"),
    "InvalidStorageClass": (400, "The storage class you specified is not valid"),
    "InvalidTag": (400, "The tag provided was not a valid tag."),
    "InvalidToken": (400, "The provided token is malformed or otherwise not valid."),
    "KeyTooLongError": (400, "Your key is too long"),
    "KMS.DisabledException": (400, "The request was rejected because the specified KMS key is not enabled."),
    "MalformedXML": (400, "The XML you provided was not well-formed."),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "NoSuchBucket": (404, "The specified bucket does not exist"),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NotImplemented": (501, "A header you provided implies functionality that is not implemented"),
    "OperationAborted": (409, "A conflicting conditional operation is currently in progress."),
    "PermanentRedirect": (
        301,
        "The bucket you are attempting to access must be addressed using the specified endpoint.",
    ),
    "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold"),
    "RequestTimeTooSkewed": (
        403,
        "The difference between the request time and the current time is too large.",
    ),
    "RequestTimeout": (400, "Your socket connection to the server was not read from or written to in time."),
    "ServiceUnavailable": (503, "Service is unable to handle request."),
    "SignatureDoesNotMatch": (
        403,
        "The request signature we calculated does not match the signature you provided.",
    ),
    "SlowDown": (503, "Please reduce your request rate."),
    "TooManyRequests": (429, "Please reduce your request rate."),
    "XAmzContentSHA256Mismatch": (
        400,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
}
CODES = sorted(_KNOWN)


class S3Error(Exception):
    """An error reply: its code, its message, more elements for the document, more headers for the reply."""

    def __init__(
        self, code: str, message: str | None = None, *, headers: Mapping[str, str] | None = None, **more: str
    ) -> None:
        self.code = code
        self.status, known = _KNOWN[code]
        self.message = message or known
        self.headers = dict(headers or {})
        self.more = more
        super().__init__(f"{code}: {self.message}")

    def document(self, *, resource: str, request_id: str) -> bytes:
        """Return the XML document of the reply."""
        elements = {"Code": self.code, "Message": self.message, **self.more}
        elements |= {"Resource": resource, "RequestId": request_id, "HostId": "c3R1Yg=="}
        inside = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in elements.items())
        return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inside}</Error>'.encode()
