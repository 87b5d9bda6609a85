"""Choice between the two engines, by the installed clients and the options. Any thread."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from tdcore.errors import ConfigError, UnsupportedFeature
from tdcore.sinks.s3.engine import S3Engine
from tdcore.sinks.s3.options import S3Options, S3Place, environment_profile

__all__ = ["choose_engine", "open_engine"]

_MISSING_EXTRA = 'an S3 client is not installed: pip install "tdcore-capture[s3]"'

# Older versions lack settings that tdcore needs: obstore a read timeout, aiobotocore If-None-Match and
# checksums.
_OLDEST = {"obstore": (0, 11), "aiobotocore": (2, 18)}
_OF_OBSTORE = ("auto", "crc64nvme", "sha256", "none")
_OF_AIOBOTOCORE = ("auto", "crc32c", "sha256", "none")


def choose_engine(options: S3Options) -> tuple[str, str]:
    """Name of the engine for `options`, and the reason as a sentence.

    Raises:
        ConfigError: The requested engine does not support the options.
        UnsupportedFeature: No engine is installed.
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
        return options.engine, "The options require it."
    if not installed:
        raise UnsupportedFeature(_MISSING_EXTRA)
    able = [name for name in ("obstore", "aiobotocore") if name in installed and not cannot[name]]
    if not able:
        raise ConfigError("; ".join(f"engine {name}: {cannot[name]}" for name in sorted(installed)))
    if able[0] == "obstore":
        return "obstore", "It costs the least CPU time per byte and supports all given options."
    if cannot["obstore"]:
        return "aiobotocore", f"The other engine cannot be used: {cannot['obstore']}."
    return "aiobotocore", "It is installed; obstore, which costs less CPU time per byte, is not installed."


async def open_engine(place: S3Place, *, region: str | None = None) -> S3Engine:
    """Open the engine for `place` in the running loop. Only the search for credentials sends requests.

    region: region of the bucket; None: the region in the options or the AWS chain.
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
        return f"obstore does not support {kind} endpoints"
    return ""


def _why_not_aiobotocore(options: S3Options) -> str:
    if why := _too_old("aiobotocore"):
        return why
    if options.checksum not in _OF_AIOBOTOCORE:
        return f"aiobotocore cannot send checksum {options.checksum!r} (it can: {', '.join(_OF_AIOBOTOCORE)})"
    return ""


def _too_old(name: str) -> str:
    """Why the installed version of a client is too old; "" if it is new enough or not installed."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    oldest = _OLDEST[name]
    numbers = tuple(int(part) for part in version.split(".")[: len(oldest)] if part.isdigit())
    if numbers >= oldest:
        return ""
    return f"{name} {version} is older than {'.'.join(map(str, oldest))}"
