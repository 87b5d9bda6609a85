"""A process that writes a run slowly and merges it as it goes, for test_state.py.

python -m tests.rules.slow_writer ROOT STEPS SECONDS_PER_STEP
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from tests.trial.writer import RunWriter


def main(root: Path, steps: int, pause: float) -> None:
    """A loss that falls, then stands still; a weight in two flushes of a step; NaN every tenth step."""
    run = RunWriter(root)
    for step in range(steps):
        run.add("loss", np.float64(max(1.0, 20.0 - step)), step=step, kind="loss")
        run.flush()
        run.add("w", np.full(4, np.nan if step % 10 == 9 else step, np.float32), step=step, parts=2)
        run.flush()
        if step % 9 == 8:
            run.merge(segments=True)
        time.sleep(pause)
    run.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
