"""Webhook: post findings as JSON to a URL, in the form that Slack and similar services accept.

    {"text": "...", "run": "...", "count": 2, "findings": [{"rule": ..., "step": ..., "tensor": ...}, ...]}

The URL of a webhook is a secret: messages contain only its scheme and host. Redirects are not followed.
"""

from __future__ import annotations

import ipaddress
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.parse import SplitResult, unquote, urlsplit

from tdcore.actions.base import Notice, Notifier, redacted, seconds_of
from tdcore.actions.retrying import PassingError, Retrying
from tdcore.errors import ActionError, ConfigError

__all__ = ["Webhook"]

_MAX_SAID = 200  # maximum number of bytes of an error response that are read
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Webhook(Notifier):
    """Post new findings to a URL, in one message per poll of the run.

    The body is JSON: {"text": ..., "run": ..., "count": ..., "findings": [...]}.

    Args:
        url: A URL with https. http is accepted only for this machine (then without a proxy), or with
            allow_http.
        allow_http: Accept http for other machines.
        timeout: Time to connect, and for each answer, per try.
        retrying: Number of tries and pauses after temporary failures: refused connections, timeouts, and the
            answers 408, 425, 429, 500, 502, 503 and 504.
        again_after: Time after which the same notice key is reported again; None: never.
        max_listed: Maximum number of findings in one message.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "webhook"

    def __init__(
        self,
        url: str,
        *,
        allow_http: bool = False,
        timeout: timedelta = timedelta(seconds=10),
        retrying: Retrying | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._timeout = seconds_of("Webhook.timeout", timeout)
        parts = _checked(url, allow_http=allow_http)
        self._url = url
        self._secrets = _secrets(url, parts)
        self._host = parts.hostname or ""
        self.shown = f"{parts.scheme}://{parts.netloc}/***"
        self._retrying = retrying or Retrying()
        # A proxy of the environment would get data for this machine without encryption.
        here = [urllib.request.ProxyHandler({})] if _is_here(self._host) else []
        self._open: Callable[..., Any] = urllib.request.build_opener(NoRedirects(), *here).open

    def __repr__(self) -> str:
        return f"Webhook({self.shown!r})"

    def send(self, notice: Notice) -> bool:
        """Send one message for new findings. Raises ActionError."""
        text = notice.text
        if self._host == "slack.com" or self._host.endswith(".slack.com"):
            # In Slack "<...>" is a command, for example a notification of all members of a channel.
            text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        body = json.dumps({"text": text, **notice.to_json()}).encode()
        self._retrying.call(lambda: self._post(body))
        return True

    def _post(self, body: bytes) -> None:
        request = urllib.request.Request(
            self._url,
            data=body,
            headers={"Content-Type": "application/json; charset=utf-8", "User-Agent": "tdcore"},
        )
        # "from None" below, because the errors of urllib contain the whole URL.
        try:
            with self._open(request, timeout=self._timeout):
                pass  # the status is sufficient
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            said = redacted(str(reason) or type(error).__name__, self._secrets)
            raise PassingError(f"{self.shown} does not answer: {said}") from None

    def _refusal(self, error: urllib.error.HTTPError) -> ActionError:
        if 300 <= error.code < 400:
            target = _host_of(error.headers.get("Location", "")) or "another path"
            return ActionError(
                f"{self.shown} answers {error.code} with a redirect to {redacted(target, self._secrets)}; "
                "redirects are not followed: give the final URL"
            )
        said = redacted(_first_words(error), self._secrets)
        message = f"{self.shown} answers {error.code}" + (f": {said}" if said else "")
        if error.code not in _PASSING:
            return ActionError(message)
        after = error.headers.get("Retry-After", "")
        return PassingError(message, after=float(after) if re.fullmatch("[0-9]{1,5}", after) else 0.0)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirect handler that raises HTTPError for every redirect."""

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> None:
        """See HTTPRedirectHandler. The body of the response is not read."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _checked(url: object, *, allow_http: bool) -> SplitResult:
    """The parts of the URL. Raises ConfigError, which does not contain the URL."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError("Webhook.url must be a URL of printable ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise ConfigError("Webhook.url has an invalid host or port") from None
    if parts.scheme not in ("https", "http") or not host:
        raise ConfigError("Webhook.url must begin with https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "Webhook.url must not contain a user or password; put the secret into the path or query"
        )
    if parts.scheme == "http" and not allow_http and not _is_here(host):
        raise ConfigError(
            f"Webhook.url would send its secret to {host} unencrypted; use https, or allow_http=True"
        )
    return parts


def _secrets(url: str, parts: SplitResult) -> list[str]:
    """The URL and its parts that may be secret, because a server may repeat them in its answer."""
    said = f"{parts.path}?{parts.query}"
    words = (word for text in (said, unquote(said)) for word in re.split(r"[/?&=]", text))
    steps = parts.path.split("/")
    return [url, said, *words, *("/".join(steps[first:]) for first in range(len(steps)))]


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _first_words(error: urllib.error.HTTPError) -> str:
    """First line of an error response. One call reads it, so that a slow server cannot block."""
    try:
        return bytes(error.read1(_MAX_SAID)).decode("utf-8", "replace").strip()
    except (OSError, HTTPException, ValueError):
        return ""


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
