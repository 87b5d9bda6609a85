"""AiobotocoreEngine: S3 through aiobotocore, the asynchronous AWS SDK, which supports every option of AWS.

aiobotocore accepts files but no lists of buffers, so large objects are passed as a file that reads from the
buffers. The payload is not signed. Its checksum is computed before the upload, sent with the payload, and
verified by the service.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from tdcore.sinks.base import Buffer
from tdcore.sinks.s3.aws_chain import AwsChain, no_credentials
from tdcore.sinks.s3.engine import within
from tdcore.sinks.s3.errors import S3Error, connection_error, error_from_reply
from tdcore.sinks.s3.options import OTHERS_PER_UPLOAD, S3Options, S3Place
from tdcore.sinks.s3.parts import PartsReader

__all__ = ["AiobotocoreEngine"]

_PAGE = 1000
_PIECE_BYTES = 1 << 20
_SMALL_BYTES = 256 << 10  # for smaller objects one copy costs less than reading in a thread
_NO_LIMIT = 86_400  # seconds


class AiobotocoreEngine:
    """S3Engine that uses aiobotocore; see engine.S3Engine."""

    name = "aiobotocore"

    def __init__(self, place: S3Place, client: Any, closing: contextlib.AsyncExitStack) -> None:
        self._client = client
        self._closing = closing
        self._options = place.options
        self._bucket = {"Bucket": place.bucket}
        if place.options.requester_pays:
            self._bucket["RequestPayer"] = "requester"
        self._object = _object_settings(place.options)
        self.reads_ranges = True
        self.sends_crc32c = place.options.checksum in ("auto", "crc32c")

    @classmethod
    async def open(cls, place: S3Place, *, region: str | None = None) -> AiobotocoreEngine:
        """Create the client for `place`. See engine.open_engine."""
        from aiobotocore.session import AioSession

        chain = await asyncio.to_thread(AwsChain.of, place, region=region)
        session = AioSession(profile=place.options.profile)
        _share_service_data(session)
        with _as_s3_error("NoCredentials"):
            credentials = await session.get_credentials()
        if credentials is None:
            raise no_credentials()
        await asyncio.to_thread(chain.certificates)  # raises an error for an invalid file
        closing = contextlib.AsyncExitStack()
        client = await closing.enter_async_context(
            session.create_client(
                "s3", region_name=chain.region, endpoint_url=chain.endpoint_url, verify=chain.ca_bundle,
                config=_config(place.options, chain),
            )
        )  # fmt: skip
        return cls(place, client, closing)

    async def put(
        self, key: str, parts: Sequence[Buffer], *, crc32c: int, seconds: float, if_absent: bool = False
    ) -> None:
        """See Engine.put."""
        views = [memoryview(part).cast("B") for part in parts]
        settings = {**self._object, **self._checksum(views, crc32c)}
        if if_absent:
            settings["IfNoneMatch"] = "*"
        reader = PartsReader(views)
        body = reader if sum(view.nbytes for view in views) > _SMALL_BYTES else b"".join(views)
        try:
            await self._ask(seconds, self._client.put_object, Key=key, Body=body, **settings)
        except S3Error as failure:  # aiohttp sends again if an old connection was closed
            failure.resent = failure.kind == "exists"
            raise
        finally:
            reader.release()
            for view in views:
                view.release()

    async def get(self, key: str, *, seconds: float) -> Buffer:
        """See Engine.get."""
        return await self._read(key, None, seconds, slice(None))

    async def get_range(self, key: str, offset: int, length: int, *, seconds: float) -> Buffer:
        """See Engine.get_range."""
        return await self._read(
            key, f"bytes={offset}-{offset + length - 1}", seconds, slice(offset, offset + length)
        )

    async def tail(self, key: str, length: int, *, seconds: float) -> Buffer:
        """See Engine.tail."""
        return await self._read(key, f"bytes=-{length}", seconds, slice(-length, None))

    async def head(self, key: str, *, seconds: float) -> int | None:
        """See Engine.head."""
        try:
            answer = await self._ask(seconds, self._client.head_object, Key=key)
        except S3Error as failure:
            if failure.kind == "missing":
                return None
            raise
        return int(answer["ContentLength"])

    async def pages(self, prefix: str, after: str, *, seconds: float) -> AsyncIterator[list[str]]:
        """See Engine.pages."""
        place: dict[str, str] = {"StartAfter": after} if after else {}
        while True:
            answer = await self._ask(
                seconds, self._client.list_objects_v2, Prefix=prefix, MaxKeys=_PAGE, **place
            )
            yield [entry["Key"] for entry in answer.get("Contents", ()) if entry["Key"] > after]
            if not answer.get("IsTruncated"):
                return
            place = {"ContinuationToken": answer["NextContinuationToken"]}

    async def delete(self, key: str, *, seconds: float) -> None:
        """See Engine.delete."""
        try:
            await self._ask(seconds, self._client.delete_object, Key=key)
        except S3Error as failure:
            if failure.kind != "missing":
                raise

    async def refuses_damage(self, key: str, *, seconds: float) -> bool:
        """See Engine.refuses_damage."""
        damaged = {"Body": b"not what the checksum says", "ChecksumCRC32C": "AAAAAA=="}
        try:
            await self._ask(seconds, self._client.put_object, Key=key, **damaged, **self._object)
        except S3Error as failure:
            if failure.status != 400:
                raise
            return True
        return False

    async def close(self) -> None:
        """See Engine.close."""
        await self._closing.aclose()

    def _checksum(self, views: Sequence[memoryview], crc32c: int) -> dict[str, str]:
        if self.sends_crc32c:
            return {"ChecksumCRC32C": base64.b64encode(crc32c.to_bytes(4, "big")).decode()}
        if self._options.checksum == "sha256":
            digest = hashlib.sha256()
            for view in views:
                digest.update(view)
            return {"ChecksumSHA256": base64.b64encode(digest.digest()).decode()}
        return {}

    async def _read(self, key: str, wanted: str | None, seconds: float, part: slice) -> Buffer:
        """The bytes of the range `wanted`. part: the same range, if the service sends the whole object."""
        options = {} if wanted is None else {"Range": wanted}
        answer = await self._ask(seconds, self._client.get_object, Key=key, **options)
        pause = self._options.read_timeout.total_seconds()
        expected, pieces = int(answer["ContentLength"]), bytearray()
        with _as_s3_error():
            body = answer["Body"]
            try:
                while piece := await within(pause, body.read(_PIECE_BYTES)):
                    pieces += piece
            finally:
                body.close()
        if len(pieces) != expected:
            raise S3Error("connection")
        if wanted is None or answer.get("ContentRange"):
            return pieces
        self.reads_ranges = False
        return pieces[part]

    async def _ask(self, seconds: float, operation: Any, **settings: Any) -> Any:
        """The answer to one request. All exceptions of botocore become S3Error."""
        with _as_s3_error():
            return await within(seconds, operation(**self._bucket, **settings))


@contextlib.contextmanager
def _as_s3_error(code: str = "") -> Iterator[None]:
    """Convert exceptions of botocore and aiohttp to S3Error. code: for errors without an answer."""
    import aiohttp
    import botocore.exceptions as known

    try:
        yield
    except known.ClientError as error:
        raise _answered(error) from error
    except (
        *(known.NoCredentialsError, known.PartialCredentialsError, known.CredentialRetrievalError),
        *(known.TokenRetrievalError, known.SSOError, known.MetadataRetrievalError),
    ) as error:
        raise no_credentials(error) from error
    except (known.ConnectTimeoutError, known.ReadTimeoutError, aiohttp.ServerTimeoutError) as error:
        raise S3Error("timeout") from error
    except (known.HTTPClientError, known.ConnectionError, aiohttp.ClientError, OSError) as error:
        words = f"{error} {getattr(error, 'kwargs', {}).get('error', '')}"
        raise (S3Error("credentials", code=code) if code else connection_error(words)) from error
    except known.BotoCoreError as error:  # rejected before a request was sent
        if code:
            raise no_credentials(error) from error
        raise S3Error("refused", code=type(error).__name__) from error


def _answered(error: Any) -> S3Error:
    """The failure in an answer of the service, from botocore's ClientError."""
    answer = error.response
    details, said = answer.get("ResponseMetadata", {}), answer.get("Error", {})
    headers = details.get("HTTPHeaders", {})
    code = str(said.get("Code", ""))
    return error_from_reply(
        int(details.get("HTTPStatusCode") or 0),
        code="" if code.isdigit() else code,  # an answer without a body
        detail=str(said.get("Message", "")),
        retry_after=headers.get("retry-after"),
        region=headers.get("x-amz-bucket-region") or said.get("Region"),
    )


