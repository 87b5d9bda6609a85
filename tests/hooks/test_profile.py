"""Profiles of a PyTorch training: the right steps, the right contents, and a training that is not changed."""

from __future__ import annotations

import cProfile
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tdcore as td
from tdcore.format.layout import capture_key
from tdcore.format.profile_request import ProfileRequest
from tdcore.hooks.pytorch import Hook
from tdcore.session import profile_writer
from tdcore.sinks import LocalSink
from tdcore.timeline import trace_events
from tdcore.trial.profiles import Profile
from tests.waiting import wait_until

from .conftest import MakeHook
from .models import Net, train

NEVER = td.SaveConfig(start_step=1 << 40)


@pytest.fixture
def trained(make_hook: MakeHook) -> Callable[..., tuple[Hook, Net, Callable[[int], Any]]]:
    """Make a hook, its model, and a function that trains for some steps."""

    def make(**options: Any) -> tuple[Hook, Net, Callable[[int], Any]]:
        options.setdefault("save_config", NEVER)
        hook, model = make_hook(**options), Net()
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return hook, model, lambda count: train(model, optimizer, steps=count)

    return make


Trained = Callable[..., tuple[Hook, Net, Callable[[int], Any]]]


def profiles(hook: Hook) -> list[Profile]:
    hook.close()
    return td.create_trial(hook.out_dir).profiles()


def only(hook: Hook) -> Profile:
    (profile,) = profiles(hook)
    return profile


def calls(profile: Profile, name: str) -> int:
    table = profile.operators().to_pylist()
    return sum(each["calls"] for each in table if each["name"] == name)


def ask(hook: Hook, number: int = 0, **settings: Any) -> None:
    """Request a profile as the command does, and wait until the flusher has passed the request on."""
    document = ProfileRequest(**{"steps": 3, **settings}).document(attempt=0)
    LocalSink(Path(hook.out_dir)).put_new(capture_key(0, number), [document])
    wait_until(hook._control_changed, "the request arrived")


def test_exactly_the_configured_steps_are_profiled(trained: Trained) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=3, num_steps=4))
    steps(10)
    profile = only(hook)
    assert (profile.state, profile.mode, profile.first_step, profile.last_step) == ("complete", "TRAIN", 3, 6)
    # Two linear layers, and one backward pass and one step of the optimizer, in each of the four steps.
    assert calls(profile, "aten::addmm") == 8
    assert calls(profile, "Optimizer.step#SGD.step") == 4
    assert sorted(profile.keys) == ["operators", "trace"]


def test_the_totals_are_those_of_pytorch(trained: Trained, tmp_path: Path) -> None:
    """The totals of the operators equal key_averages() of torch.profiler for the same trace."""
    from tdcore.session.operator_totals import operator_totals

    _, model, steps = trained()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        steps(3)
    assert isinstance(model, Net)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    from tdcore.format import kineto

    with (tmp_path / "trace.json").open("rb") as stream:
        ours = {each["name"]: each for each in operator_totals(kineto.trace_events(stream, "x")).to_pylist()}
    for theirs in profiler.key_averages():
        found = ours[theirs.key]
        assert found["calls"] == theirs.count
        assert found["cpu_self_ns"] == pytest.approx(theirs.self_cpu_time_total * 1000, abs=5 * theirs.count)
        assert found["cpu_total_ns"] == pytest.approx(theirs.cpu_time_total * 1000, abs=5 * theirs.count)


def test_python_functions_of_the_same_steps(trained: Trained) -> None:
    config = td.ProfilerConfig(start_step=2, num_steps=3, python=True)
    hook, _, steps = trained(profiler_config=config)
    steps(8)
    profile = only(hook)
    rows = {(row["function"], Path(row["file"]).name): row for row in profile.functions().to_pylist()}
    assert rows["forward", "models.py"]["calls"] == 3
    assert rows["forward", "models.py"]["total_ns"] > 0
    assert profile.pstats()
    assert sys.getprofile() is None


