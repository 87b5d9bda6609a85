"""The place of a run in S3 and the options of the service, in one URL.

    s3://bucket/prefix?region=eu-west-1&sse=aws:kms&tag.team=vision

Settings that are not in the URL are taken from the standard AWS chain: environment, profile, configuration
files. Credentials are always taken from this chain. This module imports no client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import quote, unquote_plus, urlsplit

from tdcore.config.schema import FLAG, NUMBER, SECONDS, TEXT, WHOLE, Kind
from tdcore.errors import ConfigError
from tdcore.sinks.base import check_key

__all__ = [
    "Addressing",
    "Checksum",
    "Encryption",
    "EngineChoice",
    "S3Options",
    "S3Place",
    "check_endpoint",
    "environment_endpoint",
    "environment_profile",
    "parse_s3_url",
]

Addressing: TypeAlias = Literal["auto", "path", "virtual"]
Encryption: TypeAlias = Literal["AES256", "aws:kms", "aws:kms:dsse"]
EngineChoice: TypeAlias = Literal["auto", "obstore", "aiobotocore"]
Checksum: TypeAlias = Literal["auto", "crc32c", "crc64nvme", "sha256", "none"]

# Number of concurrent requests that are not uploads: they are small and wait for the service.
OTHERS_PER_UPLOAD = 4
_GIB = 1 << 30
_CHOICES: dict[str, tuple[str, ...]] = {
    "addressing": get_args(Addressing),
    "sse": get_args(Encryption),
    "engine": get_args(EngineChoice),
    "checksum": get_args(Checksum),
}
_TEXTS = ("endpoint_url", "region", "profile", "sse_kms_key_id", "storage_class", "ca_bundle", "spool")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PROFILE_VARIABLES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_ABOVE_A_PROFILE = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")  # credentials of the environment
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_CREDENTIALS = re.compile(r"access_?key|secret|token|password", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Options of the S3 service. Each field is an option in the query of a URL, with the same name.

    Args:
        endpoint_url: URL of a store other than AWS, such as "https://minio.lab:9000". None: the AWS chain.
        region: Region, such as "eu-west-1"; None: the AWS chain. A wrong region is replaced by the bucket's
            region.
        profile: Profile of the AWS configuration files; None: the AWS chain.
        addressing: "path": the bucket is in the path of the URL. "virtual": the bucket is in the host name.
            "auto": virtual on AWS, path elsewhere.
        sse, sse_kms_key_id, bucket_key: Encryption by the service; None: the setting of the bucket.
        requester_pays, storage_class, tags: Settings that are sent with each object (tags: `tag.NAME=VALUE`
            in a URL).
        ca_bundle: File with trusted certificates.
        engine: The client library. "auto": of the installed libraries that support the options, the one with
            the lower CPU time.
        checksum: The checksum that the service verifies for each object. "auto": a checksum that the engine
            can send.
        concurrency: Number of concurrent uploads. Four times as many other requests, which are small, may run
            at the same time.
        connect_timeout: Time to connect (seconds in a URL).
        read_timeout: Time for an answer, in addition to the transfer time of the bytes (seconds in a URL).
        spool: Folder of objects that the service has not accepted yet.
        spool_bytes: Maximum size of the spool (`spool_gib` in a URL).

    Raises:
        ConfigError: A value is invalid.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing: Addressing = "auto"
    sse: Encryption | None = None
    sse_kms_key_id: str | None = None
    bucket_key: bool | None = None
    requester_pays: bool = False
    storage_class: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    ca_bundle: str | None = None
    engine: EngineChoice = "auto"
    checksum: Checksum = "auto"
    concurrency: int = 8
    connect_timeout: timedelta = timedelta(seconds=5)
    read_timeout: timedelta = timedelta(seconds=20)
    spool: str | None = None
    spool_bytes: int = 16 * _GIB

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            _check_choice(name, getattr(self, name), allowed)
        for name in _TEXTS:
            _check_text(name, getattr(self, name))
        check_endpoint(self.endpoint_url)
        _check_tags(self.tags)
        object.__setattr__(self, "tags", dict(self.tags))
        encrypted_by_kms = (self.sse or "").startswith("aws:kms")
        for name in ("sse_kms_key_id", "bucket_key"):
            if getattr(self, name) is not None and not encrypted_by_kms:
                raise ConfigError(
                    f"S3 option {name} needs sse 'aws:kms' or 'aws:kms:dsse', got sse {self.sse!r}"
                )
        if not 1 <= self.concurrency <= 256:
            raise ConfigError(f"S3 option concurrency must be 1 to 256 uploads, got {self.concurrency!r}")
        if self.spool_bytes < 1 << 20:
            raise ConfigError(f"S3 option spool_bytes must be at least 1 MiB, got {self.spool_bytes!r} bytes")
        for name in ("connect_timeout", "read_timeout"):
            if not timedelta(milliseconds=1) <= getattr(self, name) <= timedelta(hours=1):
                raise ConfigError(
                    f"S3 option {name} must be 1 millisecond to 1 hour, got {getattr(self, name)}"
                )

    def at(self, place: str) -> str:
        """URL of `place` ("s3://bucket/prefix") with these options, without those that have their default."""
        default = S3Options()
        words = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != getattr(default, each.name):
                words += _written(each.name, value)
        return f"{place}?{'&'.join(words)}" if words else place

    def resolved(self) -> S3Options:
        """Options with the same meaning in another folder or shell. No file is read.

        ca_bundle and spool become absolute. endpoint_url, region and profile are set from the environment
        variables of the AWS chain. The profile is not set if the environment has credentials, because in the
        chain these have priority over AWS_PROFILE, but not over the option.

        Raises:
            ConfigError: The endpoint is invalid.
        """
        here: dict[str, str | None] = {
            name: str(Path(os.path.expanduser(value)).absolute())
            for name in ("ca_bundle", "spool")
            if (value := getattr(self, name))
        }
        if not self.endpoint_url:
            here["endpoint_url"] = environment_endpoint()
        if not self.region:
            here["region"] = _first_set(_REGION_VARIABLES)[1] or None
        if not self.profile and not _first_set(_ABOVE_A_PROFILE)[1]:
            here["profile"] = environment_profile()
        return replace(self, **here)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A bucket, the prefix of a run in it ("" is the whole bucket; no "/" at its ends), and the options."""

    bucket: str
    prefix: str
    options: S3Options

    @property
    def where(self) -> str:
        """The place without its options, for messages and for S3Options.at."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def key(self, relative: str) -> str:
        """Full key, in the bucket, of the run's object `relative`."""
        return f"{self.prefix}/{relative}" if self.prefix else relative


