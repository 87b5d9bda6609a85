"""The version, read from the installed distribution; "0+unknown" in a checkout that was never installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tdcore-capture")
except PackageNotFoundError:
    __version__ = "0+unknown"
