"""The oldest version of PyTorch that tdcore supports. Threads: any (functions without state)."""

from __future__ import annotations

import re

import torch

__all__ = ["old_torch_message"]

_OLDEST = (2, 4)


def old_torch_message() -> str | None:
    """Return a warning if PyTorch is older than the oldest supported version; else None."""
    found = re.match(r"([0-9]+)\.([0-9]+)", torch.__version__)  # also of "2.4.0a0+nv24.6"
    if found is None or (int(found[1]), int(found[2])) >= _OLDEST:
        return None
    oldest = ".".join(map(str, _OLDEST))
    return (
        f"PyTorch {torch.__version__} is older than {oldest}, the oldest version that tdcore supports: steps "
        "and tensors of the run may be missing; install a newer version of torch"
    )
