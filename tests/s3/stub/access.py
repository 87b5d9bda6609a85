"""Access checks: signatures, regions, tokens, denied actions."""

from __future__ import annotations

import hmac
from datetime import datetime, timedelta, timezone

from tests.s3.sigv4 import Authorization, signature
from tests.s3.stub.errors import S3Error
from tests.s3.stub.settings import Settings
from tests.s3.stub.wire import Head

_SKEW = timedelta(minutes=15)


def check_signature(head: Head, settings: Settings) -> None:
    """Raise the S3Error of a request whose signature is not valid for this service."""
    header = head.headers.get("authorization")
    if header is None:
        raise S3Error("AccessDenied")
    given = Authorization.parse(header)
    if given is None or given.service != "s3":
        raise S3Error("AuthorizationHeaderMalformed")
    if given.key not in settings.accept_keys:
        raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=given.key)
    if "x-amz-content-sha256" not in head.headers:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    _check_date(head, given)
    unsigned = [name for name in head.headers if name.startswith("x-amz-") and name not in given.headers]
    if unsigned or "host" not in given.headers:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            HeadersNotSigned=", ".join(unsigned or ["host"]),
        )
    if given.region != settings.region:
        raise wrong_region(settings, given.region)
    wanted = signature(
        secret=settings.accept_keys[given.key],
        method=head.method,
        target=head.target,
        headers=head.headers,
        signed=given.headers,
        scope=(given.date, given.region, given.service),
    )
    if not hmac.compare_digest(wanted, given.signature):
        raise S3Error("SignatureDoesNotMatch", AWSAccessKeyId=given.key)
    if settings.expired or head.headers.get("x-amz-security-token") in settings.expired_tokens:
        raise S3Error("ExpiredToken")


def _check_date(head: Head, given: Authorization) -> None:
    try:
        date = datetime.strptime(head.headers.get("x-amz-date", ""), "%Y%m%dT%H%M%SZ")
    except ValueError:
        raise S3Error(
            "AccessDenied", "AWS authentication requires a valid Date or x-amz-date header"
        ) from None
    if date.strftime("%Y%m%d") != given.date:
        raise S3Error("AuthorizationHeaderMalformed", "Invalid credential date: it is not that of x-amz-date")
    if abs(datetime.now(timezone.utc) - date.replace(tzinfo=timezone.utc)) > _SKEW:
        raise S3Error("RequestTimeTooSkewed")


def wrong_region(settings: Settings, got: str) -> S3Error:
    """Return the error of a request that was signed for another region."""
    headers = {"x-amz-bucket-region": settings.region}
    if settings.wrong_region == "redirect":
        return S3Error("PermanentRedirect", headers=headers)
    message = (
        f"The authorization header is malformed; the region '{got}' is wrong; expecting '{settings.region}'"
    )
    return S3Error("AuthorizationHeaderMalformed", message, Region=settings.region)


def check_allowed(settings: Settings, *actions: str, resource: str) -> None:
    """Raise AccessDenied, with the text of the real service, for the first action that is denied."""
    for action in actions:
        if action in settings.deny:
            name = action if ":" in action else f"s3:{action}"
            raise S3Error(
                "AccessDenied",
                f"User: arn:aws:iam::123456789012:user/tests is not authorized to perform: {name} on "
                f'resource: "arn:aws:s3:::{resource}" because no identity-based policy allows the {name} '
                "action",
            )
