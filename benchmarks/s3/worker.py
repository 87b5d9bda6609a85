"""Run one measurement in its own process, and print the results as JSON after RESULT.

python -m benchmarks.s3.worker put '{"tool": "s3fs", ...}'
"""

from __future__ import annotations

import importlib
import json
import sys

JOBS = {
    "put": ("put", "PutJob"),
    "loop": ("loop", "LoopJob"),
    "stall": ("stall", "StallJob"),
    "open": ("opening", "OpenJob"),
}


def main() -> None:
    """The command line."""
    module, job = JOBS[sys.argv[1]]
    measuring = importlib.import_module(f"benchmarks.s3.{module}")
    result = measuring.measure(getattr(measuring, job)(**json.loads(sys.argv[2])))
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
