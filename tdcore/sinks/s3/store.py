"""S3Store: objects of one run in a bucket. Temporary failures are retried.

The store is used in one event loop; other threads use `sink.S3Sink`. Keys are relative to the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from tdcore import _core
from tdcore.errors import ConfigError, SinkError
from tdcore.sinks.base import Buffer, check_key, check_prefix
from tdcore.sinks.s3.aws_chain import AwsChain
from tdcore.sinks.s3.engine import S3Engine
from tdcore.sinks.s3.engine_choice import choose_engine, open_engine
from tdcore.sinks.s3.errors import S3Action, S3Error
from tdcore.sinks.s3.options import OTHERS_PER_UPLOAD, S3Place
from tdcore.sinks.s3.ranges import cut, join
from tdcore.sinks.s3.region import find_region

__all__ = ["S3Store"]

_FIRST_PAUSE = 0.1  # seconds, doubled with each try
_LONGEST_PAUSE = 5.0
_USUAL_BYTES_PER_SECOND = 1 << 20  # a slower upload times out, and the next try has twice the time
_LEAST_BYTES_PER_SECOND = 16 << 10

T = TypeVar("T")


class S3Store:
    """The objects under `place`. Exactly one event loop; the options limit the number of concurrent requests.

    Args:
        place: Bucket, prefix and options.
        patience: Time for which a request is retried before its SinkError. Each method accepts another value
            in seconds; 0 means one try.

    Raises:
        ConfigError, UnsupportedFeature: No engine supports the options.
    """

    def __init__(self, place: S3Place, *, patience: timedelta = timedelta(seconds=60)) -> None:
        self.place = place
        self.engine_name, self.engine_reason = choose_engine(place.options)
        self.region: str | None = None  # region of the bucket, if it differs from the options
        self.conditional: bool | None = None  # whether the store has honoured If-None-Match
        self._patience = patience.total_seconds()
        self._current: _Opened | None = None
        self._was_open = False
        self._opening = asyncio.Lock()
        self._uploads = asyncio.Semaphore(place.options.concurrency)
        self._others = asyncio.Semaphore(OTHERS_PER_UPLOAD * place.options.concurrency)
        self._closed = False
        self._bytes_per_second: float = _USUAL_BYTES_PER_SECOND
        self._answer = (place.options.connect_timeout + place.options.read_timeout).total_seconds()
        self._counts = Counter[str]()
        self._retries = Counter[str]()
        self._upload_time = _ConcurrentTime()

    async def put(
        self, key: str, parts: Sequence[Buffer], patience: float | None = None, *, crc32c: int | None = None
    ) -> None:
        """Store `parts`, one after the other, durably. See Sink.put.

        A cancelled call ends immediately, and the parts are not read afterwards.

        crc32c: checksum of all bytes, if it is known.
        """
        await self._send(check_key(key), parts, crc32c, patience)

    async def put_new(self, key: str, parts: Sequence[Buffer], patience: float | None = None) -> bool:
        """Store the object only if it does not exist. Return whether it was created. See Sink.put_new.

        If a store ignores or refuses If-None-Match, two concurrent writers may both get True.
        """
        check_key(key)
        if await self._is_there(key, patience):
            return False
        unsure = False  # an earlier try may have stored the object

        def note(failure: S3Error) -> None:
            nonlocal unsure
            unsure = unsure or failure.ambiguous

        try:
            await self._send(key, parts, None, patience, if_absent=self.conditional is not False, failed=note)
        except S3Error as failure:
            if failure.kind == "exists":
                self.conditional = True
                return unsure and await self._holds(key, b"".join(parts), patience)
            await self._send(key, parts, None, patience)  # the store does not implement conditional puts
            self.conditional = False
        return True

    async def get(self, key: str, patience: float | None = None) -> bytes:
        """The whole object. Raises SinkKeyError if it does not exist."""
        full = self.place.key(check_key(key))
        data = await self.request(
            "get", lambda engine: engine.get(full, seconds=self._answer), patience, key=key
        )
        return self._received(data)

    async def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], patience: float | None = None
    ) -> list[Buffer]:
        """Ranges of the object, joined into few requests; see Sink.get_ranges. Raises SinkKeyError."""
        full = self.place.key(check_key(key))
        spans = join(ranges)
        if not spans and not await self._is_there(key, patience):
            raise S3Error("missing").error("get", self.place, key)

        async def one(start: int, length: int) -> Buffer:
            try:
                return await self.request(
                    "get",
                    lambda engine: engine.get_range(full, start, length, seconds=self._answer),
                    patience,
                    key=key,
                    expect=("range",),
                )
            except S3Error:
                return b""

        answers = await _all(one(span.start, span.end - span.start) for span in spans)
        self._counts["bytes_received"] += sum(len(answer) for answer in answers)
        return cut(ranges, spans, answers)

    async def tail(self, key: str, length: int, patience: float | None = None) -> bytes:
        """The last `length` bytes of the object, or all of a shorter one. Raises SinkKeyError."""
        full = self.place.key(check_key(key))
        if length <= 0:
            await self.get_ranges(key, [], patience=patience)
            return b""
        try:
            data = await self.request(
                "get",
                lambda engine: engine.tail(full, length, seconds=self._answer),
                patience,
                key=key,
                expect=("range",),
            )
        except S3Error:  # some services return an error for a shorter object
            return await self.get(key, patience)
        return self._received(data)

    async def list(self, prefix: str, after: str = "", patience: float | None = None) -> list[str]:
        """Keys that start with `prefix` and sort after `after`, sorted."""
        root = self.place.key("")
        found: list[str] = []
        start = root + after if after else ""

        async def rest(engine: S3Engine) -> None:  # continues after the last page
            nonlocal start
            async for page in engine.pages(root + check_prefix(prefix), start, seconds=self._answer):
                self._counts["pages"] += 1
                found.extend(page)
                start = max([start, *page[-1:]])

        check_prefix(prefix)
        await self.request("list", rest, patience)
        return [key[len(root) :] for key in found]

    async def delete(self, key: str, patience: float | None = None) -> None:
        """Remove the object if it exists."""
        full = self.place.key(check_key(key))
        await self.request("delete", lambda engine: engine.delete(full, seconds=self._answer), patience)

    async def request(
        self,
        action: S3Action,
        call: Callable[[S3Engine], Awaitable[T]],
        patience: float | None = None,
        *,
        key: str = "",
        expect: tuple[str, ...] = (),
        failed: Callable[[S3Error], None] | None = None,
    ) -> T:
        """Return the result of `call`. Retry `call` for `patience` seconds while failures are retryable.

        expect: kinds of failures that are raised as S3Error; all others become a SinkError. failed: called
        with each failure.
        """
        now = asyncio.get_running_loop().time
        patience = self._patience if patience is None else patience
        end: float | None = None  # set at the first request or failure, because opening may take a long time
        tries = 0
        repaired: set[str] = set()  # kinds of failures that were repaired; each is repaired once
        while True:
            used: _Opened | None = None
            try:
                async with self._uploads if action == "put" else self._others:
                    used = await self._opened()
                    self._counts["requests"] += 1
                    end = end or now() + patience
                    async with used:
                        return await call(used.engine)
            except S3Error as failure:
                if failed is not None:
                    failed(failure)
                if failure.kind in expect:
                    raise
                if failure.kind not in repaired and await self._repair(failure, used):
                    repaired.add(failure.kind)
                    pause = 0.0
                else:
                    pause = _pause(tries, failure)
                    end = end or now() + patience
                    if not failure.retry or now() + pause > end:
                        raise failure.error(action, self.place, key) from failure
                    tries += 1
                self._retries[failure.code or failure.kind] += 1
            await asyncio.sleep(pause)

    def report(self) -> dict[str, Any]:
        """Counts of requests, sent and received bytes, and retries by cause. Any thread."""
        counts = {name: self._counts[name] for name in ("requests", "bytes_sent", "bytes_received")}
        return {"engine": self.engine_name, **counts, "retries": dict(self._retries)}

    def upload_ns(self) -> int:
        """Nanoseconds of all uploads so far, added up, with failed and unfinished uploads. Any thread."""
        return int(self._upload_time.seconds() * 1e9)

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        opened, self._current = self._current, None
        if opened is not None:
            await opened.engine.close()

    def _received(self, data: Buffer) -> bytes:
        self._counts["bytes_received"] += len(data)
        return bytes(data)

    async def _is_there(self, key: str, patience: float | None) -> bool:
        """Whether the object is visible. Without s3:ListBucket, a missing object seems to be forbidden."""
        full = self.place.key(key)
        try:
            size = await self.request(
                "get", lambda engine: engine.head(full, seconds=self._answer), patience, expect=("denied",)
            )
        except S3Error:
            return False
        return size is not None

    async def _holds(self, key: str, data: bytes, patience: float | None) -> bool:
        """Whether the object can be read and equals `data`. Raises SinkError for a transient failure."""
        try:
            return await self.get(key, patience) == data
        except SinkError as error:
            if error.kind == "transient":
                raise
            return False

    async def _send(
        self,
        key: str,
        parts: Sequence[Buffer],
        crc32c: int | None,
        patience: float | None,
        *,
        if_absent: bool = False,
        failed: Callable[[S3Error], None] | None = None,
    ) -> None:
        """Send a put. With if_absent, the failures "exists" and "unsupported" are raised as S3Error."""
        full = self.place.key(key)
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(view.nbytes for view in views)

        async def one(engine: S3Engine) -> None:
            nonlocal crc32c
            if crc32c is None and engine.sends_crc32c:
                crc32c = _crc32c(views)
            seconds = self._answer + size / self._bytes_per_second
            try:
                with self._upload_time:
                    await engine.put(full, views, crc32c=crc32c or 0, seconds=seconds, if_absent=if_absent)
            except S3Error as failure:
                if failure.kind == "timeout":
                    self._bytes_per_second = max(_LEAST_BYTES_PER_SECOND, self._bytes_per_second / 2)
                raise
            self._bytes_per_second = min(_USUAL_BYTES_PER_SECOND, self._bytes_per_second * 1.25)

        expect = ("exists", "unsupported") if if_absent else ()
        try:
            await self.request("put", one, patience, expect=expect, failed=failed)
        finally:
            for view in views:  # the traceback of an error must not keep the caller's memory
                view.release()
        self._counts["bytes_sent"] += size

    async def _opened(self) -> _Opened:
        """The current engine, created at the first use. Raises S3Error; ConfigError only at the first use."""
        async with self._opening:
            if self._current is None:
                self._current = _Opened(await self._open())
                self._was_open = True
            return self._current

    async def _open(self) -> S3Engine:
        try:
            return await open_engine(self.place, region=self.region)
        except ConfigError as error:  # a configuration that was valid before may become valid again
            if not self._was_open:
                raise
            raise S3Error("settings", message=str(error)) from error

    async def _repair(self, failure: S3Error, used: _Opened | None) -> bool:
        """Renew the credentials or find the bucket's region. Return False if neither can help."""
        if failure.kind not in ("credentials", "region") or used is None:
            return False
        async with self._opening:
            if self._closed:
                return False
            if used is self._current:  # otherwise another task has repaired the engine
                if failure.kind == "region" and not await self._find_region(failure):
                    return False
                self._current = None
                await used.retire()
            return True

    async def _find_region(self, failure: S3Error) -> bool:
        """Find the bucket's region. Return False if it is not a new region."""
        found = failure.region
        try:
            before = await asyncio.to_thread(AwsChain.of, self.place, region=self.region)
            if found is None:
                found = await asyncio.to_thread(find_region, before, self.place.bucket, self._answer)
        except ConfigError:  # the configuration changed since the engine was opened
            return False
        if found is None or found == before.region:
            return False
        self.region = found
        return True


