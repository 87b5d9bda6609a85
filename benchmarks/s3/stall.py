"""Question "stall": time of the training thread in ring.capture(), by the place of the run.

The same list of tensors of many sizes is captured at a steady pace; between two captures the thread sleeps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.s3.sessions import Capturing, open_session, spooled_bytes, until_ready

PLACES = {"folder": "", "bucket, obstore": "obstore", "bucket, aiobotocore": "aiobotocore"}
# Numbers of float32 elements, similar to the weights of a small convolutional network: 32 MB in 40 tensors.
_ELEMENTS = (64, 1728, 512, 36_864, 128, 73_728, 147_456, 512, 294_912, 589_824, 22_016, 1_179_648)
_TENSORS = 40
_BYTES = 32e6
_WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class StallJob:
    """One measurement. place: one of PLACES. url: a run in the bucket. folder: a run on this machine."""

    place: str
    url: str
    folder: str
    captures: int
    bytes_per_second: float


def make_tensors() -> list[torch.Tensor]:
    """Create the list of tensors, which is the same in every process."""
    sizes = [_ELEMENTS[i % len(_ELEMENTS)] for i in range(_TENSORS)]
    scale = _BYTES / (4 * sum(sizes))
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(max(1, int(size * scale)), generator=generator) for size in sizes]


def measure(job: StallJob) -> dict[str, float]:
    """Run the measurement in its own process."""
    engine = PLACES[job.place]
    place = f"{job.url}&engine={engine}" if engine else job.folder
    tensors = make_tensors()
    moved = sum(tensor.numel() * 4 for tensor in tensors)
    session = open_session(place)
    until_ready(session)
    capturing = Capturing(session, tensors)
    times = []
    for _ in range(_WARM_UP + job.captures):
        times.append(capturing.capture())
        time.sleep(max(0.0, moved / job.bytes_per_second - times[-1]))
    sent = session.progress().bytes
    session.close()
    values = np.asarray(times[_WARM_UP:]) * 1e3
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {
        "p50_ms": float(p50),
        "p90_ms": float(p90),
        "p99_ms": float(p99),
        "max_ms": float(values.max()),
        "mean_ms": float(values.mean()),
        "captured_mb": moved / 1e6,
        "sent_share": sent / (moved * len(times)),
        "spooled_mb": spooled_bytes(place) / 1e6,
        "drops": session.counters().dropped_tensors,
    }
