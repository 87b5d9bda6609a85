"""A trainer in its own process, started by processes.py with one JSON argument.

    {"out": "s3://...", "ledger": FILE, "report": FILE, "steps": 40, "pause": 0.01, "specs": [...],
     "ring": {...RingConfig...}, "options": {...FlusherOptions as JSON...}, "close_seconds": 5}

The ledger gets one line per capture, "step left_out", before the next capture begins. After `steps` steps the
trainer reads its stdin: each line allows one more step; the end of stdin means to close.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

from tdcore.flusher import FlusherOptions
from tdcore.session import RingConfig, Session
from tests.faults.values import Spec, Tap


def main(job: dict[str, Any]) -> None:
    session = Session(
        job["out"],
        configuration={},
        framework="numpy",
        framework_version="0",
        ring=RingConfig(**job["ring"], block_timeout=timedelta(seconds=20)),
        flusher_options=FlusherOptions.from_json(job["options"]),
        close_timeout=timedelta(seconds=job["close_seconds"]),
    )
    tap = Tap(session.ring, [Spec(**spec) for spec in job["specs"]])
    ledger = os.open(job["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    step = 0
    while step < job["steps"] or sys.stdin.readline():
        os.write(ledger, f"{step} {tap(step)}\n".encode())
        step += 1
        time.sleep(job["pause"])
    report = session.close()
    with open(job["report"], "w", encoding="utf-8") as file:
        drops = {reason: drop.tensors for reason, drop in report.counters.drops.items() if drop.tensors}
        json.dump({"drained": report.drained, "restarts": report.restarts, "drops": drops}, file)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
