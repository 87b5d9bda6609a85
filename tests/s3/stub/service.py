"""Handling of a request by the stub: faults, access, the operation; and its administration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.s3.stub.access import check_allowed, check_signature
from tests.s3.stub.errors import S3Error
from tests.s3.stub.objects import Bucket, check_content_sha256
from tests.s3.stub.settings import Settings
from tests.s3.stub.wire import Body, Head, Reply

_LOG_LIMIT = 200_000
_SSE = "x-amz-server-side-encryption"
_RIGHTS = {
    "HeadObject": "GetObject",
    "HeadBucket": "ListBucket",
    "DeleteObjects": "DeleteObject",
    "Other": "",
}


class HangError(Exception):
    """The request gets no answer."""


@dataclass(kw_only=True)
class Entry:
    """An entry of the log. status: 0 if no reply was sent."""

    method: str
    bucket: str
    key: str
    action: str
    query: dict[str, str]
    headers: dict[str, str]
    connection: int
    status: int = 0
    code: str = ""
    note: str = ""
    received_bytes: int = 0
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def right(self) -> str:
        """The permission that the requester needs."""
        return _RIGHTS.get(self.action, self.action)


def action_of(method: str, key: str, query: dict[str, str]) -> str:
    """Return the name of the operation; "Other" for unsupported operations."""
    if set(query) & {"uploads", "uploadId", "partNumber", "acl", "tagging", "versions", "policy"}:
        return "Other"
    if key:
        known = {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
        return known.get(method, "Other")
    if method == "POST":
        return "DeleteObjects" if "delete" in query else "Other"
    if method == "GET" and "location" in query:
        return "GetBucketLocation"
    return {"PUT": "CreateBucket", "GET": "ListBucket", "HEAD": "HeadBucket"}.get(method, "Other")


class Service:
    """Buckets, settings and the log. Used by one event loop's thread only."""

    def __init__(self, *, bucket: str, accept_keys: dict[str, str]) -> None:
        self._first = bucket
        self._keys = accept_keys
        self.reset()

    def reset(self) -> None:
        """Restore the initial state: one empty bucket, no faults, an empty log."""
        self.settings = Settings(accept_keys=dict(self._keys))
        self.buckets = {self._first: Bucket(self._first, self.settings)}
        self.log: deque[Entry] = deque(maxlen=_LOG_LIMIT)
        self._chance = random.Random(0)

    def entry(self, head: Head, connection: int) -> Entry:
        """Add a log entry for a request, in path style or with the bucket in the host's name."""
        host = head.headers.get("host", "").partition(":")[0]
        path = head.path.lstrip("/")
        named = next((name for name in self.buckets if host.startswith(name + ".")), None)
        bucket, _, key = (named, "", path) if named else path.partition("/")
        entry = Entry(
            method=head.method,
            bucket=bucket,
            key=key,
            action=action_of(head.method, key, head.query),
            query=head.query,
            headers=dict(head.headers),
            connection=connection,
        )
        self.log.append(entry)
        return entry

    def strikes(self, entry: Entry) -> bool:
        """Return whether faults by chance or by count strike this request."""
        return not self.settings.only or entry.right in self.settings.only

    def before(self, head: Head, entry: Entry) -> None:
        """Decide everything that does not need the body. Raises S3Error or HangError."""
        settings = self.settings
        self._fail(entry)
        if entry.action == "HeadBucket" and "authorization" not in head.headers:
            self._check_bucket(entry)
            raise S3Error("AccessDenied", headers={"x-amz-bucket-region": settings.region})
        check_signature(head, settings)
        self._check_bucket(entry)
        if settings.requester_pays and head.headers.get("x-amz-request-payer") != "requester":
            raise S3Error("AccessDenied")
        rights = [entry.right]
        if "x-amz-tagging" in head.headers:
            rights.append("PutObjectTagging")
        if head.headers.get(_SSE, "").startswith("aws:kms"):
            rights.append("kms:GenerateDataKey")
        resource = f"{entry.bucket}/{entry.key}" if entry.key else entry.bucket
        check_allowed(settings, *rights, resource=resource)

    def _check_bucket(self, entry: Entry) -> None:
        known = entry.bucket in self.buckets or entry.action == "CreateBucket"
        if not known or self.settings.missing_bucket:
            raise S3Error("NoSuchBucket", BucketName=entry.bucket)

    def _fail(self, entry: Entry) -> None:
        """Raise the fault, if any, that strikes this request."""
        settings = self.settings
        if settings.refuse:
            raise S3Error("ServiceUnavailable")
        if not self.strikes(entry):
            return
        if settings.hang:
            settings.hang -= 1
            entry.note = "left hanging"
            raise HangError
        if settings.fail_next:
            code = settings.fail_next.pop(0)
            if code:
                raise S3Error(code)
            return
        for code, probability in {"SlowDown": settings.slow_down, **settings.errors}.items():
            if probability and self._chance.random() < probability:
                raise S3Error(code)

    def do(self, head: Head, entry: Entry, body: Body) -> Reply:
        """Run the operation. Raises S3Error."""
        check_content_sha256(head, body)
        if entry.action == "CreateBucket":
            self.buckets.setdefault(entry.bucket, Bucket(entry.bucket, self.settings))
            return Reply(headers={"Location": f"/{entry.bucket}"})
        bucket = self.buckets[entry.bucket]
        match entry.action:
            case "PutObject":
                self._damage(entry, body)
                return bucket.put(entry.key, head, body)
            case "GetObject" | "HeadObject":
                return bucket.get(entry.key, head)
            case "DeleteObject":
                return bucket.delete(entry.key)
            case "DeleteObjects":
                return bucket.delete_many(head, body)
            case "ListBucket":
                return bucket.listing(head.query)
            case "HeadBucket":
                return Reply(headers={"x-amz-bucket-region": self.settings.region})
            case "GetBucketLocation":
                return bucket.location()
        raise S3Error("NotImplemented", f"{head.method} {sorted(head.query)} is not implemented here")

    def _damage(self, entry: Entry, body: Body) -> None:
        if self.settings.corrupt_bodies and body.data:
            self.settings.corrupt_bodies -= 1
            entry.note = "body damaged"
            damaged = bytearray(body.data)
            damaged[len(damaged) // 2] ^= 0x10
            body.data = bytes(damaged)

    def admin(self, head: Head, body: Body) -> Reply:
        """GET or POST /_admin; GET /_admin/log, /_admin/objects, /_admin/object?key=; POST /_admin/reset."""
        what = head.path.removeprefix("/_admin").strip("/")
        objects = self.buckets[head.query.get("bucket", self._first)].objects
        match head.method, what:
            case "POST", "":
                try:
                    changes = json.loads(body.data)
                    self.settings.update(changes)
                except ValueError as error:
                    return Reply(status=400, body=str(error).encode())
                if "seed" in changes:
                    self._chance = random.Random(self.settings.seed)
                return _json(dataclasses.asdict(self.settings))
            case "GET", "":
                return _json(dataclasses.asdict(self.settings))
            case "POST", "reset":
                self.reset()
                return _json({})
            case "GET", "log":
                return _json([dataclasses.asdict(entry) for entry in self.log])
            case "GET", "object" if head.query.get("key") in objects:
                return Reply(body=objects[head.query["key"]].data)
            case "GET", "objects":
                return _json(
                    {
                        key: {
                            "bytes": len(stored.data),
                            "sha256": hashlib.sha256(stored.data).hexdigest(),
                            "headers": stored.headers,
                            "checksums": stored.checksums,
                        }
                        for key, stored in sorted(objects.items())
                    }
                )
        return Reply(status=404)


def _json(value: Any) -> Reply:
    return Reply(headers={"Content-Type": "application/json"}, body=json.dumps(value).encode())
