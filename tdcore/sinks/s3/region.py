"""Search for the region of a bucket, which S3 returns without credentials."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

from tdcore.sinks.s3.aws_chain import AwsChain

__all__ = ["find_region"]


def find_region(chain: AwsChain, bucket: str, seconds: float) -> str | None:
    """Region in the response to an unsigned HEAD request of the bucket, or None. The call blocks."""
    certificates = chain.certificates()
    request = urllib.request.Request(chain.bucket_url(bucket), method="HEAD")
    try:
        context = None
        if certificates is not None:
            context = ssl.create_default_context(cadata=certificates.decode("ascii", "ignore"))
        handlers: list[Any] = [_StayHere, urllib.request.HTTPSHandler(context=context)]
        opener = urllib.request.build_opener(*handlers)
        with opener.open(request, timeout=seconds) as answer:
            headers: Message = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
        error.close()
    except (OSError, http.client.HTTPException):
        return None
    region = headers.get("x-amz-bucket-region")
    return str(region) if region else None


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Redirect handler that follows no redirects, because they contain the region."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
