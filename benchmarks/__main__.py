"""The benchmarks by name: `python -m benchmarks NAME [options]`; without a name it lists them."""

from __future__ import annotations

import importlib
import sys

NAMES = {
    "slowdown": "training slowdown by save interval: tdcore, its peers, and the limit",
    "read": "opening, querying and judging a run of 1,000,000 rows, beside the older library and pyarrow",
    "rules": "all rules over 1,000,000 rows, a look at a long run, and the delay from save to finding",
    "flush": "from ring to disk: GB/s, CPU seconds per GB, idle cost, beside plain writes and dd",
    "s3": "a bucket as the run's home: uploads beside other clients, their effect on training, opening",
    "native": "ring, statistics, CRC-32C and capture, each beside its limit",
    "gpu": "slowdown and stall of trainings on a GPU, beside tensor.cpu() by hand",
    "default-rules": 'what Hook(rules="default") costs a training of ResNet-18',
    "hook-cost": "steps that save nothing, and cost per small tensor",
    "boosting": "slowdown of a training of XGBoost by what is recorded and by save interval",
    "keras": "slowdown of Keras's fit() on each backend by save interval; needs the environment .venv-keras",
    "operator-cost": "a call from compiled code, by how its operator is registered",
    "crash-table": "not a speed: what is readable after trainer and flusher were killed",
}


def listing() -> str:
    """One line for each benchmark."""
    lines = [f"  {name:13} {what}" for name, what in NAMES.items()]
    return "\n".join(["python -m benchmarks NAME [options], where NAME is one of", *lines])


def main() -> int:
    """Runs the benchmark that is named. Returns the exit code: 2 when there is none of that name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help"):
        print(listing())
        return 0
    if name not in NAMES:
        print(f"{name!r} is no benchmark\n{listing()}", file=sys.stderr)
        return 2
    sys.argv[:2] = [f"python -m benchmarks {name}"]
    importlib.import_module(f"benchmarks.{name.replace('-', '_')}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
