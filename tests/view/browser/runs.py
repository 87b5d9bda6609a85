"""Runs for the tests in a browser, written from the description of the format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.trial.writer import RunWriter

__all__ = ["HOSTILE_NAMES", "write_empty", "write_hostile", "write_large", "write_ranks"]

_SCRIPT = "</script><script>hacked=1</script>"
HOSTILE_NAMES = (
    "<img src=x onerror=hacked=1>",
    f'"{_SCRIPT}',
    "'onmouseover='hacked=1",
    "javascript:hacked=1",
    "{{hacked=1}}${hacked=1}",
    "x" * 65_536,
    "<b>" + "ü" * 400,
    "line\nbreak\ttab\x00nul\x1b[31mred",
    "\u202eesrever\u202c \u2066isolate \ud7ff\ufeff",
    "../../etc/passwd",
    "gradient/%3Cscript%3E&amp;#60;?run=x#y",
    "(a+)+$",
    "__proto__",
    "constructor",
)


def write_empty(place: Path) -> None:
    """A run without rows."""
    RunWriter(place).end()


def write_ranks(place: Path) -> None:
    """A run of four workers. The gradients of worker_2 are ten times as large from step 10 on."""
    workers = [f"worker_{rank}" for rank in range(4)]
    numbers = np.random.default_rng(0)
    runs = [RunWriter(place, worker=name, world_size=4, workers=workers) for name in workers]
    for step in range(20):
        for rank, run in enumerate(runs):
            size = 10.0 if rank == 2 and step >= 10 else 1.0
            for layer in range(3):
                values = numbers.standard_normal((8, 8)).astype(np.float32)
                run.add(f"fc{layer}.weight", values, step=step)
                run.add(
                    f"gradient/fc{layer}.weight", size * values, step=step, kind="gradient", payload=False
                )
            run.add("loss", 1 / (step + 1) + rank / 100, step=step, kind="loss")
    for run in runs:
        run.flush()
        run.end()


def write_large(place: Path) -> None:
    """A run of 5,000 gradients at two steps, one of them with NaN."""
    run = RunWriter(place)
    for step in range(2):
        for number in range(5000):
            value = np.array([10.0 ** (-number / 1000), np.nan if (step, number) == (1, 3210) else 1.0])
            name = f"gradient/net.blocks.{number // 4}.{'qkvo'[number % 4]}.weight"
            run.add(name, value.astype(np.float32), step=step, kind="gradient", payload=False)
    run.flush()
    run.end()


def write_hostile(place: Path) -> None:
    """A run in which every text is hostile: names, origins, reasons, messages, the host, notes, findings."""
    run = RunWriter(place, host=HOSTILE_NAMES[0])
    for step in range(3):
        for number, name in enumerate(HOSTILE_NAMES):
            values = np.arange(12, dtype=np.float32).reshape(3, 4) * (step + 1)
            values[0, 0] = np.nan if number == 0 else 1.0
            kind = ("gradient", "weight", "loss", "output")[number % 4]
            run.add(
                name, values if kind != "loss" else float(step), step=step, kind=kind, origin=f"<i>{_SCRIPT}"
            )
        run.add(f"absent {_SCRIPT}", None, step=step, status="absent", reason=_SCRIPT)
    run.flush()
    finding = {
        "rule": f"Rule{_SCRIPT}", "code": "TDC<b>", "mode": "TRAIN", "worker": "worker_0",
        "why": f"why {_SCRIPT}",
        "tensor": HOSTILE_NAMES[0], "do": f"do {_SCRIPT} <a href=javascript:hacked=1>click</a>", "step": 1,
        "mode_step": 1, "attempt": 0, "count": 1, "numbers": {},
    }  # fmt: skip
    run.write("findings/Hostile.jsonl", (json.dumps(finding) + "\n").encode())
    notes = {"never_called": list(HOSTILE_NAMES), "exception": f"Error: {_SCRIPT}", "faults": {_SCRIPT: 1}}
    collections = {_SCRIPT: {"include_regex": [_SCRIPT, "(a+)+$"], "tensor_names": list(HOSTILE_NAMES)}}
    run.put("collections.json", {"format": 1, "attempts": {"0": {"collections": collections, **notes}}})
    document = json.loads((place / "run.json").read_text())
    document["attempts"][0] |= {
        "framework": _SCRIPT,
        "configuration": {_SCRIPT: HOSTILE_NAMES[0], "rules": [_SCRIPT]},
    }
    run.put("run.json", document)
    run.end(reason=_SCRIPT, drops={_SCRIPT: {"tensors": 3, "bytes": 4000}})
