"""`tdcore run`: unmodified training scripts of several styles, in separate processes."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import tdcore as td

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).resolve().parent / "scripts"


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def python(*arguments: object, cwd: Path) -> Ended:
    """Run the interpreter with these arguments, in a separate folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        input="hello",
        capture_output=True,
        text=True,
        timeout=240,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def ranks(script: Path, cwd: Path) -> str:
    """Start two ranks and return their output."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(script)],
            cwd=cwd,
            env={**os.environ, **places, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [each.communicate(timeout=240)[0] for each in started]
    assert [each.returncode for each in started] == [0, 0]
    return "".join(printed)


def exact(text: str) -> list[str]:
    """Return the lines with losses, which the scripts print bit by bit."""
    return [line for line in text.splitlines() if "0x" in line]


def losses(text: str, word: str) -> list[float]:
    return [float.fromhex(found) for found in re.findall(rf"{word} (\S+)$", text, re.MULTILINE)]


@pytest.mark.supports("tdcore run, plain loop", "values")
@pytest.mark.supports("tdcore run, plain loop", "losses")
@pytest.mark.supports("tdcore run, plain loop", "breaks")
def test_a_plain_loop_is_recorded_and_prints_the_same(tmp_path: Path) -> None:
    script = SCRIPTS / "plain.py"
    plain = python(script, "--steps", 11, cwd=tmp_path)
    ran = python("-m", "tdcore.run", "--save-interval", 5, script, "--steps", 11, cwd=tmp_path)
    assert (plain.code, ran.code, plain.err) == (0, 0, "")
    assert ran.out == plain.out
    assert ran.err.startswith(f"tdcore run: recording Net to {tmp_path / 'runs' / 'plain'}\n")
    assert all(line.startswith("tdcore run: ") for line in ran.err.splitlines())
    trial = td.create_trial(str(tmp_path / "runs" / "plain"))
    assert trial.steps() == [0, 5, 10]
    loss = trial.tensor("loss_output_0")
    printed = losses(plain.out, "loss")
    assert [float(loss.value(step)) for step in (0, 5, 10)] == [printed[step] for step in (0, 5, 10)]
    assert trial.tensor("gradient/Net_fc1.weight").steps() == [0, 5, 10]
    assert trial.stats("^Net_fc1.weight$").num_rows == 3
    assert "exception" not in trial.notes()


@pytest.mark.supports("tdcore run, timm-style loop", "values")
@pytest.mark.supports("tdcore run, timm-style loop", "losses")
def test_a_resumed_loop_with_scaler_averages_accumulation_and_workers_is_recorded(tmp_path: Path) -> None:
    script = SCRIPTS / "image_classifier.py"
    assert python(script, "--epochs", 1, "--output", ".", cwd=tmp_path).code == 0
    arguments = ["--resume", "last.pth.tar", "--epochs", 3, "--amp", "--model-ema", "--workers", 1]
    plain = python(script, *arguments, cwd=tmp_path)
    ran = python("-m", "tdcore.run", "--out", "run", "--save-interval", 3, script, *arguments, cwd=tmp_path)
    assert (plain.code, ran.code) == (0, 0), ran.err
    assert ran.out == plain.out
    trial = td.create_trial(str(tmp_path / "run"))
    assert trial.steps(mode=td.modes.TRAIN) == [0, 3, 6]
    loss = trial.tensor("loss_output_0")
    printed = losses(plain.out, "Loss:")  # before the scaler multiplied them by 1024
    assert len(printed) == 8 * 2  # 8 updates, each with the gradients of 2 forwards
    assert loss.steps() == [0, 3, 6]
    for step in loss.steps():
        assert [float(loss.value(step, call=call)) for call in (0, 1)] == printed[2 * step : 2 * step + 2]
    assert "blocks.0.conv_output_0" in trial.tensor_names()


@pytest.mark.supports("tdcore run, Hugging Face", "values")
@pytest.mark.supports("tdcore run, Hugging Face", "losses")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_script_with_the_trainer_of_transformers_is_recorded(tmp_path: Path) -> None:
    script = SCRIPTS / "language_model.py"
    plain = python(script, "out", cwd=tmp_path)
    ran = python("-m", "tdcore.run", "--save-interval", 2, script, "out", cwd=tmp_path)
    assert (plain.code, ran.code) == (0, 0), ran.err
    assert exact(ran.out) == exact(plain.out)
    assert len(exact(plain.out)) == 6 + 4
    assert "recording GPT2LMHeadModel to" in ran.err
    trial = td.create_trial(str(tmp_path / "runs" / "language_model"))
    loss = trial.tensor("loss_output_0")
    assert loss.steps() == [0, 2, 8]  # 3 updates, 4 forwards of an evaluation, 3 updates
    assert loss.steps(td.modes.TRAIN) == trial.steps(mode=td.modes.TRAIN) == [0, 2, 4]
    for step in loss.steps():
        assert loss.value(step, call=0) != loss.value(step, call=1)  # 2 forwards for an update
    assert "gradient/GPT2LMHeadModel_transformer.h.0.attn.c_attn.weight" in trial.tensor_names()
    assert trial.tensor("GPT2LMHeadModel_output_loss").value(0).shape == ()


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_trainer_that_resumes_goes_on_with_the_numbers_of_its_steps(tmp_path: Path) -> None:
    script = SCRIPTS / "language_model.py"
    run = ["-m", "tdcore.run", "--out", "run", "--save-interval", 1, script, "out", "--save", 4]
    assert python(*run, cwd=tmp_path).code == 0
    first = td.create_trial(str(tmp_path / "run"))
    assert first.steps(mode=td.modes.TRAIN) == list(range(6))
    again = python(*run, "--resume", "out/checkpoint-4", cwd=tmp_path)
    assert again.code == 0, again.err
    second = td.create_trial(str(tmp_path / "run"), attempt=1)
    assert second.steps(mode=td.modes.TRAIN) == [4, 5]
    rows = {row["mode_step"]: row["step"] for row in first.rows("^loss_output_0$").to_pylist()}
    assert {row["step"] for row in second.rows("^loss_output_0$").to_pylist()} == {rows[4], rows[5]}
    assert td.create_trial(str(tmp_path / "run")).steps(mode=td.modes.TRAIN) == list(range(6))
    assert "not_resumed" not in second.notes()


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_trainer_that_resumes_from_a_checkpoint_without_numbers_has_a_note(tmp_path: Path) -> None:
    script = SCRIPTS / "language_model.py"
    assert python(script, "out", "--save", 4, cwd=tmp_path).code == 0
    arguments = [script, "out", "--save", 4, "--resume", "out/checkpoint-4"]
    ran = python("-m", "tdcore.run", "--out", "run", "--save-interval", 1, *arguments, cwd=tmp_path)
    assert ran.code == 0, ran.err
    trial = td.create_trial(str(tmp_path / "run"))
    assert trial.steps(mode=td.modes.TRAIN) == [0, 1]
    assert "after step 4" in trial.notes()["not_resumed"]
    assert "count from 0" in ran.err


@pytest.mark.supports("torchrun", "values")
@pytest.mark.supports("torchrun", "losses")
def test_ranks_of_torchrun_are_recorded_each_by_its_number(tmp_path: Path) -> None:
    script = SCRIPTS / "two_ranks.py"
    plain = ranks(script, cwd=tmp_path)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    options = ["--workers", "all", "--save-interval", 2]
    ran = python(*torchrun, "-m", "tdcore.run", *options, script, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert sorted(ran.out.splitlines()) == sorted(plain.splitlines())
    assert ran.err.count("tdcore run: recording Sequential to") == 2
    trial = td.create_trial(str(tmp_path / "runs" / "two_ranks"))
    assert trial.workers() == ["worker_0", "worker_1"]
    for rank in (0, 1):
        printed = losses(plain, f"rank {rank} step [0-9] loss")
        loss = trial.tensor("loss_output_0")
        assert [float(loss.value(step, worker=f"worker_{rank}")) for step in (0, 2)] == printed[::2]
    assert "Sequential_0.weight" in trial.tensor_names()


@pytest.mark.supports("tdcore run, plain loop", "breaks")
def test_a_place_that_cannot_be_written_does_not_stop_the_script(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    script = SCRIPTS / "plain.py"
    ran = python("-m", "tdcore.run", "-q", "--out", "file/run", script, "--steps", 2, cwd=tmp_path)
    assert ran.code == 0
    assert len(losses(ran.out, "loss")) == 2
    assert ran.err.startswith("tdcore run: nothing is recorded: cannot start a run in")
    assert ran.err.endswith("the script goes on\n")
    assert ran.err.count("tdcore run:") == 1


STOPPED = """
import pathlib, time, torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(1500):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step == 1:
            control = pathlib.Path("runs/stopped/control")
            control.mkdir(exist_ok=True)
            (control / "stop-0000.json").write_text('{"reason": "that is enough"}')
        time.sleep(0.01)  # a step takes its time
    print("went on to the end")
