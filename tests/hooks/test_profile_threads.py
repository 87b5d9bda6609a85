"""Profiles whose window another thread ends, forked processes, and parts of a profile that are damaged."""

from __future__ import annotations

import cProfile
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

import tdcore as td
from tdcore.hooks import current, live_hooks
from tdcore.hooks.profile_windows import ending_profiles
from tdcore.hooks.pytorch import Hook
from tdcore.trial.profiles import Profile
from tests.waiting import wait_until

from .conftest import MakeHook
from .models import Net, train

NEVER = td.SaveConfig(start_step=1 << 40)


def start(make_hook: MakeHook, **settings: Any) -> tuple[Hook, Callable[[int], Any]]:
    """Train three steps with a window that is open from step 1 on. Return a function for further steps."""
    config = td.ProfilerConfig(**{"start_step": 1, "num_steps": 90, **settings})
    hook, model = make_hook(save_config=NEVER, profiler_config=config), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps(count: int) -> Any:
        return train(model, optimizer, steps=count)

    steps(3)
    return hook, steps


def in_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def stored(path: str) -> Profile:
    """The only profile of the run, when it is stored."""
    wait_until(lambda: len(td.create_trial(path).profiles()) == 1, "the profile is stored")
    (profile,) = td.create_trial(path).profiles()
    return profile


def assert_nothing_is_on() -> None:
    assert not torch._C._autograd._profiler_enabled()
    assert sys.getprofile() is None
    assert "enable" not in vars(cProfile.Profile)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert_a_profiler_of_the_script_works()


def assert_a_profiler_of_the_script_works() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(2) + 1
    assert len(own.key_averages()) > 0


def test_a_forked_child_records_nothing(make_hook: MakeHook) -> None:
    hook, _steps = start(make_hook, python=True)
    assert torch._C._autograd._profiler_enabled()
    child = os.fork()
    if child == 0:
        on = torch._C._autograd._profiler_enabled() or sys.getprofile() is not None
        os._exit(7 if on else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch._C._autograd._profiler_enabled()
    hook.close()
    assert sorted(stored(hook.out_dir).keys) == ["functions", "operators", "pstats", "trace"]


def test_a_hook_that_another_thread_closes_is_profiled_until_the_next_step(make_hook: MakeHook) -> None:
    hook, steps = start(make_hook, python=True)
    in_thread(hook.close)
    steps(1)
    assert_nothing_is_on()
    profile = stored(hook.out_dir)
    assert (profile.state, profile.reason, profile.last_step) == ("partial", "the capture ended", 2)
    assert sorted(profile.keys) == ["functions", "operators", "pstats", "trace"]


def test_a_script_starts_torch_profiler_after_another_thread_closed_the_hook(make_hook: MakeHook) -> None:
    hook, _ = start(make_hook)
    in_thread(hook.close)
    assert_a_profiler_of_the_script_works()
    assert_nothing_is_on()
    assert stored(hook.out_dir).state == "partial"


def test_python_functions_end_in_the_main_thread_without_a_further_step(make_hook: MakeHook) -> None:
    hook, _ = start(make_hook, python=True, operators=False)
    in_thread(hook.close)
    wait_until(lambda: sys.getprofile() is None, "the profile ended")
    assert_nothing_is_on()
    profile = stored(hook.out_dir)
    assert (profile.state, sorted(profile.keys)) == ("partial", ["functions", "pstats"])


def hook_with_window(folder: Path) -> list[Any]:
    """A hook that only this list holds, its model and its optimizer, in a window."""
    config = td.ProfilerConfig(start_step=1, num_steps=90, python=True)
    hook, model = (
        Hook(folder / "run", flusher="thread", save_config=NEVER, profiler_config=config),
        Net(),
    )
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, steps=3)
    return [model, optimizer, hook]


def delete(made: list[Any]) -> None:
    hook = made.pop()
    hook._detach()
    current.forget(hook)
    del hook
    gc.collect()


def test_a_hook_that_another_thread_deletes_leaves_no_profiler_on(tmp_path: Path) -> None:
    made = hook_with_window(tmp_path)
    in_thread(lambda: delete(made))
    assert torch._C._autograd._profiler_enabled()
    train(made[0], made[1], steps=1)
    assert_nothing_is_on()
    assert stored(str(tmp_path / "run")).reason == "the hook was deleted"


def test_cprofile_of_another_thread_ends_the_window_at_the_next_step(make_hook: MakeHook) -> None:
    hook, steps = start(make_hook, python=True)

    def profile_here() -> None:
        own = cProfile.Profile()
        own.enable()
        own.disable()

    in_thread(profile_here)
    steps(1)
    assert_nothing_is_on()
    profile = stored(hook.out_dir)
    assert profile.reason == "the script started a profiler of Python functions"
    assert sorted(profile.keys) == ["functions", "operators", "pstats", "trace"]


def profile_operators() -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(2) + 1
    return len(own.key_averages())


def test_torch_profiler_of_another_thread_ends_the_window_at_the_next_step(make_hook: MakeHook) -> None:
    hook, steps = start(make_hook, python=True)
    found: list[int] = []
    in_thread(lambda: found.append(profile_operators()))
    steps(1)
    assert_nothing_is_on()
    assert found[0] > 0
    profile = stored(hook.out_dir)
    assert sorted(profile.keys) == ["functions", "pstats"]
    assert "the script started torch.profiler in another thread" in profile.messages[0]


