"""`tdcore demo`: find a planted fault in a real training.

Rules in another process watch a network with a fault, find it and stop the training. Then the corrected
network trains to its end, and the rules find nothing. A report of the faulty training is written.

Needs torch and scikit-learn (`pip install "tdcore-capture[demo]"`); the 1,797 handwritten digits come with
scikit-learn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tdcore.cli.demo_report import Outcome, print_report
from tdcore.errors import StopTraining, TdcoreError
from tdcore.sinks import is_remote, local_path

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tdcore.hooks.pytorch import Hook

RULES = (
    "vanishing_gradient",
    "exploding_tensor",
    "dead_relu",
    "loss_not_decreasing:num_steps=200,smoothing_steps=20",
)
EPOCHS = {"faulty": 100, "mended": 20}  # the faulty training runs until a rule stops it
BATCH = 64
SAVE_INTERVAL = 5
_REPORT = "faulty.html"


def run_demo(out: str | None = None, json_output: bool = False) -> int:
    """Run both trainings in `out`, a folder or s3:// URL (default runs/demo), and print the report.

    Returns 0 if both trainings have the expected result, otherwise 1.
    """
    try:
        import sklearn.datasets
        import torch
    except ImportError as error:
        raise TdcoreError(
            f"the demo trains a network on scikit-learn's digits, and {error.name} is not installed; "
            'install both with: pip install "tdcore-capture[demo]"'
        ) from error
    torch.set_num_threads(1)  # a small network is slower with several threads
    console = Console(stderr=json_output)
    base = out if out is not None else "runs/demo"
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    split = len(labels) * 4 // 5
    data = [(images[part], labels[part]) for part in (order[:split], order[split:])]
    console.print(f"[bold]tdcore demo[/]: {len(labels):,} handwritten digits, two networks, one fault\n")
    outcomes = []
    for name, make in (("faulty", _faulty_network), ("mended", _mended_network)):
        torch.manual_seed(0)
        outcomes.append(_train_watched(name, make(), data[0], data[1], _below(base, name), console))
    good = _as_it_should_be(*outcomes)
    report = _write_report(outcomes[0].path, base)
    if json_output:
        runs = [asdict(one) for one in outcomes]
        print(json.dumps({"good": good, "runs": runs, "report": report}, indent=1))
    else:
        print_report(console, outcomes, report, good)
    return 0 if good else 1


def _below(base: str, name: str) -> str:
    """`name` below a folder or URL; the options of the URL stay at its end."""
    place, mark, options = base.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


def _write_report(run: str, base: str) -> str:
    """Write the report of a run next to the runs, or into this folder if they are in a bucket."""
    import tdcore as td

    name = _REPORT if is_remote(base) else os.path.join(local_path(base), _REPORT)
    return str(td.write_report(run, name))


def _faulty_network() -> nn.Module:
    """Ten sigmoid layers: each one shrinks the gradient, so the first layer has almost no gradient."""
    from torch import nn

    class SigmoidNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3, padding=1)
            self.deep = nn.Sequential(nn.Linear(8 * 64, 64), nn.Sigmoid())
            for _ in range(9):
                self.deep.extend([nn.Linear(64, 64), nn.Sigmoid()])
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.deep(self.conv(x).sigmoid().flatten(1)))
            return out

    return SigmoidNet()


def _mended_network() -> nn.Module:
    """A small convolutional network with normalisation and ReLU."""
    from torch import nn

    class DigitsNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.bn1 = nn.BatchNorm2d(16)
            self.relu1 = nn.ReLU()
            self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
            self.bn2 = nn.BatchNorm2d(32)
            self.relu2 = nn.ReLU()
            self.pool = nn.MaxPool2d(2)
            self.fc = nn.Linear(32 * 16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.relu1(self.bn1(self.conv1(x)))
            x = self.pool(self.relu2(self.bn2(self.conv2(x))))
            out: torch.Tensor = self.fc(x.flatten(1))
            return out

    return DigitsNet()


Part = tuple["torch.Tensor", "torch.Tensor"]


def _train_watched(
    name: str, model: nn.Module, train: Part, test: Part, path: str, console: Console
) -> Outcome:
    """Train `model` with capture, and with rules in another process. A stop by a rule is a normal end."""
    from torch import nn

    import tdcore as td
    from tdcore.hooks.pytorch import Hook

    hook = Hook(
        path,
        save_config=td.SaveConfig(save_interval=SAVE_INTERVAL),
        include_collections=["weights", "biases", "gradients", "losses"],
        include_regex=["relu._output"],
    )
    criterion = nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(criterion)
    stopped: str | None = None
    accuracy: float | None = None
    start = time.perf_counter()
    done = [0]  # training steps, including the steps of an incomplete epoch
    with _watcher(path) as watcher:
        try:
            for accuracy in _epochs(name, model, criterion, train, test, console, done):  # noqa: B007
                pass
        except StopTraining as stop:
            stopped = str(stop)
        seconds = time.perf_counter() - start
        hook.close()
        verdicts = _verdicts(watcher)
    return _outcome(
        name, path, hook, verdicts, stopped=stopped, accuracy=accuracy, seconds=seconds, steps=done[0]
    )


def _epochs(
    name: str,
    model: nn.Module,
    criterion: nn.Module,
    train: Part,
    test: Part,
    console: Console,
    done: list[int],
) -> Iterator[float]:
    """A plain training loop without tdcore; yields the test accuracy after each epoch.

    done[0] counts its steps.
    """
    import torch

    images, labels = train
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    per_epoch = -(-len(labels) // BATCH)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{name:7}", total=EPOCHS[name] * per_epoch, loss=float("nan"))
        for _ in range(EPOCHS[name]):
            for batch in torch.split(torch.randperm(len(labels)), BATCH):
                optimizer.zero_grad()
                loss = criterion(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()
                done[0] += 1
                progress.update(task, advance=1, loss=loss.item())
            model.eval()
            with torch.no_grad():
                accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
            model.train()
            yield accuracy


@contextmanager
def _watcher(path: str) -> Iterator[subprocess.Popen[str]]:
    """Run rules on `path` in another process, as a user starts them in another terminal."""
    command = [
        sys.executable,
        "-m",
        "tdcore.cli",
        "rules",
        "run",
        path,
        "--live",
        "--until-end",
        "--json",
    ]
    command += ["--on-fire", "stop"]
    for rule in RULES:
        command += ["--rule", rule]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def _verdicts(watcher: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for the rules to end, and return their report, one entry per rule."""
    printed, complaint = watcher.communicate(timeout=120)
    try:
        report = json.loads(printed)
    except ValueError as error:
        raise TdcoreError(
            f"the process that judges the rules ended with code {watcher.returncode}: {complaint.strip()}"
        ) from error
    verdicts: list[dict[str, Any]] = report["verdicts"]
    return verdicts


