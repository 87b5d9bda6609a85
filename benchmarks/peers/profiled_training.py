"""Train with and without a profiler, in pairs of blocks: one process of `python -m benchmarks profilers`.

profiled_training.py TOOL MODEL SECONDS STEPS LONG_STEPS FOLDER      writes FOLDER/result.json

It runs in the environment of the tool, so it imports the tool last, and nothing else of tdcore.
"""

from __future__ import annotations

import contextlib
import cProfile
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.slowdown import machine

ROOT = Path(__file__).resolve().parents[2]
PY_SPY = ROOT / ".venvs" / "profilers" / "bin" / "py-spy"
LEAD_IN = 5  # steps before each block that are not measured
RATE = 100  # samples of py-spy per second
NEVER = 1 << 40
LEAST_PAIRS = 2
ROOT_PROCESS = "BENCHMARK_ROOT_PROCESS"  # variable: id of the process that has started the tool


def _perceptron() -> tuple[nn.Module, torch.Size, int]:
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), torch.Size([256]), 64


def _cnn() -> tuple[nn.Module, torch.Size, int]:
    parts: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        parts += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(512, 10)), torch.Size([3, 32, 32]), 32


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Size, int]]] = {"mlp": _perceptron, "cnn": _cnn}


class Training:
    """A model with its optimizer. All trainings of one kind in a process are equal.

    around: called with the model; the context manager that it returns contains the step. after: called after
    each step.
    """

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.model, self._shape, self._batch = MODELS[kind]()
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.around: Callable[[nn.Module], contextlib.AbstractContextManager[Any]] | None = None
        self.after: Callable[[], object] | None = None

    def loader(self, steps: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        """A loader without worker processes, with so many shuffled batches."""
        count = steps * self._batch
        data = TensorDataset(torch.randn(count, *self._shape), torch.randint(10, (count,)))
        return DataLoader(data, batch_size=self._batch, shuffle=True)

    def train(self, loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
        """Train one epoch."""
        for batch, target in loader:
            with self.around(self.model) if self.around else contextlib.nullcontext():
                self.optimizer.zero_grad()
                loss = self.loss(self.model(batch), target)
                loss.backward()
                self.optimizer.step()
            if self.after:
                self.after()


class Tool:
    """A profiler that is switched on for a block and off after it. This one records nothing.

    folder: where the profiler writes. Each block has a new folder.
    """

    has_processes = False  # a block begins when the tool's processes have started and are idle
    most_steps = NEVER  # of a block

    def __init__(self, kind: str) -> None:
        self.training = Training(kind)

    def begin(self, folder: Path, steps: int) -> None:
        """Switch the profiler on, for at most so many steps."""

    def end(self) -> None:
        """Switch the profiler off."""

    def store(self) -> None:
        """Write the files that end() has not written. Called after the long block only."""

    def close(self) -> dict[str, Any]:
        """End the tool. Returns further facts for the result file."""
        return {}


class Tdcore(Tool):
    """A hook that saves no tensors: times of steps (unless they are off), and samples of the machine."""

    has_processes = True

    def begin(self, folder: Path, steps: int) -> None:
        import tdcore as td
        from tdcore.hooks.pytorch import Hook

        self._run = folder / "run"
        self._hook = Hook(self._run, save_config=td.SaveConfig(start_step=NEVER))
        self._hook.register_module(self.training.model)

    def end(self) -> None:
        self._hook.close()

    def close(self) -> dict[str, Any]:
        import tdcore as td

        trial = td.create_trial(self._run)
        return {"rows_of_steps": trial.steps_time().num_rows, "samples": trial.system().num_rows}


class PySpy(Tool):
    """py-spy, which samples this process from another process. Options are further options of `record`."""

    options: tuple[str, ...] = ()

    def begin(self, folder: Path, steps: int) -> None:
        command = [str(PY_SPY), "record", "--pid", str(os.getpid()), "--rate", str(RATE), "--format", "raw"]
        command += ["--output", str(folder / "stacks.txt"), *self.options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._process.stdout is not None
        for line in self._process.stdout:  # the first lines are printed when py-spy is attached
            if b"Sampling" in line:
                break
        else:
            raise RuntimeError(f"py-spy ended with {self._process.wait()}")
        self._rest: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._rest += self._process.stdout.readlines()

    def end(self) -> None:
        self._process.send_signal(signal.SIGINT)
        if self._process.wait(60):
            raise RuntimeError(f"py-spy: {self._rest}")
        self._reader.join()

    def close(self) -> dict[str, Any]:
        text = b"".join(self._rest).decode(errors="replace")[-500:]
        return {"output": re.sub(r"'[^']*/", "'", text)}  # without the folders of this machine


class PySpyNonblocking(PySpy):
    """py-spy that does not stop the training while it reads a stack."""

    options = ("--nonblocking",)


class TorchProfiler(Tool):
    """torch.profiler on all steps of a block."""

    shapes = False
    most_steps = 100  # its trace has up to 200 kB per step

    def begin(self, folder: Path, steps: int) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        self._path = folder / "trace.json"
        when = schedule(wait=0, warmup=0, active=steps + LEAD_IN + 1, repeat=1)
        self._profile = profile(activities=[ProfilerActivity.CPU], schedule=when, record_shapes=self.shapes)
        self._profile.start()
        self.training.after = self._profile.step

    def end(self) -> None:
        self.training.after = None
        self._profile.stop()

    def store(self) -> None:
        self._profile.export_chrome_trace(str(self._path))


class TorchProfilerShapes(TorchProfiler):
    """torch.profiler that also records the shapes of the inputs."""

    shapes = True


class CProfile(Tool):
    """cProfile on all steps of a block."""

    def begin(self, folder: Path, steps: int) -> None:
        self._path = folder / "profile.pstats"
        self._profile = cProfile.Profile()
        self._profile.enable()

    def end(self) -> None:
        self._profile.disable()
        self._profile.dump_stats(self._path)


class Smdebug(Tool):
    """The profiler of smdebug: a timeline of steps and modules. Only this tool's own model has its hooks."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._hook: Any = None

    def begin(self, folder: Path, steps: int) -> None:
        if self._hook is None:
            self._start(folder)

    def _start(self, folder: Path) -> None:
        """Start it in the first folder. The path is in lower case, because smdebug converts it."""
        settings = {"ProfilingParameters": {"LocalPath": str(folder)}}
        path = folder.parent / "profilerconfig.json"
        path.write_text(json.dumps(settings))
        os.environ["SMPROFILER_CONFIG_PATH"] = str(path)
        import smdebug.pytorch as smd

        self._hook = smd.Hook(
            out_dir=str(folder.parent / "tensors"),
            save_config=smd.SaveConfig(start_step=NEVER),
            include_collections=[],
        )
        self._hook.register_module(self.training.model)

    def close(self) -> dict[str, Any]:
        self._hook.close()
        return {}


class TraceML(Tool):
    """TraceML, in a process that `traceml run` started. Its sampling thread runs in all blocks."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        import traceml_ai

        traceml_ai.init(mode="auto")
        self._arm(False)

    def begin(self, folder: Path, steps: int) -> None:
        self._arm(True)
        import traceml_ai

        self.training.around = traceml_ai.trace_step

    def end(self) -> None:
        self.training.around = None
        self._arm(False)

    def _arm(self, on: bool) -> None:
        from traceml_ai.runtime import arming

        arming._set_tracing_armed(on)


TOOLS: dict[str, type[Tool]] = {
    "nothing": Tool,
    "tdcore": Tdcore,
    "tdcore-no-times": Tdcore,
    "py-spy": PySpy,
    "py-spy-nonblocking": PySpyNonblocking,
    "torch.profiler": TorchProfiler,
    "torch.profiler-shapes": TorchProfilerShapes,
    "cProfile": CProfile,
    "smdebug": Smdebug,
    "traceml": TraceML,
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """Cost of a block, per step, in seconds."""

    wall: float
    own: float  # wall, less the time in which the training thread waits for a core that others use
    thread: float  # CPU time of the training thread
    helpers: float  # CPU time of all other threads and of descendant processes


def helper_seconds() -> float:
    """CPU seconds of the other threads of this process and of its descendants, so far.

    If this process was started by the tool, all processes of the tool are counted too.
    """
    root = int(os.environ.get(ROOT_PROCESS, os.getpid()))
    return machine.tree_cpu_seconds(root) - time.thread_time()


def core_wait() -> float:
    """Seconds in which this thread was ready to run, but had no core, so far. From the kernel's scheduler."""
    text = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
    return int(text.split()[1]) / 1e9


def block(training: Training, steps: int) -> Block:
    """Train a block. The first steps are not measured."""
    training.train(training.loader(LEAD_IN))
    loader = training.loader(steps)
    helpers = helper_seconds()
    wait, wall, thread = core_wait(), time.perf_counter(), time.thread_time()
    training.train(loader)
    wall, thread, wait = time.perf_counter() - wall, time.thread_time() - thread, core_wait() - wait
    return Block(
        wall=wall / steps,
        own=(wall - wait) / steps,
        thread=thread / steps,
        helpers=(helper_seconds() - helpers) / steps,
    )


def profiled(tool: Tool, folder: Path, steps: int) -> tuple[Block, float]:
    """A block with the tool, and the seconds that the training waits when the tool begins and ends."""
    folder.mkdir(parents=True)
    start = time.perf_counter()
    tool.begin(folder, steps)
    waited = time.perf_counter() - start
    if tool.has_processes:
        machine.settle(3.0)
    found = block(tool.training, steps)
    start = time.perf_counter()
    tool.end()
    return found, waited + time.perf_counter() - start


def measure(
    name: str, kind: str, seconds: float, steps: int, long_steps: int, folder: Path
) -> dict[str, Any]:
    """Run pairs of blocks for some seconds, and a long block that measures the size of the files."""
    tool, plain = TOOLS[name](kind), Training(kind)
    if name != "smdebug":
        tool.training = plain  # one model, so that the layout of its memory is the same
    block(plain, steps)
    profiled(tool, folder / "warm", steps)
    long_steps = min(long_steps, tool.most_steps)
    rows: list[dict[str, Any]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rows) < LEAST_PAIRS:
        pair = len(rows)
        place = folder / f"pair{pair}"
        if pair % 2:
            on, waited = profiled(tool, place, steps)
            off = block(plain, steps)
        else:
            off = block(plain, steps)
            on, waited = profiled(tool, place, steps)
        rows.append({"on": vars(on), "off": vars(off), "waited_s": waited})
    before = machine.files_under(folder)[1]
    helpers = helper_seconds()
    long, waited = profiled(tool, folder / "long", long_steps)
    start = time.perf_counter()
    tool.store()
    waited += time.perf_counter() - start
    facts = tool.close()
    return {
        "pairs": rows,
        "profiled_steps": (len(rows) + 1) * (steps + LEAD_IN) + long_steps + LEAD_IN,
        "long": {
            "steps": long_steps,
            "bytes": machine.files_under(folder)[1] - before,
            "helpers_s": helper_seconds() - helpers,  # with the start and the end of the tool
            "waited_s": waited,
            "step_s": long.own,
            "running_helpers_s": long.helpers * long_steps,
        },
        "facts": facts,
    }


def main() -> None:
    name, kind, seconds, steps, long_steps, folder = sys.argv[1:]
    torch.set_num_threads(1)
    result = measure(name, kind, float(seconds), int(steps), int(long_steps), Path(folder))
    result["torch"] = torch.__version__
    Path(folder).joinpath("result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