def test_torch_profiler_of_another_thread_is_not_disturbed_while_it_runs(make_hook: MakeHook) -> None:
    hook, steps = start(make_hook)
    running, end, found = threading.Event(), threading.Event(), list[int]()

    def long() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            running.set()
            end.wait(30)
            torch.ones(2) + 1
        found.append(len(own.key_averages()))

    thread = threading.Thread(target=long)
    thread.start()
    running.wait(30)
    steps(2)
    child = os.fork()
    if child == 0:
        os._exit(7 if torch._C._autograd._profiler_enabled() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    end.set()
    thread.join()
    steps(1)
    assert_nothing_is_on()
    assert found[0] > 0
    assert stored(hook.out_dir).state == "failed"


def test_a_window_does_not_begin_while_another_thread_uses_torch_profiler(make_hook: MakeHook) -> None:
    hook, steps = start(make_hook, start_step=4, num_steps=1)
    running, end, found = threading.Event(), threading.Event(), list[int]()

    def long() -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            torch.ones(2) + 1
            running.set()
            end.wait(30)
        found.append(len(own.key_averages()))

    thread = threading.Thread(target=long)
    thread.start()
    running.wait(30)
    steps(4)
    end.set()
    thread.join()
    assert_nothing_is_on()
    assert found[0] > 0
    assert "another torch.profiler is active" in stored(hook.out_dir).reason


def test_a_window_whose_training_moves_to_another_thread_ends(make_hook: MakeHook) -> None:
    hook, steps = start(make_hook, num_steps=4)
    in_thread(lambda: steps(6))
    steps(1)
    assert_nothing_is_on()
    profile = stored(hook.out_dir)
    assert (profile.first_step, profile.last_step) == (1, 4)


def test_the_program_ends_while_the_training_thread_runs(make_hook: MakeHook) -> None:
    made, ended, end = list[Hook](), threading.Event(), threading.Event()

    def training() -> None:
        made.append(start(make_hook, python=True)[0])
        ended.set()
        end.wait(30)

    thread = threading.Thread(target=training)
    thread.start()
    ended.wait(30)
    made[0].close()
    (windows,) = ending_profiles()
    windows.end_at_exit()
    assert ending_profiles() == []
    profile = stored(made[0].out_dir)
    end.set()
    thread.join()
    torch.autograd.profiler._run_on_profiler_stop()  # the thread has ended with its profiler
    assert_nothing_is_on()
    assert (profile.state, sorted(profile.keys)) == ("partial", ["functions", "pstats"])
    assert "torch.profiler was not stopped by the thread" in profile.messages[0]


def test_a_script_starts_torch_profiler_after_another_thread_deleted_the_hook(tmp_path: Path) -> None:
    made = hook_with_window(tmp_path)
    in_thread(lambda: delete(made))
    assert_a_profiler_of_the_script_works()
    assert_nothing_is_on()
    assert stored(str(tmp_path / "run")).reason == "the hook was deleted"


def test_a_trace_that_is_damaged_does_not_lose_the_python_functions(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(profiler: Any, path: str) -> None:
        Path(path).write_bytes(b"")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", empty)
    hook, _ = start(make_hook, python=True)
    hook.close()
    profile = stored(hook.out_dir)
    assert sorted(profile.keys) == ["functions", "pstats"]
    assert [each.split(":")[0] for each in profile.messages] == [
        "the totals of the operators are missing", "the trace is not stored"
    ]  # fmt: skip


def test_an_export_that_fails_leaves_no_file(make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(profiler: Any, path: str) -> None:
        Path(path).write_bytes(b"{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", full)
    hook, _ = start(make_hook, python=True)
    hook.close()
    profile = stored(hook.out_dir)
    assert sorted(profile.keys) == ["functions", "pstats"]
    assert len(profile.messages) == 1
    assert "No space left on device" in profile.messages[0]


def test_a_file_name_that_is_not_utf8_does_not_lose_the_profile(make_hook: MakeHook) -> None:
    name, found = os.fsdecode(b"/data/k\xf6ln/train.py"), {}  # type: ignore[var-annotated]
    exec(compile("def helper(): return 1", name, "exec"), found)
    hook, _ = start(make_hook, python=True)
    found["helper"]()
    hook.close()
    profile = stored(hook.out_dir)
    assert sorted(profile.keys) == ["functions", "operators", "pstats", "trace"]
    assert "/data/k?ln/train.py" in profile.functions()["file"].to_pylist()


def test_the_wait_at_exit_is_that_of_one_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def wait(self, seconds: float) -> None:
            time.sleep(seconds)

    class Closing:
        def __init__(self) -> None:
            self._profiles, self._close_timeout = Slow(), timedelta(seconds=0.3)

        def _end_capture(self) -> None:
            pass

    hooks = [Closing() for _ in range(5)]
    monkeypatch.setattr(live_hooks, "LIVE_HOOKS", hooks)
    begin = time.monotonic()
    live_hooks.close_hooks_at_exit()
    assert time.monotonic() - begin < 1.2
