"""S3Engine: the interface to an S3 client library, and the choice between obstore and aiobotocore.

An engine sends single requests and never retries; `store.S3Store` retries. Every failure is an
`errors.S3Error`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol, TypeVar

from tdcore.errors import ConfigError, UnsupportedFeature
from tdcore.sinks.base import Buffer
from tdcore.sinks.s3.errors import S3Error
from tdcore.sinks.s3.options import S3Options, S3Place, environment_profile

__all__ = ["MISSING_EXTRA", "S3Engine", "choose_engine", "open_engine", "within"]

MISSING_EXTRA = 'an S3 client is not installed: pip install "tdcore-capture[s3]"'

# Older ones lack settings that we need: a read time-out; If-None-Match and the choice of checksums.
_OLDEST = {"obstore": (0, 11), "aiobotocore": (2, 18)}
_OF_OBSTORE = ("auto", "crc64nvme", "sha256", "none")
_OF_AIOBOTOCORE = ("auto", "crc32c", "sha256", "none")

T = TypeVar("T")


class S3Engine(Protocol):
    """One connection pool to one bucket. Keys are whole keys in the bucket.

    Thread: that of the event loop it was opened in. seconds: how long one request may take in all.
    """

    name: str
    sends_crc32c: bool  # whether put() has a use for crc32c
    reads_ranges: bool  # False once the service has answered a range with a whole object

    async def put(
        self, key: str, parts: Sequence[Buffer], *, crc32c: int, seconds: float, if_absent: bool = False
    ) -> None:
        """Store `parts`, one after the other. if_absent: an S3Error of kind "exists" when there is an object.

        crc32c: of all the bytes; sent along by an engine that sends this checksum. When the call ends, also
        by cancellation, the parts are not looked at any more.
        """

    async def get(self, key: str, *, seconds: float) -> Buffer:
        """The whole object."""
        ...

    async def get_range(self, key: str, offset: int, length: int, *, seconds: float) -> Buffer:
        """`length` > 0 bytes from `offset` on, fewer where the object ends; S3Error "range" after its end."""
        ...

    async def tail(self, key: str, length: int, *, seconds: float) -> Buffer:
        """The last `length` > 0 bytes; S3Error "range" may stand for an empty object."""
        ...

    async def head(self, key: str, *, seconds: float) -> int | None:
        """Size of the object; None when there is none."""

    def pages(self, prefix: str, after: str, *, seconds: float) -> AsyncIterator[list[str]]:
        """Keys that start with `prefix` and sort after `after`, in order, a page (one request) at a time."""
        ...

    async def delete(self, key: str, *, seconds: float) -> None:
        """Remove the object, if there is one."""

    async def refuses_damage(self, key: str, *, seconds: float) -> bool:
        """Whether the service refuses an object whose checksum is wrong. Writes `key` when it does not."""
        ...

    async def close(self) -> None:
        """Close all connections."""


async def within(seconds: float, work: Awaitable[T]) -> T:
    """The result of `work`, or an S3Error "timeout" after so many seconds; the work is cancelled then."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:  # an alias of TimeoutError from Python 3.11 on
        raise S3Error("timeout") from None


def choose_engine(options: S3Options) -> tuple[str, str]:
    """Name of the engine for `options`, and the reason as a sentence.

    Raises ConfigError when the one asked for cannot do what the options say, UnsupportedFeature when none is
    installed.
    """
    installed = {name for name in ("obstore", "aiobotocore") if importlib.util.find_spec(name) is not None}
    cannot = {"obstore": _why_not_obstore(options), "aiobotocore": _why_not_aiobotocore(options)}
    if options.engine != "auto":
        if options.engine not in installed:
            raise UnsupportedFeature(
                f"S3 option engine is {options.engine!r}, but {options.engine} is not installed"
            )
        if why := cannot[options.engine]:
            raise ConfigError(f"S3 option engine is {options.engine!r}, but {why}")
        return options.engine, "The options ask for it."
    if not installed:
        raise UnsupportedFeature(MISSING_EXTRA)
    able = [name for name in ("obstore", "aiobotocore") if name in installed and not cannot[name]]
    if not able:
        raise ConfigError("; ".join(f"engine {name}: {cannot[name]}" for name in sorted(installed)))
    if able[0] == "obstore":
        return "obstore", "It costs the least CPU time per byte and can do all that the options ask for."
    if cannot["obstore"]:
        return "aiobotocore", f"The other engine is ruled out: {cannot['obstore']}."
    return "aiobotocore", "It is installed; obstore, which costs less CPU time per byte, is not."


async def open_engine(place: S3Place, *, region: str | None = None) -> S3Engine:
    """The engine for `place`, in the running loop; sends nothing but what finding credentials takes.

    region: where the bucket was found to be; None takes that of the options or the AWS chain.
    """
    name, _ = choose_engine(place.options)
    if name == "obstore":
        from tdcore.sinks.s3.obstore_engine import ObstoreEngine

        return await ObstoreEngine.open(place, region=region)
    from tdcore.sinks.s3.aiobotocore_engine import AiobotocoreEngine

    return await AiobotocoreEngine.open(place, region=region)


def _why_not_obstore(options: S3Options) -> str:
    from tdcore.sinks.s3.aws_chain import has_botocore, required_endpoint_kind

    if why := _too_old("obstore"):
        return why
    if options.checksum not in _OF_OBSTORE:
        return f"obstore cannot send checksum {options.checksum!r} (it can: {', '.join(_OF_OBSTORE)})"
    if not has_botocore() and (profile := options.profile or environment_profile()):
        return f"obstore reads profiles ({profile!r}) through botocore, which is not installed"
    if not options.endpoint_url and (kind := required_endpoint_kind()):
        return f"obstore does not know {kind} endpoints"
    return ""


def _why_not_aiobotocore(options: S3Options) -> str:
    if why := _too_old("aiobotocore"):
        return why
    if options.checksum not in _OF_AIOBOTOCORE:
        return f"aiobotocore cannot send checksum {options.checksum!r} (it can: {', '.join(_OF_AIOBOTOCORE)})"
    return ""


def _too_old(name: str) -> str:
    """Why the installed version of a client will not do; "" when it will, or is not installed."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    oldest = _OLDEST[name]
    numbers = tuple(int(part) for part in version.split(".")[: len(oldest)] if part.isdigit())
    if numbers >= oldest:
        return ""
    return f"{name} {version} is older than {'.'.join(map(str, oldest))}"
