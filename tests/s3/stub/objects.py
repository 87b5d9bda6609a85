"""Objects of the stub and the operations on them, after the access checks."""

from __future__ import annotations

import base64
import binascii
import bisect
import hashlib
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

from tests.s3.stub import checksums
from tests.s3.stub.access import check_allowed
from tests.s3.stub.errors import S3Error
from tests.s3.stub.settings import Settings
from tests.s3.stub.wire import Body, Head, Reply

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_STREAMED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_STORAGE_CLASSES = (
    "STANDARD",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "GLACIER_IR",
    "DEEP_ARCHIVE",
    "REDUCED_REDUNDANCY",
    "EXPRESS_ONEZONE",
)
_SSE = "x-amz-server-side-encryption"
_KEPT = (
    _SSE,
    f"{_SSE}-aws-kms-key-id",
    f"{_SSE}-bucket-key-enabled",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-amz-request-payer",
    "content-type",
)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One object."""

    data: bytes
    headers: dict[str, str]  # headers of the put that are kept
    checksums: dict[str, str]  # header: value of the checksums that the put contained, all verified
    modified: float = field(default_factory=time.time)

    @property
    def etag(self) -> str:
        return '"' + hashlib.md5(self.data, usedforsecurity=False).hexdigest() + '"'


def check_content_sha256(head: Head, body: Body) -> None:
    """Raise the S3Error of a body that does not match the hash in the signature."""
    given = head.headers.get("x-amz-content-sha256", "")
    if given.startswith("STREAMING-"):
        if given != _STREAMED or "aws-chunked" not in head.headers.get("content-encoding", ""):
            raise S3Error("NotImplemented", f"x-amz-content-sha256 {given} is not implemented here")
        return
    if given != "UNSIGNED-PAYLOAD" and given != hashlib.sha256(body.data).hexdigest():
        raise S3Error("XAmzContentSHA256Mismatch", ClientComputedContentSHA256=given)


def checked_checksums(head: Head, body: Body) -> dict[str, str]:
    """Return the x-amz-checksum-* headers and trailers. Raises S3Error if one does not match."""
    md5 = head.headers.get("content-md5")
    if md5 is not None:
        if len(_decoded(md5) or b"") != 16:
            raise S3Error("InvalidDigest")
        if _decoded(md5) != hashlib.md5(body.data, usedforsecurity=False).digest():
            raise S3Error("BadDigest", "The Content-MD5 you specified did not match what we received.")
    values = {**head.headers, **body.trailers}
    names = {name: f"x-amz-checksum-{name}" for name in checksums.ALGORITHMS}
    given = {name: values[header] for name, header in names.items() if header in values}
    for name in head.headers.get("x-amz-trailer", "").split(","):
        if name and name not in body.trailers:
            raise S3Error("InvalidRequest", f"The trailer {name} was announced and did not come")
    announced = head.headers.get("x-amz-sdk-checksum-algorithm", "").lower()
    if announced and announced not in given:
        raise S3Error(
            "InvalidRequest",
            "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer "
            "headers were found.",
        )
    if len(given) > 1:
        raise S3Error("InvalidRequest", "Expecting a single x-amz-checksum- header. Got several.")
    for name, value in given.items():
        wanted = checksums.ALGORITHMS[name](body.data)
        if len(_decoded(value) or b"") != len(wanted):
            raise S3Error("InvalidRequest", f"Value for x-amz-checksum-{name} header is invalid.")
        if _decoded(value) != wanted:
            raise S3Error(
                "BadDigest", f"The {name.upper()} you specified did not match the calculated checksum."
            )
    return {f"x-amz-checksum-{name}": value for name, value in given.items()}


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


class Bucket:
    """Objects by key, and the operations of the API on them."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self.objects: dict[str, Stored] = {}

    def put(self, key: str, head: Head, body: Body) -> Reply:
        """PutObject."""
        if len(key.encode()) > 1024:
            raise S3Error("KeyTooLongError")
        self._check_put_headers(head)
        given = {} if self.settings.ignore_checksums else checked_checksums(head, body)
        condition = head.headers.get("if-none-match")
        if condition is not None and not self.settings.ignore_if_none_match:
            if self.settings.not_implemented_if_none_match or condition != "*":
                raise S3Error("NotImplemented", Header="If-None-Match")
            if key in self.objects:
                raise S3Error("PreconditionFailed", Condition="If-None-Match")
        kept = {name: head.headers[name] for name in _KEPT if name in head.headers}
        stored = Stored(data=body.data, headers=kept, checksums=given)
        self.objects[key] = stored
        return Reply(headers={"ETag": stored.etag, **given, **_encryption(stored)})

    def _check_put_headers(self, head: Head) -> None:
        headers = head.headers
        sse = headers.get(_SSE)
        if sse not in (None, "AES256", "aws:kms", "aws:kms:dsse"):
            raise S3Error("InvalidEncryptionAlgorithmError")
        if f"{_SSE}-aws-kms-key-id" in headers and sse not in ("aws:kms", "aws:kms:dsse"):
            raise S3Error("InvalidArgument", "A KMS key id needs x-amz-server-side-encryption: aws:kms")
        if headers.get(f"{_SSE}-bucket-key-enabled", "true") not in ("true", "false"):
            raise S3Error("InvalidArgument", "bucket-key-enabled is true or false")
        if headers.get("x-amz-storage-class", "STANDARD") not in _STORAGE_CLASSES:
            raise S3Error("InvalidStorageClass")
        if headers.get("x-amz-request-payer", "requester") != "requester":
            raise S3Error("InvalidArgument", "x-amz-request-payer is requester")
        _check_tags(headers.get("x-amz-tagging", ""))

    def get(self, key: str, head: Head) -> Reply:
        """GetObject and HeadObject, with Range and If-Match."""
        stored = self.objects.get(key)
        if stored is None:
            # without the permission to list, a missing key is not revealed
            check_allowed(self.settings, "ListBucket", resource=self.name)
            raise S3Error("NoSuchKey", Key=key)
        if head.headers.get("if-match", stored.etag) not in ("*", stored.etag):
            raise S3Error("PreconditionFailed", Condition="If-Match")
        headers = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": stored.headers.get("content-type", "binary/octet-stream"),
            **_encryption(stored),
        }
        if "x-amz-storage-class" in stored.headers:
            headers["x-amz-storage-class"] = stored.headers["x-amz-storage-class"]
        asked = _range(head.headers.get("range"), len(stored.data))
        if asked is None:
            if head.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
                headers |= stored.checksums
            return self._content(head, Reply(headers=headers, body=stored.data))
        first, last = asked
        headers["Content-Range"] = f"bytes {first}-{last}/{len(stored.data)}"
        part = memoryview(stored.data)[first : last + 1]
        return self._content(head, Reply(status=206, headers=headers, body=part))

    def _content(self, head: Head, reply: Reply) -> Reply:
        if head.method == "HEAD":
            reply.size, reply.body = len(reply.body), b""
        return reply

    def delete(self, key: str) -> Reply:
        """DeleteObject: succeeds for missing keys, too."""
        self.objects.pop(key, None)
        return Reply(status=204)

    def location(self) -> Reply:
        """GetBucketLocation: empty for us-east-1."""
        region = "" if self.settings.region == "us-east-1" else self.settings.region
        return _document(f"<LocationConstraint {_NAMESPACE}>{region}</LocationConstraint>")

    def delete_many(self, head: Head, body: Body) -> Reply:
        """DeleteObjects."""
        given = checked_checksums(head, body)
        if not given and "content-md5" not in head.headers:
            message = "Missing required header for this request: Content-MD5 OR x-amz-checksum-*"
            raise S3Error("InvalidRequest", message)
        try:
            root = ET.fromstring(body.data)
        except ET.ParseError:
            raise S3Error("MalformedXML") from None
        texts = [(node.tag.rpartition("}")[2], node.text or "") for node in root.iter()]
        keys = [text for tag, text in texts if tag == "Key"]
        if not 1 <= len(keys) <= 1000:
            raise S3Error("MalformedXML")
        for key in keys:
            self.delete(key)
        quiet = ("Quiet", "true") in texts
        done = "" if quiet else "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _document(f"<DeleteResult {_NAMESPACE}>{done}</DeleteResult>")

    def listing(self, query: dict[str, str]) -> Reply:
        """ListObjectsV2: prefix, delimiter, start-after, continuation-token, max-keys, encoding-type."""
        if query.get("list-type") != "2":
            raise S3Error("NotImplemented", "Only ListObjectsV2 (list-type=2) is implemented here")
        if not query.get("max-keys", "1").isdigit():
            raise S3Error("InvalidArgument", "Provided max-keys not an integer or within integer range")
        token = query.get("continuation-token")
        after = query.get("start-after", "") if token is None else _token(token)
        size = min(int(query.get("max-keys", "1000")), self.settings.max_keys)
        shown = _url_encoded if query.get("encoding-type") == "url" else escape
        prefix = query.get("prefix", "")
        names, last = self._page(prefix, query.get("delimiter", ""), after, size)
        parts = {
            "Name": escape(self.name),
            "Prefix": shown(prefix),
            "KeyCount": str(len(names)),
            "MaxKeys": str(size),
            "IsTruncated": "true" if last else "false",
        }
        if "encoding-type" in query:
            parts["EncodingType"] = "url"
        if last:
            parts["NextContinuationToken"] = base64.urlsafe_b64encode(last.encode()).decode()
        head = "".join(f"<{name}>{text}</{name}>" for name, text in parts.items())
        entries = "".join(
            self._entry(name, shown(name)) if whole else _common(shown(name)) for name, whole in names.items()
        )
        return _document(f"<ListBucketResult {_NAMESPACE}>{head}{entries}</ListBucketResult>")

    def _page(self, prefix: str, delimiter: str, after: str, size: int) -> tuple[dict[str, bool], str]:
        """Return the names of a page (False: a common prefix) and its last key (empty on the last page)."""
        ordered = sorted((key for key in self.objects if key.startswith(prefix)), key=str.encode)
        names: dict[str, bool] = {}
        last = ""
        for key in ordered[bisect.bisect_right(ordered, after.encode(), key=str.encode) :]:
            group, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            name = prefix + group + delimiter if found else key
            if found and after.startswith(name):
                continue
            if name not in names and len(names) == size:
                return names, last
            names[name] = not found
            last = key
        return names, ""

    def _entry(self, key: str, shown: str) -> str:
        stored = self.objects[key]
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
        kind = stored.headers.get("x-amz-storage-class", "STANDARD")
        return (
            f"<Contents><Key>{shown}</Key><LastModified>{modified}</LastModified><ETag>{escape(stored.etag)}</ETag>"
            f"<Size>{len(stored.data)}</Size><StorageClass>{kind}</StorageClass></Contents>"
        )