finally:
    print("the script cleans up")
"""


def test_a_training_that_is_asked_to_stop_ends_with_a_line_and_1(tmp_path: Path) -> None:
    (tmp_path / "stopped.py").write_text(STOPPED)
    ran = python("-m", "tdcore.run", "-q", "stopped.py", cwd=tmp_path)
    assert (ran.code, ran.out) == (1, "the script cleans up\n")
    assert re.fullmatch(r"tdcore run: the training was stopped: .*that is enough.*\n", ran.err)
    noted = td.create_trial(str(tmp_path / "runs" / "stopped")).notes()["exception"]
    assert noted.startswith("StopTraining: ")
    assert "that is enough" in noted


@pytest.mark.full
def test_an_exception_without_a_message_is_noted_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(2, 4)).sum().backward()\n"
        "optimizer.step()\n"
        "raise KeyboardInterrupt\n"
    )
    python("-m", "tdcore.run", "-q", "interrupted.py", cwd=tmp_path)
    assert td.create_trial(str(tmp_path / "runs" / "interrupted")).notes()["exception"] == "KeyboardInterrupt"


def test_a_script_that_asks_for_its_hook_gets_that_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from tdcore.smd import get_hook, modes\n\n"
        "hook = get_hook(create_if_not_exists=True)\n"
        "criterion = nn.MSELoss()\n"
        "hook.register_loss(criterion)\n"
        "model = nn.Sequential(nn.Linear(3, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "hook.set_mode(modes.TRAIN)\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    criterion(model(torch.ones(4, 3)), torch.ones(4, 2)).backward()\n"
        "    optimizer.step()\n"
    )
    ended = python("-m", "tdcore.run", "--out", "run", "--save-interval", "1", "train.py", cwd=tmp_path)
    assert ended.code == 0
    assert ended.err.startswith(f"tdcore run: recording Sequential to {tmp_path / 'run'}\n")
    run = td.create_trial(tmp_path / "run")
    assert run.attempts == [0]
    assert run.tensor("MSELoss_output_0").steps() == [0, 1, 2]
    assert run.tensor("gradient/Sequential_0.weight").steps() == [0, 1, 2]


def test_the_command_ends_with_what_was_recorded_its_cost_and_what_to_type_next(tmp_path: Path) -> None:
    script = SCRIPTS / "plain.py"
    command = ("-m", "tdcore.run", "--save-interval", 5)
    first = python(*command, script, "--steps", 11, cwd=tmp_path)
    rows = td.create_trial(str(tmp_path / "runs" / "plain")).rows().num_rows
    _, recorded, cost, following = first.err.splitlines()
    assert recorded.startswith(f"tdcore run: recorded 3 saved steps, {rows} rows, ")
    assert re.search(r", [0-9.]+ [KM]B in runs/plain$", recorded)
    assert re.fullmatch(
        r"tdcore run: capture took [0-9.,]+ ms of the training's time, [0-9.,]+ ms for the first saved step "
        r"and [0-9.,]+ ms for each further one; nothing was dropped",
        cost,
    )
    assert following == "tdcore run: next: tdcore rules run runs/plain, or tdcore show runs/plain"
    again = python(*command, script, "--steps", 11, cwd=tmp_path)
    assert "runs/plain (attempt 1; earlier attempts are kept)" in again.err
    assert "in runs/plain, attempt 1\n" in again.err
    assert (again.code, again.out) == (first.code, first.out)
    assert td.create_trial(str(tmp_path / "runs" / "plain")).attempts == [0, 1]


def test_the_summary_counts_all_rows_of_a_script_that_drops_its_model_before_the_end(tmp_path: Path) -> None:
    script = tmp_path / "drops.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(300)))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(3):\n"
        "    model(torch.ones(4, 2)).mean().backward()\n"
        "    optimizer.step()\n"
        "del model, optimizer\n"
    )
    ran = python("-m", "tdcore.run", "--save-interval", 1, script, cwd=tmp_path)
    trial = td.create_trial(str(tmp_path / "runs" / "drops"))
    assert trial.rows().num_rows > 0
    assert f" {trial.rows().num_rows:,} rows, " in ran.err


def test_a_quiet_command_says_nothing_of_a_training_that_went_well(tmp_path: Path) -> None:
    ran = python("-m", "tdcore.run", "--quiet", SCRIPTS / "plain.py", "--steps", 3, cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")


def test_a_script_that_fails_has_its_traceback_its_exit_code_and_the_summary(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(3):\n"
        "    model(torch.ones(4, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "raise SystemExit(7)\n"
    )
    ran = python("-m", "tdcore.run", "--save-interval", 1, script, cwd=tmp_path)
    assert ran.code == 7
    assert "tdcore run: recorded 3 saved steps, " in ran.err
