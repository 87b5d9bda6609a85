"""Run a benchmark: `python -m benchmarks NAME [options]`. Without a name, list the names."""

from __future__ import annotations

import importlib
import sys

NAMES = {
    "slowdown": "training slowdown by save interval: tdcore, its peers, and the limit",
    "view": "tdcore view in a browser: opening a run of 1,000,000 rows, first paint, heat map, panning",
    "read": "opening, querying and judging a run of 1,000,000 rows, compared with smdebug and pyarrow",
    "scale": "questions to runs of 10^5 to 10^8 rows: CPU and memory, compared with DuckDB and Polars",
    "rules": "all rules over 1,000,000 rows, a poll of a long run, and the delay from save to finding",
    "flush": "from ring to disk: GB/s, CPU seconds per GB, idle cost, compared with plain writes and dd",
    "flusher-memory": "memory of the flusher under load: rows, values, names, a bucket, the end of a run",
    "s3": "runs in a bucket: uploads compared with other clients, their effect on training, opening a run",
    "native": "ring, statistics, CRC-32C and capture, each compared with its limit",
    "gpu": "slowdown and stall of trainings on a GPU, compared with tensor.cpu() by hand",
    "default-rules": 'cost of Hook(rules="default") in a training of ResNet-18',
    "hook-cost": "cost of steps without a save, and cost per small tensor",
    "first-step": "cost of the registration and of the first saved step of a model with many modules",
    "profile-cost": "time that a training waits for a profile, by the number of recorded operators",
    "profilers": "slowdown by profilers that are always on: tdcore, py-spy, torch.profiler, smdebug, TraceML",
    "large-model": "time that a training waits for saved values of a large model, by the size of the ring",
    "boosting": "slowdown of a training of XGBoost by recorded tensors and by save interval",
    "keras": "slowdown of Keras's fit() on each backend by save interval; needs the environment .venv-keras",
    "operator-cost": "cost of a call from compiled code, by the way its operator is registered",
    "crash-table": "not a speed: the readable rows after trainer or flusher were killed",
}


def listing() -> str:
    """One line for each benchmark."""
    lines = [f"  {name:14} {what}" for name, what in NAMES.items()]
    return "\n".join(["python -m benchmarks NAME [options], where NAME is one of", *lines])


def main() -> int:
    """Run the named benchmark. Returns the exit code: 2 if there is no benchmark of that name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help"):
        print(listing())
        return 0
    if name not in NAMES:
        print(f"there is no benchmark {name!r}\n{listing()}", file=sys.stderr)
        return 2
    sys.argv[:2] = [f"python -m benchmarks {name}"]
    importlib.import_module(f"benchmarks.{name.replace('-', '_')}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
