"""ObstoreEngine: S3 through obstore, a client in Rust. This engine uses less CPU time than the other.

The parts of an object are sent without a copy. The payload is not signed. A CRC64NVME checksum, which needs
much less CPU time than SHA-256, is sent with the payload and verified by the service.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from tdcore.sinks.base import Buffer
from tdcore.sinks.s3.aws_chain import AwsChain, no_credentials
from tdcore.sinks.s3.engine import within
from tdcore.sinks.s3.errors import S3Error, S3ErrorKind, connection_error, error_from_reply
from tdcore.sinks.s3.options import S3Options, S3Place

__all__ = ["ObstoreEngine"]

_PAGE = 1000
_NO_LIMIT = timedelta(days=1)
_STATUS = re.compile(r"status code: (\d{3})[^:\n]*:\s*(.*?)(?:\n\nDebug source|\Z)", re.DOTALL)
_NO_CREDENTIALS = ("External AWS credential provider", "/latest/api/token", "/latest/meta-data")
_HINTS: tuple[tuple[tuple[str, ...], S3ErrorKind], ...] = (
    (("redirect",), "region"),
    (("TimedOut", "timed out", "Timeout"), "timeout"),
    (("Generic Config error",), "refused"),
)

T = TypeVar("T")


class ObstoreEngine:
    """S3Engine that uses obstore; see engine.S3Engine."""

    name = "obstore"
    sends_crc32c = False

    def __init__(self, reads: Any, writes: Any, damaged: Any, options: S3Options) -> None:
        self._reads = reads  # times out if an answer pauses for read_timeout
        self._writes = writes  # no read timeout, which would include the time to send
        self._damaged = damaged  # sends a wrong checksum
        self._attributes = {"Content-Type": "application/octet-stream"}
        if options.storage_class:
            self._attributes["Storage-Class"] = options.storage_class
        self._tags = dict(options.tags) or None
        self.reads_ranges = True

    @classmethod
    async def open(cls, place: S3Place, *, region: str | None = None) -> ObstoreEngine:
        """Create the clients for `place`. See engine.open_engine."""

        def make() -> ObstoreEngine:
            chain = AwsChain.of(place, region=region)
            settings = _settings(place, chain)
            client = _client(place.options, chain)
            checksum = place.options.checksum
            algorithm = {"auto": "crc64nvme", "none": None}.get(checksum, checksum)
            summed = {**settings, "checksum_algorithm": algorithm} if algorithm else settings
            wrong = {**client, "default_headers": {"x-amz-checksum-crc32c": "AAAAAA=="}}
            patient = {**client, "read_timeout": place.options.read_timeout}
            return cls(
                _store(place.bucket, summed, patient),
                _store(place.bucket, summed, client),
                _store(place.bucket, settings, wrong),
                place.options,
            )

        return await asyncio.to_thread(make)

    async def put(
        self, key: str, parts: Sequence[Buffer], *, crc32c: int, seconds: float, if_absent: bool = False
    ) -> None:
        """See Engine.put."""
        await self._put(self._writes, key, parts, seconds, if_absent)

    async def get(self, key: str, *, seconds: float) -> Buffer:
        """See Engine.get."""
        return await self._read(key, None, seconds)

    async def get_range(self, key: str, offset: int, length: int, *, seconds: float) -> Buffer:
        """See Engine.get_range."""
        if self.reads_ranges:
            try:
                return await self._read(key, {"range": (offset, offset + length)}, seconds)
            except _NotPartial:
                self.reads_ranges = False
        return (await self._read(key, None, seconds))[offset : offset + length]

    async def tail(self, key: str, length: int, *, seconds: float) -> Buffer:
        """See Engine.tail."""
        if self.reads_ranges:
            try:
                return await self._read(key, {"range": {"suffix": length}}, seconds)
            except _NotPartial:
                self.reads_ranges = False
        return (await self._read(key, None, seconds))[-length:]

    async def head(self, key: str, *, seconds: float) -> int | None:
        """See Engine.head."""
        import obstore

        try:
            return int((await _asked(within(seconds, obstore.head_async(self._reads, key))))["size"])
        except S3Error as failure:
            if failure.kind == "missing":
                return None
            raise

    async def pages(self, prefix: str, after: str, *, seconds: float) -> AsyncIterator[list[str]]:
        """See Engine.pages. obstore lists whole folders, so the prefix is compared here."""
        import obstore

        folder = prefix.rpartition("/")[0]
        after = max(after, _just_before(prefix))
        stream = obstore.list(self._reads, folder or None, offset=after or None, chunk_size=_PAGE)
        iterator = stream.__aiter__()
        while True:
            try:
                page = await _asked(within(seconds, iterator.__anext__()))
            except StopAsyncIteration:
                return
            keys = [meta["path"] for meta in page]
            yield [key for key in keys if key.startswith(prefix) and key > after]
            if keys and keys[-1] > prefix and not keys[-1].startswith(prefix):
                return

    async def delete(self, key: str, *, seconds: float) -> None:
        """See Engine.delete."""
        import obstore

        try:
            await _asked(within(seconds, obstore.delete_async(self._writes, key)))
        except S3Error as failure:
            if failure.kind != "missing":
                raise

    async def refuses_damage(self, key: str, *, seconds: float) -> bool:
        """See Engine.refuses_damage."""
        try:
            await self._put(self._damaged, key, [b"not what the checksum says"], seconds, False)
        except S3Error as failure:
            if failure.status != 400:
                raise
            return True
        return False

    async def close(self) -> None:
        """Delete the clients, which closes the connections."""
        self._reads = self._writes = self._damaged = None

    async def _put(
        self, store: Any, key: str, parts: Sequence[Buffer], seconds: float, if_absent: bool
    ) -> None:
        import obstore

        views = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        try:
            await _asked(
                within(
                    seconds,
                    obstore.put_async(
                        store, key, views or b"", use_multipart=False, attributes=self._attributes,
                        tags=self._tags, mode="create" if if_absent else "overwrite",
                    ),
                )
            )  # fmt: skip
        finally:
            await _let_go(views)

    async def _read(self, key: str, options: Any, seconds: float) -> memoryview:
        import obstore

        result = await _asked(within(seconds, obstore.get_async(self._reads, key, options=options)))
        return memoryview(await _asked(result.bytes_async()))


class _NotPartial(Exception):  # noqa: N818 -- caught in this module
    """The service has answered a range request with the whole object, which obstore rejects."""


async def _let_go(views: list[memoryview]) -> None:
    """Wait until the client has released all `views`, which takes a moment after a cancelled put.

    A cancelled put must wait for the release, because the memory of the views is used again afterwards.
    """
    cancelled = False
    while not all(_released(view) for view in views):
        cancelled = await _pause() or cancelled
    if cancelled:
        raise asyncio.CancelledError


async def _pause() -> bool:
    """Sleep for a millisecond. Return whether the task was cancelled during the sleep."""
    try:
        await asyncio.sleep(0.001)
    except asyncio.CancelledError:
        return True
    return False


def _released(view: memoryview) -> bool:
    try:
        view.release()
    except BufferError:  # a client thread still reads the view
        return False
    return True


async def _asked(work: Awaitable[T]) -> T:
    """The result of `work`. All exceptions of obstore become S3Error."""
    import obstore.exceptions

    try:
        return await work
    except (obstore.exceptions.BaseError, OSError, ValueError) as error:
        raise _s3_error(str(error)) from error


def _s3_error(text: str) -> S3Error:
    """The failure in the text of an error of obstore. Raises _NotPartial."""
    if "non-partial response" in text:
        raise _NotPartial
    if any(hint in text for hint in _NO_CREDENTIALS):
        return no_credentials()
    if found := _STATUS.search(text):
        return error_from_reply(int(found[1]), found[2])
    for hints, kind in _HINTS:
        if any(hint in text for hint in hints):
            return S3Error(kind)
    return connection_error(text)


def _store(bucket: str, settings: dict[str, Any], client: dict[str, Any]) -> Any:
    from obstore.store import S3Store

    return S3Store(bucket, client_options=client, retry_config={"max_retries": 0}, **settings)  # type: ignore[arg-type]


def _settings(place: S3Place, chain: AwsChain) -> dict[str, Any]:
    """Settings of obstore's store, without the checksum."""
    options = place.options
    endpoint = chain.url() if chain.path_style else chain.bucket_url(place.bucket)
    settings: dict[str, Any] = {
        "region": chain.region,
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,  # so that no environment variable has priority
        "virtual_hosted_style_request": not chain.path_style,
        "unsigned_payload": options.checksum != "sha256",
        "disable_bulk_delete": True,
        "server_side_encryption": options.sse,
        "sse_kms_key_id": options.sse_kms_key_id,
        "sse_bucket_key_enabled": options.bucket_key,
        "request_payer": options.requester_pays or None,
        "credential_provider": chain.credentials(),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _client(options: S3Options, chain: AwsChain) -> dict[str, Any]:
    """Settings of the HTTP client."""
    client: dict[str, Any] = {
        "allow_http": True,
        "http1_only": True,
        "connect_timeout": options.connect_timeout,
        "timeout": _NO_LIMIT,  # store.S3Store has the time limit
    }
    if (certificates := chain.certificates()) is not None:
        client["root_certificate"] = certificates
    return client


def _just_before(prefix: str) -> str:
    """A text that sorts immediately before all keys with this prefix; "" if there is none."""
    last = prefix[-1:]
    if last.isascii() and last.isalnum() and last not in "0Aa":
        return f"{prefix[:-1]}{chr(ord(last) - 1)}~"
    return ""