def test_older_configurations_are_windows_of_their_own(trained: Trained) -> None:
    parts = td.FrameworkProfile(
        detailed_profiling_config=td.DetailedProfilingConfig(start_step=1, num_steps=2),
        python_profiling_config=td.PythonProfilingConfig(
            start_step=4, num_steps=1, cprofile_timer="cpu_time"
        ),
    )
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(framework_profile_params=parts))
    steps(8)
    first, second = profiles(hook)
    assert (first.first_step, first.last_step, sorted(first.keys)) == (1, 2, ["operators", "trace"])
    assert (second.first_step, second.last_step, sorted(second.keys)) == (4, 4, ["functions", "pstats"])


class Clock:
    """A clock for profile_windows.py and profile_window.py that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.7e9
        for module in ("profile_windows", "profile_window"):
            monkeypatch.setattr(f"tdcore.hooks.{module}.time", self)

    def time(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def perf_counter_ns(self) -> int:
        return time.perf_counter_ns()


def test_the_steps_of_a_duration_are_profiled(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_time=clock.now + 60, duration=10))
    steps(2)
    clock.now += 61
    steps(3)
    clock.now += 11
    steps(2)
    profile = only(hook)
    assert (profile.state, profile.first_step, profile.last_step) == ("complete", 2, 4)


def test_a_window_that_stays_open_is_ended_after_an_hour(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=0, num_steps=10))
    steps(2)
    clock.now += 3601
    steps(2)
    profile = only(hook)
    assert (profile.state, profile.reason) == ("partial", "it was open for 3601 s")
    assert (profile.first_step, profile.last_step) == (0, 1)


def test_a_request_is_followed_once_and_other_requests_still_count(trained: Trained) -> None:
    hook, _, steps = trained()
    steps(2)
    ask(hook, 0, steps=2, by="me")
    steps(4)
    ask(hook, 1, steps=1, operators=False, python=True)
    steps(4)
    first, second = profiles(hook)
    assert (first.request, first.first_step, first.last_step) == (0, 2, 3)
    assert (second.request, second.first_step, sorted(second.keys)) == (1, 6, ["functions", "pstats"])
    assert first.document["by"] == "me"
    assert [note["kind"] for note in hook._notes["capture_requests"]] == ["profile", "profile"]


def test_a_request_for_other_workers_is_noted_and_not_followed(trained: Trained) -> None:
    hook, _, steps = trained()
    steps(1)
    ask(hook, workers=("worker_7",))
    steps(3)
    assert profiles(hook) == []
    assert hook._notes["capture_requests"] == [
        {"number": 0, "kind": "profile", "skipped": "it is for worker_7"}
    ]


def test_no_part_of_a_hook_is_replaced_outside_of_windows(trained: Trained) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=1, num_steps=2))
    steps(1)
    assert "_begin_step" not in vars(hook)
    steps(1)
    assert "_begin_step" in vars(hook)
    steps(3)
    assert "_begin_step" not in vars(hook)
    ask(hook)
    steps(1)
    assert "_begin_step" in vars(hook)
    steps(4)
    assert "_begin_step" not in vars(hook)


def test_a_training_with_profiles_is_bit_identical(trained: Trained, tmp_path: Path) -> None:
    def losses(name: str, **options: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        hook, _, steps = trained(out_dir=tmp_path / name, **options)
        found: list[torch.Tensor] = steps(12)
        hook.close()
        return found

    config = td.ProfilerConfig(start_step=2, num_steps=6, python=True)
    plain, profiled = losses("plain"), losses("profiled", profiler_config=config)
    assert len(td.create_trial(tmp_path / "profiled").profiles()) == 1
    assert all(torch.equal(one, other) for one, other in zip(plain, profiled, strict=True))


def test_a_saved_step_contains_the_sleep_of_its_forward(make_hook: MakeHook) -> None:
    """The clock of torch.profiler and that of the saved steps agree."""

    class Slow(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.relu(self.fc1(x))
            with torch.profiler.record_function("a known sleep"):
                time.sleep(0.03)
            found: torch.Tensor = self.fc2(hidden)
            return found

    hook = make_hook(
        include_collections=["outputs", "gradients"],
        profiler_config=td.ProfilerConfig(start_step=2, num_steps=2),
    )
    model = Slow()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=5)
    hook.close()
    found = list(trace_events(td.create_trial(hook.out_dir)))
    slices = {each["name"]: each for each in found if each.get("cat") == "saved"}
    sleeps = [each for each in found if each["name"] == "a known sleep"]
    assert len(sleeps) == 2
    for sleep, step in zip(sleeps, ("TRAIN 2", "TRAIN 3"), strict=True):
        saved = slices[step]
        assert sleep["dur"] >= 30_000
        assert saved["ts"] <= sleep["ts"]
        assert sleep["ts"] + sleep["dur"] <= saved["ts"] + saved["dur"]
        assert sleep["pid"] == saved["pid"]


# The end of a window --------------------------------------------------------------------------------------


def test_close_in_the_middle_of_a_window_keeps_the_records(trained: Trained) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=1, num_steps=100, python=True))
    steps(4)
    profile = only(hook)
    assert (profile.state, profile.reason) == ("partial", "the capture ended")
    assert (profile.first_step, profile.last_step) == (1, 3)
    assert calls(profile, "Optimizer.step#SGD.step") == 3
    assert not torch._C._autograd._profiler_enabled()
    assert sys.getprofile() is None


def test_a_window_that_never_begins_is_reported(trained: Trained) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=50, num_steps=1))
    steps(3)
    profile = only(hook)
    assert profile.state == "failed"
    assert profile.reason == "the window did not begin: the capture ended"
    with pytest.raises(td.TdcoreError, match="has no trace: the window did not begin"):
        profile.trace()


PROGRAM = """
import sys, torch, tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.hooks.models import Net, train
hook = Hook(sys.argv[1], profiler_config=td.ProfilerConfig(start_step=1, num_steps=100, python=True))
model = Net()
hook.register_module(model)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=4)
if len(sys.argv) > 2:
    raise RuntimeError("the end")
