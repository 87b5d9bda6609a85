"""A process that writes a run and merges its files at the same time, for test_live.py.

python -m tests.trial.live_writer ROOT STEPS
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.trial.writer import RunWriter


def main(root: Path, steps: int) -> None:
    """Write steps with `x` in one part and `y` in two parts; every third flush merges everything so far."""
    run = RunWriter(root)
    for step in range(steps):
        run.add("x", np.full(4, step, np.float32), step=step)
        run.add("y", np.arange(6.0) + step, step=step, parts=2)
        run.flush()
        if step % 3 == 2:
            run.merge(segments=True)
    run.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