def parse_s3_url(url: str) -> S3Place:
    """The place and options of `url` ("s3://bucket/prefix?name=value&...").

    Raises ConfigError for an invalid URL, and for credentials in the URL: they are read only from the AWS
    chain.
    """
    place, _, query = url.partition("?")
    scheme, separator, rest = place.partition("://")
    if scheme.lower() != "s3" or not separator:
        raise ConfigError(f"{place!r} is not a place in S3; expected s3://bucket/prefix")
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{place!r} names no bucket: expected s3://bucket/prefix with a name of 3 or more letters, "
            "digits, '.', '-' or '_' (of an access point give the alias, not the ARN)"
        )
    if bucket.endswith("--x-s3"):
        raise ConfigError(
            f"{place!r} is a directory bucket, which lists keys without order; give a general purpose bucket"
        )
    prefix = prefix.rstrip("/")
    if prefix:
        try:
            check_key(prefix)
        except ValueError as error:
            raise ConfigError(
                f"{place!r}: the prefix {prefix!r} cannot contain a run: its parts between '/' must not be "
                "empty, '.' or '..', nor hold a backslash"
            ) from error
    return S3Place(bucket=bucket, prefix=prefix, options=_parse_query(query))


def environment_endpoint() -> str | None:
    """Endpoint for S3 in the environment. Raises ConfigError if it is invalid or contains a password."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    name, url = _first_set(_ENDPOINT_VARIABLES)
    check_endpoint(url or None, f"the environment variable {name}")
    return url or None


def environment_profile() -> str | None:
    """Profile of the AWS configuration files in the environment, or None."""
    return _first_set(_PROFILE_VARIABLES)[1] or None


def _first_set(names: tuple[str, ...]) -> tuple[str, str]:
    """Name and value of the first of these environment variables that is not empty; "" if all are empty."""
    return next(((name, value) for name in names if (value := os.environ.get(name))), ("", ""))


def _parse_query(query: str) -> S3Options:
    given: dict[str, Any] = {}
    tags: dict[str, str] = {}
    for word in filter(None, query.split("&")):
        name, equals, value = (unquote_plus(part) for part in word.partition("="))
        if name.startswith("tag."):
            tags[name[len("tag.") :]] = value
            continue
        if _CREDENTIALS.search(name):  # the value is not shown: it may be a secret
            raise ConfigError(
                f"S3 option {name!r}: credentials do not belong in a URL; give them to the AWS chain "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role)"
            )
        if name not in _KINDS:
            known = ", ".join(sorted([*_KINDS, "tag.NAME"]))
            raise ConfigError(f"unknown S3 option {name!r}; use one of: {known}")
        if not equals or not value:
            raise ConfigError(f"S3 option {name} has no value; write {name}=VALUE or leave it out")
        given["spool_bytes" if name == "spool_gib" else name] = _KINDS[name](value, f"S3 option {name}")
    return S3Options(**given, tags=tags)


def _gib(value: str) -> int:
    number: float = NUMBER(value, "S3 option spool_gib")
    if not 0 <= number < 1 << 30:
        raise ValueError(number)
    return int(number * _GIB)


_FLAG = Kind(FLAG.expected, lambda value: {"true": True, "false": False}[value.lower()])
_KINDS = {
    **dict.fromkeys((*_TEXTS, *_CHOICES), TEXT),
    **dict.fromkeys(("bucket_key", "requester_pays"), _FLAG),
    **dict.fromkeys(("connect_timeout", "read_timeout"), SECONDS),
    **dict.fromkeys(("concurrency", "spool_bytes"), WHOLE),
    "spool_gib": Kind("a number of GiB", _gib),
}


def _written(name: str, value: Any) -> list[str]:
    """An option as words of a query."""
    if name == "tags":
        return [f"tag.{quote(tag, safe='')}={quote(text, safe='')}" for tag, text in sorted(value.items())]
    if isinstance(value, timedelta):
        value = f"{value.total_seconds():.6f}".rstrip("0").rstrip(".")
    elif isinstance(value, bool):
        value = str(value).lower()
    return [f"{name}={quote(str(value), safe=':/')}"]


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed and not (name == "sse" and value is None):
        raise ConfigError(f"S3 option {name} must be one of {', '.join(allowed)}, got {value!r}")


def _check_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value or not value.isprintable()):
        raise ConfigError(f"S3 option {name} must be printable text, got {value!r}")


def check_endpoint(url: str | None, whose: str = "S3 option endpoint_url") -> None:
    """Raise ConfigError if `url` is not an endpoint or has a password. whose: its origin, for messages."""
    if url is None:
        return
    if "@" in url:
        raise ConfigError(f"{whose} holds a user or password; credentials come from the AWS chain")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
    except ValueError:  # an incomplete IPv6 address
        good = False
    if not good:
        raise ConfigError(f"{whose} must be http://host:port or https://host:port, got {url!r}")


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > 10:
        raise ConfigError(f"S3 option tags: an object has at most 10 tags, got {len(tags)}")
    for name, value in tags.items():
        if not 1 <= len(name) <= 128 or len(value) > 256:
            raise ConfigError(
                f"S3 option tags: a name has 1 to 128 letters and a value at most 256, got {name!r}={value!r}"
            )
