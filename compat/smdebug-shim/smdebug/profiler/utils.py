"""smdebug.profiler.utils: str2bool, which scripts use for arguments of the command line."""

from __future__ import annotations

import argparse

__all__ = ["str2bool"]

_YES = ("yes", "true", "t", "y", "1")
_NO = ("no", "false", "f", "n", "0")


def str2bool(value: bool | str) -> bool:
    """Whether a text means yes. Raises argparse.ArgumentTypeError for a text that means neither."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower()
    if word not in (*_YES, *_NO):
        raise argparse.ArgumentTypeError(f"{value!r} is neither yes nor no")
    return word in _YES
