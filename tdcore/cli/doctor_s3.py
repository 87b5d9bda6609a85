"""The S3 lines of tdcore doctor: checks of a location in a bucket."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from tdcore.cli.doctor_check import Check
from tdcore.errors import ConfigError, SinkError
from tdcore.sinks.s3.aws_chain import AwsChain
from tdcore.sinks.s3.engine import S3Engine
from tdcore.sinks.s3.errors import S3Action, S3Error
from tdcore.sinks.s3.options import S3Place, parse_s3_url
from tdcore.sinks.s3.sink import S3Sink

__all__ = ["LONGEST_SECONDS", "checks"]

_PATIENCE = timedelta(seconds=4)  # short, because a user waits; a run waits longer
_CONNECT, _ANSWER = timedelta(seconds=3), timedelta(seconds=5)
LONGEST_SECONDS = int((_PATIENCE + _CONNECT + _ANSWER).total_seconds())  # for a place without an answer
_DATA = b"written by tdcore doctor; may be deleted"

T = TypeVar("T")


def checks(url: str) -> list[Check]:
    """Check the location `url`. The check never raises or prints a secret, and deletes its only object."""
    try:
        place = _hurried(parse_s3_url(url))
        sink = S3Sink(place.options.at(place.where), patience=_PATIENCE)
    except ConfigError as error:
        return [_failed("S3 place", error)]
    try:
        return [*_before(place, sink), *_Visit(place, sink).checks()]
    except ConfigError as error:
        return [_failed("S3 place", error)]
    finally:
        sink.close()


def _hurried(place: S3Place) -> S3Place:
    """The place, with timeouts of a few seconds."""
    options = place.options
    options = replace(
        options,
        connect_timeout=min(options.connect_timeout, _CONNECT),
        read_timeout=min(options.read_timeout, _ANSWER),
    )
    return replace(place, options=options)


def _before(place: S3Place, sink: S3Sink) -> list[Check]:
    """Checks that send no request."""
    engine = sink.store.engine_name
    version = importlib.metadata.version(engine)
    client = Check(
        name="S3 client", state="ok", detail=f"{engine} {version}. {sink.store.engine_reason}", needed=True
    )
    return [client, _credentials(AwsChain.of(place))]


def _credentials(chain: AwsChain) -> Check:
    try:
        found = chain.credentials()
    except S3Error as fault:
        return Check(
            name="S3 credentials", state="failed", detail=str(fault), needed=True,
            advice="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or give this machine a role",
        )  # fmt: skip
    source = "obstore searches for them: environment, web identity, container or instance role"
    if found is not None:
        source = f"from {found.source}"
    return Check(name="S3 credentials", state="ok", detail=source, needed=True)


class _Visit:
    """Checks that write, read and delete one object."""

    def __init__(self, place: S3Place, sink: S3Sink) -> None:
        self._place = place
        self._sink = sink
        self._key = f".tdcore-doctor-{os.urandom(8).hex()}"
        self._silent = False  # there was no answer
        self._seconds = (place.options.connect_timeout + place.options.read_timeout).total_seconds()

    def checks(self) -> list[Check]:
        """Run all checks. Checks that read the object run only if it was written."""
        written = self._try("S3 write", self._write)
        if self._silent:  # the other checks would take equally long
            return [self._end_point(), written]
        found = [written, self._try("S3 list", self._list)]
        if written.state == "ok":
            found += [
                self._try("S3 read", self._read),
                self._try("S3 ranges", self._ranges),
                self._try("S3 conditional put", self._conditional),
                self._try("S3 checksum", self._checksum),
                self._try("S3 delete", self._delete),
            ]
        return [self._end_point(), *found]

    def _end_point(self) -> Check:
        chain = AwsChain.of(self._place, region=self._sink.store.region)
        style = "path" if chain.path_style else "virtual-hosted"
        detail = f"{chain.url()}, region {chain.region}, {style} addressing"
        if self._silent:
            return Check(
                name="S3 endpoint", state="failed", detail=f"{detail}: no answer", needed=True,
                advice="check the address (endpoint_url), the proxy and the network of this machine",
            )  # fmt: skip
        if self._sink.store.region is None:
            return Check(name="S3 endpoint", state="ok", detail=detail)
        return Check(
            name="S3 endpoint", state="missing", detail=f"{detail}; the bucket was found in this region",
            advice=f"add the region to the URL, which saves requests: ?region={chain.region}",
        )  # fmt: skip

    def _write(self) -> Check:
        times = []
        for _ in range(3):
            started = time.perf_counter()
            self._sink.put(self._key, [_DATA])
            times.append(time.perf_counter() - started)
        milliseconds = sorted(times)[1] * 1000
        detail = f"an object of {len(_DATA)} bytes takes {milliseconds:.0f} ms"
        return Check(name="S3 write", state="ok", detail=detail, needed=True)

    def _list(self) -> Check:
        self._sink.list(self._key)
        return Check(name="S3 list", state="ok", detail="the run's keys can be listed", needed=True)

    def _read(self) -> Check:
        if self._sink.get(self._key) != _DATA:
            return Check(
                name="S3 read", state="failed", detail="the bytes that were read differ", needed=True,
                advice="do not use this store, or search for a proxy that changes data",
            )  # fmt: skip
        return Check(
            name="S3 read",
            state="ok",
            detail="the same bytes were read",
            needed=True,
        )

    def _ranges(self) -> Check:
        async def whole(engine: S3Engine) -> bool:
            piece = await engine.get_range(self._place.key(self._key), 8, 2, seconds=self._seconds)
            return bytes(piece) == _DATA[8:10] and engine.reads_ranges

        if self._ask("get", whole):
            return Check(name="S3 ranges", state="ok", detail="a part of an object can be read")
        return Check(
            name="S3 ranges", state="missing",
            detail="the store does not support range requests; whole objects are read instead",
            advice="reading tensors will be slow; ?engine=aiobotocore may support ranges",
        )  # fmt: skip

    def _conditional(self) -> Check:
        async def again(engine: S3Engine) -> bool:
            key = self._place.key(self._key)
            await engine.put(key, [_DATA], crc32c=_crc32c(), seconds=self._seconds, if_absent=True)
            return False

        try:
            self._ask("put", again, expect=("exists", "unsupported"))
            detail = "If-None-Match is ignored"
        except S3Error as fault:
            if fault.kind == "exists":
                return Check(name="S3 conditional put", state="ok", detail="If-None-Match is honoured")
            detail = "If-None-Match is refused"
        return Check(
            name="S3 conditional put", state="missing", detail=detail,
            advice="start the workers of one run under different worker names; nothing else is needed",
        )  # fmt: skip

    def _checksum(self) -> Check:
        async def refused(engine: S3Engine) -> bool:
            return await engine.refuses_damage(self._place.key(self._key), seconds=self._seconds)

        if self._ask("put", refused):
            return Check(name="S3 checksum", state="ok", detail="an object with a wrong checksum is refused")
        return Check(
            name="S3 checksum", state="missing", detail="the store accepts an object with a wrong checksum",
            advice="nothing to do: readers compare tdcore's own checksums, but they find damage late",
        )  # fmt: skip

    def _delete(self) -> Check:
        self._sink.delete(self._key)
        return Check(name="S3 delete", state="ok", detail="the object was deleted")

    def _try(self, name: str, check: Callable[[], Check]) -> Check:
        try:
            return check()
        except (SinkError, ConfigError) as error:
            self._silent = isinstance(error, SinkError) and error.kind == "transient"
            return _failed(name, error, needed=name != "S3 delete")

    def _ask(
        self, action: S3Action, call: Callable[[S3Engine], Awaitable[T]], expect: tuple[str, ...] = ()
    ) -> T:
        store = self._sink.store
        return self._sink.loop.run(store.request(action, call, expect=expect))


def _crc32c() -> int:
    from tdcore import _core

    return _core.crc32c(_DATA)


def _failed(name: str, error: Exception, needed: bool = True) -> Check:
    detail, _, advice = str(error).rpartition("; ")
    return Check(name=name, state="failed", detail=detail or advice, needed=needed, advice=advice)
