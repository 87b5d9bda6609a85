"""The standard AWS chain: settings and credentials that the options do not set.

With botocore the chain is complete: environment, profiles, SSO, roles, processes, containers, instances.
Without botocore only the environment is read. Only the search for credentials sends requests.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from tdcore.errors import ConfigError
from tdcore.sinks.s3.errors import S3Error
from tdcore.sinks.s3.options import S3Place, check_endpoint, environment_endpoint, environment_profile

__all__ = ["AwsChain", "has_botocore", "no_credentials", "required_endpoint_kind"]

_FALLBACK_REGION = "us-east-1"
_MAX_CREDENTIALS_AGE = timedelta(seconds=60)  # maximum age before the client renews credentials


@dataclass(frozen=True, kw_only=True)
class AwsChain:
    """Settings for one place, from its options and the chain.

    endpoint_url: None means AWS. path_style: the bucket is in the path of the URL. session: botocore's, or
        None.
    """

    endpoint_url: str | None
    region: str
    ca_bundle: str | None
    path_style: bool
    session: Any

    @classmethod
    def of(cls, place: S3Place, *, region: str | None = None) -> AwsChain:
        """Resolve the settings. region: overrides all others. Raises ConfigError for a missing profile."""
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
        """Endpoint without the bucket."""
        if self.endpoint_url:
            return self.endpoint_url
        return f"https://s3.{self.region}.amazonaws.com{'.cn' if self.region.startswith('cn-') else ''}"

    def bucket_url(self, bucket: str) -> str:
        """Endpoint with the bucket in its path or host, depending on the addressing."""
        if self.path_style:
            return f"{self.url()}/{bucket}"
        scheme, _, host = self.url().partition("://")
        return f"{scheme}://{bucket}.{host}"

    def certificates(self) -> bytes | None:
        """Contents of the CA bundle. Raises ConfigError if it cannot be read or has no certificates."""
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
            raise ConfigError(f"{whose}: the file has no certificates that can be read") from error
        except OSError as error:
            hint = "" if os.path.isabs(self.ca_bundle) else "; give the absolute path"
            raise ConfigError(f"{whose}: {error.strerror or error}{hint}") from error
        return found

    def credentials(self) -> Credentials | None:
        """Credentials from botocore; None without botocore. Raises S3Error "credentials" if none exist."""
        if self.session is None:
            return None
        try:
            found = self.session.get_credentials()
        except Exception as error:  # botocore and its providers raise many types
            raise no_credentials(error) from error
        if found is None:
            raise no_credentials()
        return Credentials(found)


class Credentials:
    """Credentials that botocore renews; a credential provider for obstore. Any thread."""

    def __init__(self, found: Any) -> None:
        self._found = found
        self.source = str(found.method)  # such as "env", "shared-credentials-file", "iam-role"

    def __call__(self) -> dict[str, Any]:
        """The current credentials, and when the caller must renew them."""
        frozen = self._found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _MAX_CREDENTIALS_AGE,
        }


def has_botocore() -> bool:
    """Whether botocore can be imported."""
    return importlib.util.find_spec("botocore") is not None


def no_credentials(error: Exception | None = None) -> S3Error:
    """S3Error for missing credentials. It names only the type of `error`, whose text may contain a secret."""
    message = "the AWS chain has no credentials"
    if error is not None:
        message = f"the AWS chain could not get credentials ({type(error).__name__})"
    if not has_botocore():
        message += "; the files in ~/.aws are read only with botocore installed"
    return S3Error("credentials", code="NoCredentials", message=message)


def required_endpoint_kind() -> str:
    """The kind of endpoints that the environment requires: "FIPS", "dual-stack", or ""."""
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
    """A setting from botocore's chain, or from the environment without botocore."""
    if session is None:
        return os.environ.get(environment) or None
    return session.get_config_variable(name) or None
