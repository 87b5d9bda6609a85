"""All rules over 1,000,000 index rows, a poll of a long run, and the delay from save to finding.

Speed: the run of `python -m benchmarks read` (200 tensors per step, statistics of all tensors) is read once.
Then each rule judges the whole run alone, and all rules judge it together. Both are compared with one read of
the index. Rules that cannot run alone with their defaults are left out and listed. The time of a rule
includes its reads of values, and the conversion of the columns that it uses; all rules together convert each
column once. _s is wall-clock time, _cpu_s is CPU time of the process on all cores; both are medians of the
repeats.

Looks: a run with a given number of rows is followed while steps of 200 rows arrive one by one. The time is
that of one poll of all rules with one new step. If the time does not grow with the number of existing rows,
the cost depends only on the new rows.

Delay: a real training with a hook, in its own process, is followed as by `tdcore rules run --live`. The delay
of a step is the time from its last capture (time_ns of its last row) to the poll that judged the step.
"halved" counts steps that were judged in two pieces. Times are wall-clock times on one machine, with all
files in the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from benchmarks.environment import ROOT, add_out, save
from benchmarks.read import TENSORS, make_run

# Speed. ----------------------------------------------------------------------------------------------


def speed(folder: Path, repeats: int) -> dict[str, Any]:
    """Seconds of one read, of each rule alone, and of all rules together with their read."""
    from tdcore.rules import Engine
    from tdcore.rules.run_source import RunSource
    from tdcore.rules.source import COLUMNS

    instances, left_out = _library()
    columns = list(dict.fromkeys([*COLUMNS, *(c for r in instances for c in getattr(r, "columns", ()))]))
    read: list[Times] = []
    alone: dict[str, list[Times]] = {type(rule).__name__: [] for rule in instances}
    together: list[Times] = []
    verdicts: dict[str, str] = {}
    rows = 0
    for _ in range(repeats):
        source = RunSource(folder)
        batch, times = _timed(source.next, columns)
        read.append(times)
        rows = batch.table.num_rows
        for rule in instances:
            _, times = _timed(Engine(_Held(source, batch), [rule]).step)
            alone[type(rule).__name__].append(times)
        engine = Engine(RunSource(folder), instances)
        together.append(_timed(engine.step)[1])
        verdicts = {verdict.rule: verdict.text for verdict in engine.verdicts(finished=True)}
    return {
        "rows": rows,
        "read_s": _median(read).wall,
        "read_cpu_s": _median(read).cpu,
        "all_rules_s": _median(together).wall,
        "all_rules_cpu_s": _median(together).cpu,
        "rules_s": {name: _median(times).wall for name, times in alone.items()},
        "rules_cpu_s": {name: _median(times).cpu for name, times in alone.items()},
        "verdicts": verdicts,
        "left_out": left_out,
    }


class Times(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def _timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, Times]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call(*arguments)
    return result, Times(time.perf_counter() - wall, time.process_time() - cpu)


def _median(times: list[Times]) -> Times:
    return Times(*(statistics.median(each) for each in zip(*times, strict=True)))


def _library() -> tuple[list[Any], dict[str, str]]:
    from tdcore.errors import ConfigError
    from tdcore.rules.library import RULES

    made: list[Any] = []
    left_out: dict[str, str] = {}
    for rule in RULES.values():
        try:
            made.append(rule())
        except (ConfigError, TypeError) as error:  # noqa: PERF203 -- few iterations
            left_out[rule.__name__] = str(error)
    return made, left_out


class _Held:
    """A source whose first batch was read already."""

    def __init__(self, source: Any, batch: Any) -> None:
        self.where = source.where
        self.members, self.begun = source.members, source.begun
        self.finished, self.attempt_ended, self.capture = (
            source.finished,
            source.attempt_ended,
            source.capture,
        )
        self.left_out, self.not_recorded = source.left_out, source.not_recorded
        self.training, self.notes, self.epoch = source.training, source.notes, source.epoch
        self.samples = source.samples
        self.step_times = source.step_times
        self._batch = batch

    def next(self, columns: Any, *, everything: bool = False) -> Any:
        return self._batch


# Looks. ----------------------------------------------------------------------------------------------


def looks(folder: Path, rows: int, number: int) -> dict[str, Any]:
    """Milliseconds of a poll with one new step, by the number of existing rows."""
    from tdcore.flusher.options import FlusherOptions
    from tdcore.format.layout import TensorKind
    from tdcore.rules import Engine
    from tdcore.rules.run_source import RunSource
    from tdcore.session import RingConfig, Session

    soon = FlusherOptions(visible_delay=timedelta(milliseconds=20))
    session = Session(
        folder, configuration={}, framework="none", framework_version="0",
        ring=RingConfig(ring_bytes=256 << 20), flusher_options=soon,
    )  # fmt: skip
    ring = session.ring
    ids = array("I", [ring.intern("loss", int(TensorKind.LOSS))])
    ids.extend(ring.intern(f"t{i}", int((TensorKind.WEIGHT, TensorKind.GRADIENT)[i % 2])) for i in range(199))
    values = list(np.random.default_rng(0).standard_normal((TENSORS, 64), dtype=np.float32))
    values[0] = values[0][:1]
    flags = bytes([2]) * TENSORS
    steps = rows // TENSORS
    for step in range(steps):
        ring.capture(values, ids, flags, step, 1, step)
    instances, _ = _library()
    source = RunSource(folder)
    engine = Engine(source, instances)
    while engine.rows < (steps - 1) * TENSORS:
        engine.step()
        time.sleep(0.05)
    idle: list[float] = []
    busy: list[float] = []
    for step in range(steps, steps + number):
        ring.capture(values, ids, flags, step, 1, step)
        before = engine.rows
        while engine.rows == before:
            time.sleep(0.02)
            start = time.perf_counter()
            engine.step()
            (idle if engine.rows == before else busy).append(time.perf_counter() - start)
    session.close()
    return {
        "rows": rows,
        "look_ms": 1e3 * statistics.median(busy),
        "idle_look_ms": 1e3 * statistics.median(idle),
    }


# Delay. ----------------------------------------------------------------------------------------------

_BEGIN = timedelta(seconds=60)
_SAVES = 5  # minimum number of saved steps in each training
TRAININGS: dict[str, dict[str, float]] = {
    "interval 1, steps of 5 ms": {"interval": 1, "forward_s": 0.0025, "backward_s": 0.0025},
    "interval 1, steps of 0.3 s": {"interval": 1, "forward_s": 0.15, "backward_s": 0.15},
    "interval 1, steps of 1.6 s": {"interval": 1, "forward_s": 0.8, "backward_s": 0.8},
    "interval 1, steps of 5 s": {"interval": 1, "forward_s": 2.5, "backward_s": 2.5},
    "interval 100, steps of 30 ms": {"interval": 100, "forward_s": 0.015, "backward_s": 0.015},
    "interval 10, steps of 0.5 s": {"interval": 10, "forward_s": 0.25, "backward_s": 0.25},
}


def train(folder: str, interval: int, forward: float, backward: float, seconds: float) -> None:
    """Train a small network, with pauses in place of the time of larger networks."""
    import torch
    from torch import nn

    from tdcore.config.save_config import SaveConfig
    from tdcore.hooks.pytorch import Hook

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    collections = ["weights", "gradients", "outputs", "losses"]
    hook = Hook(folder, save_config=SaveConfig(save_interval=interval), include_collections=collections)
    hook.register_module(model)
    hook.register_loss(criterion)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(8, 16)), torch.randint(4, (8,)))
        time.sleep(forward)
        loss.backward()
        time.sleep(backward)
        optimizer.step()
    hook.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A rule that stores when each step was saved and judged, and has no findings."""

    code: ClassVar[str] = "bench"

    def needs(self) -> Any:
        from tdcore.rules import Need

        return Need(what="rows")

    def check(self, window: Any) -> Iterator[Any]:
        seen = window.memory.setdefault("delays", [])
        steps, times = window.columns.ints("step"), window.columns.ints("time_ns")
        now = time.time_ns()
        for step in np.unique(steps).tolist():
            seen.append((step, (now - int(times[steps == step].max())) / 1e9))
        window.judged(len(window))
        return iter(())


