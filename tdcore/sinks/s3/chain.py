"""The standard AWS chain: end point, region, certificates and credentials, where the options leave them open.

With botocore installed, everything it knows: environment, profiles, SSO, roles, processes, containers,
instances. Without it, the environment. Nothing here sends a request but what finding credentials takes.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from tdcore.errors import ConfigError
from tdcore.sinks.s3.faults import Fault
from tdcore.sinks.s3.options import S3Place, check_endpoint, environment_endpoint, environment_profile

__all__ = ["Chain", "has_botocore", "no_credentials", "wants_other_endpoint"]

_FALLBACK_REGION = "us-east-1"
_LOOK_AGAIN = timedelta(seconds=60)  # how long the client may keep credentials before it asks here again


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What the options and the chain say about one place.

    endpoint_url: None is AWS. path_style: the bucket stands in the path. session: botocore's, or None.
    """

    endpoint_url: str | None
    region: str
    ca_bundle: str | None
    path_style: bool
    session: Any

    @classmethod
    def of(cls, place: S3Place, *, region: str | None = None) -> Chain:
        """Ask the chain. region: overrides everything. ConfigError for a profile that is not there."""
        options = place.options
        session = _session(options.profile)
        endpoint = options.endpoint_url or _endpoint(session)
        bundle = options.ca_bundle or _variable(session, "ca_bundle", "AWS_CA_BUNDLE")
        auto_path = endpoint is not None or "." in place.bucket
        return cls(
            endpoint_url=endpoint.rstrip("/") if endpoint else None,
            region=region or options.region or _region(session) or _FALLBACK_REGION,
            ca_bundle=os.path.expanduser(bundle) if bundle else None,
            path_style=auto_path if options.addressing == "auto" else options.addressing == "path",
            session=session,
        )

    def url(self) -> str:
        """End point without the bucket."""
        if self.endpoint_url:
            return self.endpoint_url
        return f"https://s3.{self.region}.amazonaws.com{'.cn' if self.region.startswith('cn-') else ''}"

    def bucket_url(self, bucket: str) -> str:
        """End point with the bucket in it, as the addressing says."""
        if self.path_style:
            return f"{self.url()}/{bucket}"
        scheme, _, host = self.url().partition("://")
        return f"{scheme}://{bucket}.{host}"

    def certificates(self) -> bytes | None:
        """Contents of the CA bundle. ConfigError when it cannot be read or holds no certificates."""
        if self.ca_bundle is None:
            return None
        whose = f"S3 option ca_bundle (or AWS_CA_BUNDLE) {self.ca_bundle!r}"
        try:
            with open(self.ca_bundle, "rb") as file:
                found = file.read()
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
                cadata=found.decode("ascii", "ignore")
            )
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"{whose}: the file holds no certificates that can be read") from error
        except OSError as error:
            hint = "" if os.path.isabs(self.ca_bundle) else "; give the whole path, from '/' on"
            raise ConfigError(f"{whose}: {error.strerror or error}{hint}") from error
        return found

    def credentials(self) -> Credentials | None:
        """What botocore finds; None without botocore. Fault "credentials" when it finds nothing."""
        if self.session is None:
            return None
        try:
            found = self.session.get_credentials()
        except Exception as error:  # botocore raises many kinds, and those of what it asks
            raise no_credentials(error) from error
        if found is None:
            raise no_credentials()
        return Credentials(found)


class Credentials:
    """Credentials of botocore, kept fresh by it. A provider in the sense of obstore. Any thread."""

    def __init__(self, found: Any) -> None:
        self._found = found
        self.source = str(found.method)  # such as "env", "shared-credentials-file", "iam-role"

    def __call__(self) -> dict[str, Any]:
        """The present credentials, and until when the caller may keep them."""
        frozen = self._found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _LOOK_AGAIN,
        }


def has_botocore() -> bool:
    """Whether botocore can be imported."""
    return importlib.util.find_spec("botocore") is not None


def no_credentials(error: Exception | None = None) -> Fault:
    """Fault for a chain that gave no credentials. Tells the error's type only: its text may hold a secret."""
    message = "the AWS chain has no credentials"
    if error is not None:
        message = f"the AWS chain could not get credentials ({type(error).__name__})"
    if not has_botocore():
        message += "; the files in ~/.aws are read only with botocore installed"
    return Fault("credentials", code="NoCredentials", message=message)


def wants_other_endpoint() -> str:
    """ "FIPS" or "dual-stack" when the environment asks for such end points, else ""."""
    for name, kind in (("AWS_USE_FIPS_ENDPOINT", "FIPS"), ("AWS_USE_DUALSTACK_ENDPOINT", "dual-stack")):
        if os.environ.get(name, "").lower() == "true":
            return kind
    return ""


def _session(profile: str | None) -> Any:
    if not has_botocore():
        return None
    import botocore.exceptions
    import botocore.session

    session = botocore.session.Session(profile=profile)
    try:
        session.get_scoped_config()
    except botocore.exceptions.ProfileNotFound as error:
        name = profile or environment_profile()
        raise ConfigError(
            f"the AWS configuration files have no profile {name!r}; "
            "correct the S3 option profile or AWS_PROFILE"
        ) from error
    except botocore.exceptions.BotoCoreError as error:
        raise ConfigError(f"the AWS configuration files cannot be read: {error}") from error
    return session


def _endpoint(session: Any) -> str | None:
    if _variable(session, "ignore_configured_endpoint_urls", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") in (
        True,
        "true",
    ):
        return None
    if (url := environment_endpoint()) or session is None:
        return url
    profile = session.get_scoped_config()
    services = session.full_config.get("services", {}).get(profile.get("services"), {})
    found = services.get("s3", {}).get("endpoint_url") or profile.get("endpoint_url")
    check_endpoint(found or None, "endpoint_url of the AWS configuration files")
    return str(found) if found else None


def _region(session: Any) -> str | None:
    return os.environ.get("AWS_REGION") or _variable(session, "region", "AWS_DEFAULT_REGION")


def _variable(session: Any, name: str, environment: str) -> Any:
    """A setting, from botocore's chain or else the environment."""
    if session is None:
        return os.environ.get(environment) or None
    return session.get_config_variable(name) or None
