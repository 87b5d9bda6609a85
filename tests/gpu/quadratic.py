"""A trainer on the GPU for the test that kills it.

    python -m tests.gpu.quadratic FOLDER STEPS

Every element of a captured tensor identifies the tensor, step and position. The trainer writes a line to
FOLDER/ledger.txt when the call of a step has returned; its copies may still be in progress.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tdcore.session import Session
from tests.gpu.conftest import ring_config, use_devices

SIZES = (7, 4096, 40_000, 1_000_003)


def values(step: int, tensor: int, device: torch.device) -> torch.Tensor:
    """Return int32 values; element i of tensor n at step s is 1000003 * s + 101 * n + i, wrapped."""
    ramp = torch.arange(SIZES[tensor], dtype=torch.int64, device=device)
    return (ramp + 1_000_003 * step + 101 * tensor).to(torch.int32)


def main(folder: Path, steps: int, device: torch.device) -> None:
    session = Session(
        folder / "run",
        configuration={},
        framework="pytorch",
        framework_version=torch.__version__,
        ring=ring_config(),
        flusher="process",
    )
    use_devices(session.ring)
    ids = np.array([session.ring.intern(f"t{i}", 1) for i in range(len(SIZES))], np.uint32)
    kept: list[Any] = []  # a simulated device reads them later; a GPU needs no reference
    with (folder / "ledger.txt").open("a") as ledger:
        for step in range(steps):
            tensors = [values(step, i, device) for i in range(len(SIZES))]
            session.ring.capture(tensors, ids, bytes([3]) * len(SIZES), step, 1, step)
            ledger.write(f"{step}\n")
            ledger.flush()
            if device.type == "cpu":
                kept = [*kept[-50:], tensors]
            time.sleep(0.002)
    session.close()


if __name__ == "__main__":
    from tests.gpu.conftest import SIMULATED

    main(Path(sys.argv[1]), int(sys.argv[2]), torch.device("cpu" if SIMULATED else "cuda"))
