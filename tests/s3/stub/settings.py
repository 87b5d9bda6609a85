"""Settings of the stub, for a service that denies access, is in another region, overloaded, or damaged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.s3.stub.errors import CODES

ACTIONS = (
    "CreateBucket",
    "DeleteObject",
    "GetBucketLocation",
    "GetObject",
    "ListBucket",
    "PutObject",
    "PutObjectTagging",
    "kms:Decrypt",
    "kms:GenerateDataKey",
)


@dataclass(kw_only=True)
class Settings:
    """All settings; by default without faults. Change with POST /_admin; each change is checked.

    Faults by chance or by count strike requests of the actions in `only`, or all requests if it is empty.
    """

    accept_keys: dict[str, str] = field(default_factory=dict)  # access key: secret key
    expired: bool = False  # all credentials get ExpiredToken
    expired_tokens: list[str] = field(default_factory=list)  # accepts only requests with these session tokens
    deny: list[str] = field(default_factory=list)  # actions that get AccessDenied
    missing_bucket: bool = False  # all requests get NoSuchBucket
    requester_pays: bool = False  # AccessDenied to requests without x-amz-request-payer
    region: str = "us-east-1"
    wrong_region: str = (
        "malformed"  # reply to another region's signature: "malformed" (400) or "redirect" (301)
    )
    max_keys: int = 1000  # maximum number of keys in a page of a listing
    ignore_if_none_match: bool = False
    not_implemented_if_none_match: bool = False
    ignore_checksums: bool = False  # ignores x-amz-checksum-* and Content-MD5
    only: list[str] = field(default_factory=list)
    seed: int = 0
    slow_down: float = 0.0  # probability of SlowDown
    errors: dict[str, float] = field(default_factory=dict)  # code: probability
    fail_next: list[str] = field(default_factory=list)  # codes of the next requests, one each; "" is success
    retry_after: float = 0.0  # seconds, header Retry-After of replies with 503 and 429; 0 = no header
    refuse: bool = False  # every request gets ServiceUnavailable
    latency: float = 0.0  # delay of each request, in seconds
    corrupt_bodies: int = 0  # number of next puts whose bodies are damaged after they arrived
    lose_replies: int = 0  # number of next requests that are done, but whose connection ends without a reply
    reset_replies: int = 0  # the same, with a reset
    hang: int = 0  # number of next requests that are neither done nor answered
    body_timeout: float = 20.0  # seconds until RequestTimeout for an incomplete body
    requests_per_connection: int = 0  # seconds until an idle connection is closed without a reply; 0 = never

    def update(self, changes: Mapping[str, Any]) -> None:
        """Set some of the settings; all or none. Raises ValueError that names the invalid one."""
        known = {entry.name: getattr(Settings(), entry.name) for entry in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"no setting {name!r}; there are {', '.join(sorted(known))}")
            wanted = type(known[name])
            if not isinstance(value, wanted) and not (wanted is float and type(value) is int):
                raise ValueError(f"setting {name!r} is a {wanted.__name__}, got {value!r}")
        lists: dict[str, tuple[str, ...] | list[str]] = {
            "deny": ACTIONS,
            "only": ACTIONS,
            "fail_next": ["", *CODES],
        }
        lists |= {"errors": CODES}
        for name, allowed in lists.items():
            wrong = [one for one in changes.get(name, ()) if one not in allowed]
            if wrong:
                raise ValueError(f"setting {name!r} holds {wrong}; it may hold {', '.join(allowed)}")
        if changes.get("wrong_region", "malformed") not in ("malformed", "redirect"):
            raise ValueError("setting 'wrong_region' is 'malformed' or 'redirect'")
        for name, value in changes.items():
            setattr(self, name, value)