"""


@pytest.mark.full
@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_program_in_the_middle_of_a_window_keeps_the_records(
    tmp_path: Path, fails: bool
) -> None:
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(out), *["fail"] * fails],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == int(fails), done.stderr
    (profile,) = td.create_trial(out).profiles()
    assert (profile.state, profile.first_step, profile.last_step) == ("partial", 1, 3)
    assert sorted(profile.keys) == ["functions", "operators", "pstats", "trace"]
    assert "the window ended early, after 3 steps" in done.stderr


@pytest.mark.full
def test_workers_of_a_data_loader_that_start_in_a_window_do_not_matter(make_hook: MakeHook) -> None:
    config = td.ProfilerConfig(start_step=1, num_steps=6, python=True)
    hook, model = make_hook(save_config=NEVER, profiler_config=config), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(12, 4))
    for _ in range(3):  # each epoch forks workers
        for (x,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    profile = only(hook)
    assert (profile.state, profile.first_step, profile.last_step) == ("complete", 1, 6)
    assert calls(profile, "Optimizer.step#SGD.step") == 6


def test_a_trace_that_is_too_large_is_dropped_and_the_totals_are_kept(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_writer, "MAX_TRACE_BYTES", 1000)  # the writer is a thread of this process
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=1, num_steps=2))
    steps(5)
    profile = only(hook)
    assert (profile.state, sorted(profile.keys)) == ("complete", ["operators"])
    assert calls(profile, "Optimizer.step#SGD.step") == 2
    (message,) = profile.messages
    assert re.fullmatch(
        r"the trace is not stored: it has [\d,]+ bytes, and readers accept 1,073,741,824, "
        "or 1,000 compressed; profile fewer steps",
        message,
    )
    with pytest.raises(td.TdcoreError, match="has no trace: the trace is not stored"):
        profile.trace()


def test_a_profile_that_cannot_be_stored_is_reported_and_its_files_stay(
    trained: Trained, capfd: pytest.CaptureFixture[str]
) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=1, num_steps=2))
    (Path(hook.out_dir) / "profiles").write_text("in the way")
    assert len(steps(5)) == 5
    hook.close()
    printed = re.search(r"a profile could not be stored: .*; its files are in (\S+)", capfd.readouterr().err)
    assert printed is not None
    folder = Path(printed[1])
    assert sorted(each.name for each in folder.iterdir()) == ["job.json", "trace.json"]
    assert folder.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(folder)


# Other profilers ------------------------------------------------------------------------------------------


def test_a_torch_profiler_of_the_script_has_priority(
    trained: Trained, caplog: pytest.LogCaptureFixture
) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=2, num_steps=2))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        steps(6)
    assert any(each.key == "Optimizer.step#SGD.step" and each.count == 6 for each in profiler.key_averages())
    profile = only(hook)
    assert profile.state == "failed"
    assert "another torch.profiler is active" in profile.reason
    assert caplog.text.count("another torch.profiler is active") == 1


def test_a_torch_profiler_that_starts_in_a_window_ends_the_window(trained: Trained) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=1, num_steps=50))
    steps(3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        steps(4)
    assert any(each.key == "Optimizer.step#SGD.step" and each.count == 4 for each in profiler.key_averages())
    profile = only(hook)
    assert (profile.state, profile.reason) == ("partial", "the script started torch.profiler")
    assert calls(profile, "Optimizer.step#SGD.step") == 2


def test_a_scheduled_torch_profiler_has_priority_from_its_warm_up_on(trained: Trained) -> None:
    hook, _, steps = trained()
    schedule = torch.profiler.schedule(wait=1, warmup=3, active=2, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for step in range(8):
            if step == 2:
                ask(hook, steps=1)
            steps(1)
            profiler.step()
    assert any(each.key == "Optimizer.step#SGD.step" and each.count == 2 for each in profiler.key_averages())
    assert only(hook).reason.endswith("another torch.profiler is active")


def test_a_profiler_of_python_functions_of_the_script_has_priority(trained: Trained) -> None:
    config = td.ProfilerConfig(start_step=1, num_steps=2, python=True)
    hook, _, steps = trained(profiler_config=config)
    own = cProfile.Profile()
    own.enable()
    steps(5)
    own.disable()
    assert any("models.py" in str(key[0]) for key in _functions(own))
    profile = only(hook)
    assert profile.state == "complete"
    assert sorted(profile.keys) == ["operators", "trace"]
    assert "another profiler of Python functions is active" in profile.messages[0]


def test_a_profiler_of_python_functions_that_starts_in_a_window_ends_the_window(trained: Trained) -> None:
    config = td.ProfilerConfig(start_step=1, num_steps=50, python=True)
    hook, _, steps = trained(profiler_config=config)
    steps(3)
    own = cProfile.Profile()
    own.enable()
    steps(2)
    own.disable()
    assert any("models.py" in str(key[0]) for key in _functions(own))
    assert "enable" not in vars(cProfile.Profile)
    profile = only(hook)
    assert (profile.state, profile.reason) == ("partial", "the script started a profiler of Python functions")
    assert profile.functions().num_rows > 0


def _functions(profile: cProfile.Profile) -> list[Any]:
    profile.create_stats()
    found: dict[Any, Any] = profile.stats
    return list(found)


def test_an_error_of_the_profiler_never_reaches_the_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=1, num_steps=1))

    def fail(profiler: Any) -> None:
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(torch.profiler.profile, "start", fail)
    steps(4)
    profile = only(hook)
    assert profile.state == "failed"
    assert profile.reason == "operators were not recorded: RuntimeError: no profiler here"


def test_a_folder_for_temporary_files_that_is_missing_never_reaches_the_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook, _, steps = trained(profiler_config=td.ProfilerConfig(start_step=1, num_steps=1))
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    steps(4)
    assert len(steps(2)) == 2
    assert profiles(hook) == []
    assert "the part 'profile' of the hook failed" in caplog.text


@pytest.mark.full
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_is_profiled(make_hook: MakeHook) -> None:
    config = td.ProfilerConfig(start_step=3, num_steps=2, python=True)
    hook, model = make_hook(save_config=NEVER, profiler_config=config), Net()
    hook.register_module(model)
    compiled: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]
    losses = train(compiled, torch.optim.SGD(model.parameters(), lr=0.1), steps=8)
    assert len(losses) == 8
    profile = only(hook)
    assert (profile.state, profile.first_step, profile.last_step) == ("complete", 3, 4)
    assert calls(profile, "Optimizer.step#SGD.step") == 2
