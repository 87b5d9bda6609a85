"""The kept recordings of smdebug, and what smdebug's own trial reads from them (make_recordings.py)."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.trial.writer import crc32c

FOLDER = Path(__file__).resolve().parents[1] / "data"
KINDS = ("keras", "pytorch", "xgboost")


@dataclass(frozen=True)
class Expected:
    """What smdebug reads. values: "<name>|<step>|<worker>" -> array."""

    document: dict[str, Any]
    values: dict[str, npt.NDArray[Any]]


def folder(kind: str) -> Path:
    return FOLDER / f"smdebug_{kind}"


@cache
def expected(kind: str) -> Expected:
    with np.load(FOLDER / f"smdebug_{kind}.npz") as stored:
        values = dict(stored)
    return Expected(json.loads((FOLDER / f"smdebug_{kind}.json").read_text()), values)


def split(key: str) -> tuple[str, int, str]:
    """Name, step and worker of a key."""
    name, step, worker = key.rsplit("|", 2)
    return name, int(step), worker


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(message: bytes) -> bytes:
    """A record with both checksums."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked(length)) + message + struct.pack("<I", masked(message))
