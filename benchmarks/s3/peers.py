"""The usual ways to upload bytes to a bucket, with their own defaults except for sizes and concurrency.

Each function prepares a client, and returns a function that uploads a list of objects and waits until all are
acknowledged.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import ClientConfig

PutAll = Callable[[Sequence[tuple[str, bytes]]], None]

REGION = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Target of the uploads. Credentials are in the environment. concurrency: number of parallel requests."""

    endpoint: str
    bucket: str
    ca_bundle: str | None
    concurrency: int


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A client. needs: its module. package: the package that contains the module."""

    open: Callable[[Target], PutAll]
    needs: str
    package: str

    def missing(self) -> str:
        """How to install the client; "" if it is installed."""
        if importlib.util.find_spec(self.needs) is not None:
            return ""
        return f"{self.needs} is not installed: pip install {self.package}"


def boto3_client(target: Target) -> Any:
    """A boto3 client with default settings and path-style URLs."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=target.endpoint,
        region_name=REGION,
        verify=target.ca_bundle,
        config=Config(**_botocore_settings(target)),
    )


def _botocore_settings(target: Target) -> dict[str, Any]:
    """Defaults, but no checksum over TLS, because rclone's server does not accept trailing checksums."""
    settings = {"max_pool_connections": target.concurrency, "s3": {"addressing_style": "path"}}
    if target.endpoint.startswith("https"):
        settings["request_checksum_calculation"] = "when_required"
    return settings


def boto3_threads(target: Target) -> PutAll:
    """put_object in a pool of threads."""
    client = boto3_client(target)

    def put_all(objects: Sequence[tuple[str, bytes]]) -> None:
        def put(one: tuple[str, bytes]) -> None:
            client.put_object(Bucket=target.bucket, Key=one[0], Body=one[1])

        with ThreadPoolExecutor(target.concurrency) as pool:
            list(pool.map(put, objects))

    return put_all


def s3transfer(target: Target) -> PutAll:
    """The library that upload_fileobj uses, without splitting objects into parts."""
    from s3transfer.manager import TransferConfig, TransferManager

    client = boto3_client(target)

    def put_all(objects: Sequence[tuple[str, bytes]]) -> None:
        config = TransferConfig(multipart_threshold=1 << 30, max_request_concurrency=target.concurrency)
        with TransferManager(client, config) as manager:
            futures = [manager.upload(io.BytesIO(data), target.bucket, key) for key, data in objects]
            for future in futures:
                future.result()

    return put_all


def s3fs(target: Target) -> PutAll:
    """s3fs.S3FileSystem.pipe with many objects in one call."""
    import s3fs as library

    settings: dict[str, Any] = {"region_name": REGION}
    if target.ca_bundle:
        settings["verify"] = target.ca_bundle
    system = library.S3FileSystem(
        endpoint_url=target.endpoint,
        client_kwargs=settings,
        config_kwargs=_botocore_settings(target),
    )

    def put_all(objects: Sequence[tuple[str, bytes]]) -> None:
        named = {f"{target.bucket}/{key}": data for key, data in objects}
        system.pipe(named, batch_size=target.concurrency)

    return put_all


def obstore_bare(target: Target) -> PutAll:
    """obstore alone with tdcore's settings: the lower bound of the cost of the whole path."""
    return _obstore(target, unsigned_payload=True, checksum_algorithm="crc64nvme")


def obstore_defaults(target: Target) -> PutAll:
    """obstore with its defaults: the payload is signed."""
    return _obstore(target)


def _obstore(target: Target, **settings: Any) -> PutAll:
    import obstore
    from obstore.store import S3Store

    client: ClientConfig = {"allow_http": True}
    if target.ca_bundle:
        client["root_certificate"] = Path(target.ca_bundle).read_bytes()
    store = S3Store(target.bucket, endpoint=target.endpoint, region=REGION, client_options=client, **settings)

    async def put_some(objects: Sequence[tuple[str, bytes]]) -> None:
        slots = asyncio.Semaphore(target.concurrency)

        async def put(key: str, data: bytes) -> None:
            async with slots:
                await obstore.put_async(store, key, [memoryview(data)], use_multipart=False)

        await asyncio.gather(*(put(key, data) for key, data in objects))

    return lambda objects: asyncio.run(put_some(objects))


PEERS = {
    "boto3, threads": Peer(open=boto3_threads, needs="boto3", package="boto3"),
    "s3transfer": Peer(open=s3transfer, needs="s3transfer", package="boto3"),
    "s3fs": Peer(open=s3fs, needs="s3fs", package="s3fs"),
    "obstore, defaults": Peer(open=obstore_defaults, needs="obstore", package="obstore"),
    "obstore, bare": Peer(open=obstore_bare, needs="obstore", package="obstore"),
}
