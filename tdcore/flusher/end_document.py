"""end_document: the file end/<worker>/<attempt>.json, with the end and the totals of an attempt."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tdcore.flusher.ledger import Ledger
from tdcore.format.layout import FORMAT_VERSION

if TYPE_CHECKING:
    from tdcore._core import Consumer

__all__ = ["end_document"]


def end_document(
    ledger: Ledger,
    consumer: Consumer,
    *,
    clean: bool,
    storage: Mapping[str, Any] | None = None,
    run_id: str = "",
) -> bytes:
    """Return the bytes of the end file.

    Fields of the document: last_step is -1 without rows. In totals, rows, records and payload_bytes count
    data on disk; the other fields are counts of the capture. gaps are tensors that are missing on disk. drops
    counts all tensors that were not kept, by reason.

    Args:
        ledger: Index files of the attempt.
        consumer: Counters of the capture.
        clean: Whether the trainer closed the ring; False if the trainer died.
        storage: Report of a remote sink, see PipelinedSink.report.
        run_id: Id of the run.
    """
    total = ledger.totals()
    counters = consumer.counters()
    drops = {reason: drop for reason, drop in counters["drops"].items() if drop["tensors"] or drop["bytes"]}
    document: dict[str, Any] = {
        "format": FORMAT_VERSION,
        **({"run_id": run_id} if run_id else {}),
        "worker": ledger.worker,
        "attempt": ledger.attempt,
        "clean": clean,
        "reason": "closed" if clean else "the training process ended without closing",
        "ended_ns": time.time_ns(),
        "last_step": total.last_step,
        "last_mode_steps": total.last_mode_steps,
        "totals": {
            "rows": total.rows,
            "records": total.records,
            "payload_bytes": total.payload_bytes,
            "captures": counters["captures"],
            "captured_tensors": counters["tensors"],
            "captured_bytes": counters["payload_bytes"],
            "capture_ns": counters["capture_ns"],
        },
        "drops": drops,
        "gaps": [asdict(gap) for gap in total.gaps],
        "torn_records": drops.get("torn", {"tensors": 0})["tensors"],
        "flusher_restarts": max(0, consumer.epoch - 1),
    }
    if storage is not None:
        document["storage"] = storage
    return json.dumps(document, indent=1).encode()