def _check_tags(header: str) -> None:
    """Raise InvalidTag unless the value is at most 10 tags, written as in a query."""
    try:
        tags = parse_qsl(header, keep_blank_values=True, strict_parsing=True) if header else []
    except ValueError:
        raise S3Error("InvalidTag") from None
    if len(tags) > 10 or any(not name or len(name) > 128 or len(value) > 256 for name, value in tags):
        raise S3Error("InvalidTag")


def _common(shown: str) -> str:
    return f"<CommonPrefixes><Prefix>{shown}</Prefix></CommonPrefixes>"


def _document(text: str) -> Reply:
    return Reply(headers={"Content-Type": "application/xml"}, body=(_XML + text).encode())


def _encryption(stored: Stored) -> dict[str, str]:
    given = {name: value for name, value in stored.headers.items() if name.startswith(_SSE)}
    return {_SSE: "AES256", **given}


def _token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError):
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect") from None


def _url_encoded(text: str) -> str:
    return quote(text, safe="/")


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return first and last byte; None for the whole object, also if the header is invalid."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first and last and int(first) > int(last):
        return None
    begin = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if begin >= size or (not first and int(last) == 0):
        raise S3Error("InvalidRange", ActualObjectSize=str(size), RangeRequested=header or "")
    return begin, end
