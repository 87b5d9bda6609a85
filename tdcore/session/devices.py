"""Number of NVIDIA devices that this process may use, found without CUDA.

A CUDA call would create a context, allocate device memory and make forking unsafe. Pure functions of the
device files and the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["visible_nvidia_devices"]

_FILE = re.compile(r"nvidia\d+")
_WSL_FILE, _WSL_DEVICES = "dxg", 8  # WSL: one file for all devices; largest number of devices


def visible_nvidia_devices(
    environment: Mapping[str, str] = os.environ, folder: str | os.PathLike[str] = "/dev"
) -> int:
    """Number of device files nvidia0, nvidia1, ... in `folder` that CUDA_VISIBLE_DEVICES allows.

    The number is never too small, because every device of the driver is counted. The number may be too large
    (for a name that is unknown to the driver, or under WSL, where the number cannot be read from files).
    """
    try:
        names = {path.name for path in Path(folder).iterdir()}
    except OSError:
        return 0
    files = sum(bool(_FILE.fullmatch(name)) for name in names) or _WSL_DEVICES * (_WSL_FILE in names)
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    return files if listed is None or not files else _listed(listed, files)


def _listed(text: str, files: int) -> int:
    """Number of entries before the first one that is not a device, as the driver reads the variable.

    An entry is a number, or the start of a UUID: "GPU-8932f937", "MIG-GPU-8932f937.../1/0",
    "MIG-d7c5f0e6-...". A device can be split into several MIG devices, so there may be more entries than
    files.
    """
    known: set[str] = set()
    for entry in text.split(","):
        name = entry.strip()
        if name.isdecimal() and int(name) < files:
            known.add(str(int(name)))
        elif name.startswith(("GPU-", "MIG-")):
            known.add(name)
        else:
            break
    return len(known)