def delay(folder: Path, training: dict[str, float], seconds: float) -> dict[str, Any]:
    """Percentiles of the delay over the steps of one training. The last step is reported separately."""
    from tdcore.rules import Engine
    from tdcore.rules.run_source import RunSource
    from tdcore.rules.runner import follow

    arguments = [str(training[name]) for name in ("interval", "forward_s", "backward_s")]
    command = [sys.executable, "-m", "benchmarks.rules", "--train", str(folder), *arguments, str(seconds)]
    trainer = subprocess.Popen(command, cwd=ROOT)
    try:
        source = RunSource(folder)
        engine = Engine(source, [Delay()])
        follow(engine, source, until_end=True, poll_interval=source.pause, start_timeout=_BEGIN)
    finally:
        trainer.wait()
    seen = engine.state()["judges"][0]["memory"]["delays"]
    steps = [step for step, _ in seen]
    delays = np.array([value for _, value in seen][:-1])
    return {
        "steps": len(set(steps)),
        "halved": len(steps) - len(set(steps)),
        "p50_s": float(np.quantile(delays, 0.5)),
        "p99_s": float(np.quantile(delays, 0.99)),
        "max_s": float(delays.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--looks", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="seconds of each training; 0: no trainings"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder of the run; an existing run is used, a new run is kept"
    )
    add_out(parser)
    parser.add_argument("--train", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        folder, interval, *numbers = options.train
        train(folder, int(interval), *map(float, numbers))
        return
    (ROOT / "build").mkdir(exist_ok=True)
    result: dict[str, Any] = {"method": __doc__}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        if options.repeats:
            folder = options.keep or Path(name) / "run"
            if not (folder / "run.json").exists():
                make_run(folder, options.rows // TENSORS)
            result["speed"] = speed(folder, options.repeats)
        result["looks"] = [looks(Path(name) / f"looks-{rows}", rows, 20) for rows in options.looks]
        result["delay"] = {}
        for at, (what, training) in enumerate(TRAININGS.items()):
            if options.seconds > 0:
                step = training["forward_s"] + training["backward_s"]
                seconds = max(options.seconds, _SAVES * step * training["interval"])
                result["delay"][what] = delay(Path(name) / f"training-{at}", training, seconds)
    print(json.dumps({name: value for name, value in result.items() if name != "method"}, indent=1))
    print("saved", save("rules", result, options.out))


if __name__ == "__main__":
    main()