def _object_settings(options: S3Options) -> dict[str, Any]:
    """Settings that are sent with each object."""
    settings = {
        "ContentType": "application/octet-stream",
        "ServerSideEncryption": options.sse,
        "SSEKMSKeyId": options.sse_kms_key_id,
        "BucketKeyEnabled": options.bucket_key,
        "StorageClass": options.storage_class,
        "Tagging": urlencode(options.tags, quote_via=quote) or None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _share_service_data(session: Any) -> None:
    """Share botocore's description of S3 between all sessions, because reading it takes 0.2 s of CPU time.

    The description is not shared if the user has other descriptions.
    """
    if session.get_config_variable("data_path") is None:
        session.register_component("data_loader", _service_data())


@functools.cache
def _service_data() -> Any:
    from botocore.loaders import create_loader

    return create_loader()


def _config(options: S3Options, chain: AwsChain) -> Any:
    from aiobotocore.config import AioConfig

    return AioConfig(
        connect_timeout=options.connect_timeout.total_seconds(),
        read_timeout=_NO_LIMIT,  # it would include the time to send; put() and _read() have limits
        max_pool_connections=(1 + OTHERS_PER_UPLOAD) * options.concurrency,
        retries={"mode": "standard", "total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "addressing_style": "path" if chain.path_style else "virtual",
            "payload_signing_enabled": options.checksum == "sha256",
        },
    )