def _outcome(
    name: str,
    path: str,
    hook: Hook,
    verdicts: list[dict[str, Any]],
    *,
    stopped: str | None,
    accuracy: float | None,
    seconds: float,
    steps: int,
) -> Outcome:
    import tdcore as td

    run = td.create_trial(path)
    counters = hook.counters()
    return Outcome(
        name=name,
        path=path,
        steps=steps,
        seconds=seconds,
        test_accuracy=accuracy,
        stopped=stopped,
        captured_tensors=len(run.tensor_names()),
        captured_steps=len(run.steps()),
        captured_bytes=counters.payload_bytes,
        capture_seconds=hook.time_spent().total_seconds(),
        drops=sum(drop.tensors for drop in counters.drops.values()),
        verdicts=verdicts,
        causes=td.diagnose(path).causes,
    )


def _as_it_should_be(faulty: Outcome, mended: Outcome) -> bool:
    fired = {finding["rule"] for finding in faulty.findings}
    return (
        faulty.stopped is not None
        and "VanishingGradient" in fired
        and (mended.test_accuracy or 0.0) >= 0.95
        and [cause.cause for cause in faulty.causes] == ["vanishing gradients"]
        and not mended.findings
        and not mended.causes
        and faulty.drops == mended.drops == 0
    )
