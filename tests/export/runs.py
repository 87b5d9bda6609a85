"""A run with everything that an export must keep apart, written without tdcore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.trial.writer import RunWriter

__all__ = ["HOSTILE_NAMES", "HOURS_AGO_NS", "expected_numbers", "write_run"]

HOURS_AGO_NS = 1_700_000_000_000_000_000
HOSTILE_NAMES = (
    *("a", "a/mean", "a@1", "x:0", "x_0", "x 0", "../../etc/passwd", "/abs", "a//b", "__hidden", "step"),
    *("tab\there", "new\nline", "<script>alert(1)</script>", "naïve ★ 名", "=1+1", "n" * 3000, "TRAIN/step"),
)


def write_run(root: Path, *, hostile: bool = True, steps: int = 4, ends: bool = True) -> Path:
    """Two attempts of two workers, with modes TRAIN and EVAL, NaN, infinities, a finding and a note."""
    workers = ["worker_0", "worker_1"]
    for attempt in (0, 1):
        for worker in workers:
            run = RunWriter(
                root, worker=worker, attempt=attempt, world_size=2, workers=workers, epoch_ns=HOURS_AGO_NS
            )
            _add(run, attempt * 10 + workers.index(worker), steps, hostile)
            run.flush()
            if ends:
                run.end()
    finding = {
        "rule": "ExplodingTensor", "code": "TDC001", "step": 2, "mode": "TRAIN", "mode_step": 1, "attempt": 1,
        "worker": "worker_1", "tensor": "w", "numbers": {"value": "NaN"}, "why": "it has NaN",
        "do": "stop \ud800",
    }  # fmt: skip
    (root / "findings").mkdir()
    (root / "findings" / "ExplodingTensor.jsonl").write_text(json.dumps(finding) + "\n")
    note = {"collections": {}, "never_called": ["layer 7"]}
    run.put("collections.json", {"format": 1, "attempts": {"0": note, "1": {"collections": {}}}})
    return root


def _add(run: RunWriter, seed: int, steps: int, hostile: bool) -> None:
    losses = [0.1 + seed, float("nan"), float("inf"), -float("inf")]
    for step in range(steps):
        mode, mode_step = ("TRAIN", step) if step % 2 == 0 else ("EVAL", step // 2)
        weight = np.linspace(-1, 1, 6) * (step + 1) / 3 + seed
        weight[0] = [0.0, np.nan, 1e-300, 2.0**60][step % 4]
        at: dict[str, Any] = {"step": step, "mode": mode, "mode_step": mode_step}
        run.add("loss", losses[step % 4], kind="loss", **at)
        run.add("w", weight, **at)
        run.add("w", weight * 2, call=1, **at)
        run.add("lr", 0.25, kind="hyperparameter", **at)
        run.add("absent", None, status="absent", reason="none", **at)
        if hostile and step == 0:
            for number, name in enumerate(HOSTILE_NAMES):
                run.add(name, np.array([number, number + 1.0]) if name == "a" else float(number), **at)


def expected_numbers(root: Path) -> dict[tuple[Any, ...], float]:
    """(attempt, worker, mode, step, name, call, statistic) -> number, from the index of the run."""
    import tdcore as td

    found: dict[tuple[Any, ...], float] = {}
    for attempt in td.create_trial(root).attempts:
        for row in td.create_trial(root, attempt=attempt).stats(attempt=attempt).to_pylist():
            place = tuple(row[key] for key in ("attempt", "worker", "mode", "step", "name", "call"))
            if row["count"] is None:
                continue
            if row["elements"] == 1:
                value = row["mean"]
                for column, number in (("pos_inf_count", np.inf), ("neg_inf_count", -np.inf)):
                    value = number if row[column] else value
                key = (*place, "")
                found[key] = value
                continue
            for name in ("mean", "std", "l2", "abs_max"):
                key = (*place, name)
                found[key] = row[name]
            key = (*place, "non_finite")
            found[key] = row["nan_count"] + row["pos_inf_count"] + row["neg_inf_count"]
    return found