class _ConcurrentTime:
    """Sum of the times of `with` blocks, which may overlap, on one thread. Any thread may read it."""

    def __init__(self) -> None:
        self._state = (0, 0.0, time.monotonic())  # open blocks, seconds until the last change, its time

    def seconds(self) -> float:
        """Seconds so far, with open blocks."""
        return self._until(time.monotonic())

    def _until(self, now: float) -> float:
        count, seconds, since = self._state
        return seconds + count * (now - since)

    def _change(self, difference: int) -> None:
        now = time.monotonic()
        self._state = (self._state[0] + difference, self._until(now), now)

    def __enter__(self) -> None:
        self._change(1)

    def __exit__(self, *_: object) -> None:
        self._change(-1)


class _Opened:
    """An engine with the number of its users, which the last user closes. `async with` is one use."""

    def __init__(self, engine: S3Engine) -> None:
        self.engine = engine
        self._users = 0
        self._retired = False

    async def __aenter__(self) -> None:
        self._users += 1

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._retired and not self._users:
            await self.engine.close()

    async def retire(self) -> None:
        """Close the engine as soon as it has no users."""
        self._retired = True
        if not self._users:
            await self.engine.close()


def _pause(tries: int, failure: S3Error) -> float:
    """Seconds before the next try: random, up to a limit that doubles with each try; at least Retry-After."""
    limit = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(tries, 10))
    return max(random.uniform(0, limit), failure.retry_after or 0.0)


def _crc32c(views: Sequence[memoryview]) -> int:
    value = 0
    for view in views:
        value = _core.crc32c(view, value)
    return value


async def _all(work: Any) -> list[Any]:
    """Results of all of `work`. If one fails, the others are cancelled first."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
