"""Number of NVIDIA devices that this process may use, found without CUDA.

A CUDA call would create a context, take memory on the device and forbid forking. Pure functions of the device
files and the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["visible_nvidia_devices"]

_FILE = re.compile(r"nvidia\d+")
_WSL_FILE, _WSL_DEVICES = "dxg", 8  # there one file stands for all devices, as many as there may be


def visible_nvidia_devices(
    environment: Mapping[str, str] = os.environ, folder: str | os.PathLike[str] = "/dev"
) -> int:
    """Device files nvidia0, nvidia1, ... in `folder`, or as many of them as CUDA_VISIBLE_DEVICES leaves.

    Never too few, so that each device that the driver will show has its number here; sometimes too many (a
    device whose name is not known to the driver; under WSL, where no file says how many there are).
    """
    try:
        names = {path.name for path in Path(folder).iterdir()}
    except OSError:
        return 0
    files = sum(bool(_FILE.fullmatch(name)) for name in names) or _WSL_DEVICES * (_WSL_FILE in names)
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    return files if listed is None or not files else _listed(listed, files)


def _listed(text: str, files: int) -> int:
    """Entries up to the first that names no device, as the driver reads it.

    By number, or by the start of a UUID: "GPU-8932f937", "MIG-GPU-8932f937.../1/0", "MIG-d7c5f0e6-...". A
    device can be cut into several, so those may be more than there are files.
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
