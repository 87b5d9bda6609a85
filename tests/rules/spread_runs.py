"""Runs on disk for the tests of spread judgement: traces of rules on several workers, and random runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tdcore.rules import run
from tdcore.rules.rule_attributes import judged_by, judges_tensors
from tdcore.rules.rule_run import RuleRun
from tdcore.rules.run_report import Report
from tdcore.rules.spread.plan import Part
from tdcore.rules.trace import Trace
from tests.trial.writer import RunWriter

_OWN = ("attempt", "worker", "ticket", "seq", "part", "parts", "segment", "offset", "nbytes", "crc32c")


def write_copies(root: Path, trace: Trace) -> None:
    """Write a trace of one worker as a run of three workers and two attempts; others as they are.

    The third worker, and the second attempt, have the first two thirds of the steps.
    """
    homes = sorted({(row["attempt"], row["worker"]) for row in trace.rows})
    if len(homes) > 1:
        for attempt, worker in homes:
            _write(root, trace, (attempt, worker), attempt, worker, 1.0)
    for attempt in range(2 if len(homes) == 1 else 0):
        for rank in range(3):
            share = 1.0 if (attempt, rank) in ((0, 0), (0, 1)) else 2 / 3
            _write(root, trace, homes[0], attempt, f"worker_{rank}", share)
    _put_collections(root, trace.collections, {attempt for attempt, _ in homes} | {0, 1})


def _write(root: Path, trace: Trace, home: tuple[int, str], attempt: int, worker: str, share: float) -> None:
    rows = [(at, row) for at, row in enumerate(trace.rows) if (row["attempt"], row["worker"]) == home]
    steps = sorted({row["step"] for _, row in rows})
    last = steps[max(0, round(len(steps) * share) - 1)] if steps else 0
    writer = RunWriter(root, worker=worker, attempt=attempt, world_size=3, epoch_ns=10**18)
    every = max(7, len(rows) // 5)
    for number, (at, row) in enumerate(rows):
        if row["step"] > last:
            continue
        columns = {name: value for name, value in row.items() if name not in _OWN}
        values = trace.payloads.get(at)
        if values is not None:
            values = values.astype(np.float32) if values.dtype == np.float64 else values
            del columns["dtype"]
        step, name = columns.pop("step"), columns.pop("name")
        columns["time_ns"] += 10**18
        writer.add(name, values, step=step, **columns)
        if number % every == every - 1:
            writer.flush()
    writer.flush()
    if trace.notes:
        writer.put(f"notes/{worker}/{attempt:04d}.json", trace.notes)
    writer.end()


def _put_collections(root: Path, collections: Mapping[str, Sequence[str]], attempts: set[int]) -> None:
    if collections:
        entries = {name: {"tensor_names": names, "included": True} for name, names in collections.items()}
        document = {"format": 1, "attempts": {str(each): {"collections": entries} for each in attempts}}
        (root / "collections.json").write_text(json.dumps(document))


def write_random(root: Path, seed: int) -> None:
    """Write a run with random workers, attempts, steps, modes, tensors and faults.

    Workers begin and end at different steps, the first one may evaluate more often than the others, and rows
    may be absent, without statistics, without values or not finite.
    """
    random = np.random.default_rng(seed)
    workers, layers = int(random.integers(1, 5)), int(random.integers(1, 4))
    for attempt in range(int(random.integers(1, 3))):
        kind_of_fault = str(random.choice(["none", "small", "zero", "large", "same"]))
        for rank in random.permutation(workers).tolist():
            if rank and attempt and random.random() < 0.2:
                continue
            _write_random_worker(root, random, attempt, rank, workers, layers, kind_of_fault)
    names = [f"layer{each}.weight" for each in range(layers)]
    _put_collections(root, {"weights": names, "mine": names[:1]}, {0, 1})


def _write_random_worker(
    root: Path, random: np.random.Generator, attempt: int, rank: int, workers: int, layers: int, fault: str
) -> None:
    """Write one worker. fault: what is wrong with its tensors from a random step on."""
    writer = RunWriter(
        root, worker=f"worker_{rank}", attempt=attempt, world_size=workers, epoch_ns=10**18 + attempt * 10**15
    )
    begin, steps = int(random.integers(0, 4)), int(random.integers(3, 18))
    evaluates = rank == 0 or random.random() < 0.5
    from_step, rate = int(random.integers(0, 12)), float(random.choice([1e-9, 1e-3, 3.0]))
    weights = [random.standard_normal((4, 5)).astype(np.float32) for _ in range(layers)]
    step, mode_steps = begin, {"TRAIN": begin, "EVAL": 0}
    for number in range(steps):
        modes = ["TRAIN", "EVAL"] if evaluates and number % 4 == 3 else ["TRAIN"]
        for mode in modes:
            at: Any = {"step": step, "mode": mode, "mode_step": mode_steps[mode]}
            faulty = number >= from_step
            loss = float(random.choice([0.0, np.nan])) if faulty and fault == "zero" else 1 / (1 + number)
            writer.add("loss", np.float32(loss + (mode == "EVAL") * 0.01 * number), kind="loss", **at)
            for layer, weight in enumerate(weights):
                _write_layer(writer, random, layer, weight, fault if faulty else "none", at)
                if mode == "TRAIN" and not (faulty and fault == "same"):
                    weight -= np.float32(rate) * random.standard_normal(weight.shape).astype(np.float32)
            writer.mark_step_end(step)
            step, mode_steps[mode] = step + 1, mode_steps[mode] + 1
            if random.random() < 0.3:
                writer.flush()
    writer.flush()
    writer.end()


def _write_layer(
    writer: RunWriter, random: np.random.Generator, layer: int, weight: Any, fault: str, at: Any
) -> None:
    scale = {"small": 1e-12, "zero": 0.0, "large": 1e30}.get(fault, 1.0)
    training = at["mode"] == "TRAIN"
    writer.add(f"layer{layer}.weight", weight, payload=bool(random.random() < 0.3), **at)
    if training:
        gradient = (random.standard_normal(weight.shape) * scale).astype(np.float32)
        if fault == "large" and random.random() < 0.5:
            gradient[0] = random.choice([np.nan, np.inf])
        status = str(random.choice(["ok", "ok", "ok", "ok", "absent", "skipped"]))
        writer.add(
            f"gradient/layer{layer}.weight", gradient if status == "ok" else None, kind="gradient",
            stats=bool(random.random() < 0.9), payload=False, status=status, **at,
        )  # fmt: skip
        bias = gradient.sum(axis=0) if random.random() < 0.7 else np.zeros(5, np.float32)
        writer.add(
            f"gradient/layer{layer}.bias", bias.astype(np.float32), kind="gradient", payload=False, **at
        )
    output = np.maximum(random.standard_normal((20, 4)) - (5 if fault != "none" else 0), 0).astype(np.float32)
    relu: Any = {"kind": "output", "origin": "torch.nn.ReLU"}
    writer.add(f"ReLU{layer}_output_0", output, payload=bool(random.random() < 0.8), **relu, **at)
    writer.add(
        f"Tanh{layer}_input_0", 20 * output, kind="input", origin="torch.nn.Tanh", parts=1 + layer % 2, **at
    )


def finest_plan(runs: Sequence[RuleRun], rows: Mapping[str, int], tasks: int) -> list[Part]:
    """As many parts as the declarations of the rules allow: each worker alone, and thirds of its names."""
    scopes = {run.label: judged_by(run.rule) if judges_tensors(run.rule) and rows else "run" for run in runs}
    parts: list[Part] = []
    for scope, shares in (("run", 1), ("worker", 1), ("tensor", 3)):
        labels = tuple(label for label, each in scopes.items() if each == scope)
        groups = [tuple(rows)] if scope == "run" else [(worker,) for worker in rows]
        for group in groups if labels else ():
            for share in range(shares):
                part = Part(
                    number=len(parts) + 1, labels=labels, workers=group, whole=scope == "run", share=share,
                    shares=shares, counts=not parts or labels == parts[0].labels,
                )  # fmt: skip
                parts.append(part)
    return parts[::-1]


def judged_both_ways(place: Path, rules: Any, **options: Any) -> tuple[Report, Report]:
    """The reports of one task and of several tasks. Asserts that they and the written findings are equal."""
    news: list[list[Any]] = [[], []]
    shutil.rmtree(place / "findings", ignore_errors=True)
    whole = run(place, rules, on_findings=news[0].extend, **options)
    written = _written(place)
    shutil.rmtree(place / "findings", ignore_errors=True)
    spread = run(place, rules, engine="serial", workers=3, on_findings=news[1].extend, **options)
    assert spread.verdicts == whole.verdicts
    assert json.dumps(spread.to_json()) == json.dumps(whole.to_json())
    assert spread == whole
    assert spread.exit_code == whole.exit_code
    assert _written(place) == written
    assert news[0] == news[1]
    return whole, spread


def _written(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (place / "findings").glob("*")}
