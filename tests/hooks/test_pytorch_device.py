"""The hook with tensors on devices: a simulated device captures tensors in host memory."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.devices import prepare_devices
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.model.model_view import cuda_devices
from tests import _sim
from tests.simulating import RING, InterfaceArray, numbers

from .conftest import Captured, MakeHook, ReadRun
from .models import Net, train

STATISTICS = td.ReductionConfig()


def on_device(make_hook: MakeHook, tmp_path: Any, **options: Any) -> Hook:
    """A hook that captures all its tensors through a simulated device."""
    simulation = options.pop("simulation", {})
    hook = make_hook(ring=RING, out_dir=tmp_path / "device", save_all=True, **options)
    _sim.simulate_device(hook._ring, 0, host_tensors=True, **simulation)
    return hook


def trained(hook: Hook | None, steps: int = 6) -> list[torch.Tensor]:
    """Return the losses of a small training, with a hook or without one."""
    torch.manual_seed(1)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    losses = []
    for _ in range(steps):
        losses += train(model, optimizer, criterion=criterion)
        if hook is not None:
            hook.save_scalar("loss_now", losses[-1])
            hook.save_tensor("picked", losses[-1] * 2, "losses")
    return losses


def same(one: Any, other: Any) -> bool:
    """Compare two values; sums may differ by rounding, because device and CPU add in different orders."""
    return one == other or (
        one is not None and other is not None and np.allclose(one, other, rtol=1e-6, equal_nan=True)
    )


# Columns for the time, order and place of a row, which may differ.
PLACE = {"ticket", "segment", "time_ns", "seq", "offset", "shard"}


def check_same_run(one: Captured, other: Captured) -> None:
    """Check that two runs have the same rows with the same values and statistics."""
    assert len(one.rows) == len(other.rows) > 0
    left, right = (
        sorted(run.rows, key=lambda row: (row["step"], row["name"], row["call"])) for run in (one, other)
    )
    for mine, theirs in zip(left, right, strict=True):
        for key in mine.keys() - PLACE:
            assert same(mine[key], theirs[key]), (mine["name"], mine["step"], key)
        if mine["segment"] is not None:
            place = mine["name"], mine["step"], mine["call"]
            assert np.array_equal(one.value(*place), other.value(*place), equal_nan=True)


@pytest.mark.parametrize("reduction", [None, STATISTICS])
@pytest.mark.parametrize("rung", ["stream_write", "commit_kernel", "poll"])
def test_a_run_is_the_same_whether_a_device_wrote_it_or_the_cpu(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any, reduction: Any, rung: str
) -> None:
    device = on_device(make_hook, tmp_path, reduction_config=reduction, simulation={"rung": rung})
    host = make_hook(out_dir=tmp_path / "host", save_all=True, reduction_config=reduction)
    assert all(map(torch.equal, trained(device), trained(host)))
    runs = read_run(device), read_run(host)
    check_same_run(*runs)
    assert device.counters().dropped_tensors == 0
    assert device.counters().tensors == host.counters().tensors


def test_losses_are_the_same_with_capture_and_without(make_hook: MakeHook, tmp_path: Any) -> None:
    assert all(map(torch.equal, trained(on_device(make_hook, tmp_path)), trained(None)))


def test_the_end_of_every_step_is_marked(make_hook: MakeHook, read_run: ReadRun, tmp_path: Any) -> None:
    hook = on_device(make_hook, tmp_path, simulation={"delay_us": 300})
    trained(hook)
    report = hook.close()
    tickets = {row["ticket"] for row in read_run(hook).rows}
    assert report is not None
    assert report.progress.records >= len(tickets) + 5  # one step end is marked between two steps


def test_close_waits_for_a_slow_device(make_hook: MakeHook, tmp_path: Any) -> None:
    hook = on_device(make_hook, tmp_path, simulation={"delay_us": 5000})
    trained(hook, steps=3)
    report = hook.close()
    assert report is not None
    assert report.drained
    assert [device.in_flight for device in report.devices] == [0]
    assert report.counters.dropped_tensors == 0


def test_the_run_and_the_hook_tell_of_the_device(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    hook = on_device(make_hook, tmp_path)
    trained(hook, steps=1)
    (report,) = hook.device_reports()
    assert (report.device, report.kernels, report.error) == (0, "host", "")
    read_run(hook)
    text = (tmp_path / "device" / "collections.json").read_text()
    assert '"devices": [{' in text
    assert '"rung": "stream_write"' in text


def test_commits_that_overtake_their_values_are_found_and_nothing_is_lost(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    device = on_device(make_hook, tmp_path, simulation={"early_words": True, "delay_us": 300})
    host = make_hook(out_dir=tmp_path / "host", save_all=True)
    trained(device, steps=12)
    trained(host, steps=12)
    check_same_run(read_run(device), read_run(host))
    (report,) = device.device_reports()
    assert device.counters().dropped_tensors == 0
    assert report.rung == "stream_write" or report.early_commits > 0


def test_threads_forward_their_own_models_on_one_device(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    hook = on_device(make_hook, tmp_path)
    tensors = [torch.full((100,), float(number)) for number in range(4)]

    def work(number: int) -> None:
        for _ in range(10):
            hook.save_tensor(f"thread_{number}", tensors[number])

    hook.step()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = read_run(hook)
    for number in range(4):
        rows = run.of(f"thread_{number}")
        assert sorted(row["call"] for row in rows) == list(range(10))
        assert np.array_equal(run.value(f"thread_{number}", 0, call=9), tensors[number].numpy())


def test_a_device_that_breaks_stops_nothing_and_is_said_once(
    make_hook: MakeHook, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = on_device(make_hook, tmp_path, simulation={"fails_after": 40})
    assert all(map(torch.equal, trained(hook), trained(None)))
    report = hook.close()
    assert report is not None
    assert report.counters.drops["device_error"].tensors > 0
    assert report.devices[0].error != ""
    said = [record.message for record in caplog.records if "cuda:0" in record.message]
    assert len(said) == 1


def test_a_device_that_cannot_be_used_is_said_once_and_host_tensors_are_kept(
    make_hook: MakeHook, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook = make_hook(ring=RING, out_dir=tmp_path / "run", save_all=True)
    _sim.simulate_device(hook._ring, 0, fails_after=0)
    trained(hook, steps=1)
    for _ in range(3):
        hook.save_tensor("away", InterfaceArray(numbers()))
        hook.step()
    report = hook.close()
    assert report is not None
    assert {reason: drop.tensors for reason, drop in report.counters.drops.items()} == {"device_error": 3}
    assert report.counters.tensors > 0
    said = [record.message for record in caplog.records if "cuda:0" in record.message]
    assert len(said) == 1


def test_a_ring_without_lanes_says_that_devices_are_left_out(make_hook: MakeHook) -> None:
    said: list[str] = []
    ring = td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20, device_lanes=0)
    prepare_devices(make_hook(ring=ring)._ring, {3, 1}, said.append)
    prepare_devices(make_hook(ring=ring, dry_run=True)._ring, {3, 1}, said.append)
    (message,) = said
    assert message.startswith("tensors on cuda:1 are not captured")


class OnDevice:
    """A stand-in for a module with parameters on two devices, for the set-up of devices."""

    def parameters(self) -> list[Any]:
        """Return parameters on devices 0 and 1."""
        return [SimpleNamespace(device=SimpleNamespace(type="cuda", index=index)) for index in (1, 0, 1)]


@pytest.mark.parametrize("capturing", [False, True])
def test_the_models_devices_are_set_up_unless_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch, capturing: bool
) -> None:
    asked: list[int] = []
    ring = SimpleNamespace(prepare_device=asked.append, device_refusals=lambda: "", usable=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    model: Any = OnDevice()
    prepare_devices(ring, cuda_devices(model.parameters()), print)
    assert asked == ([] if capturing else [0, 1])


def test_a_forked_child_leaves_the_device_to_its_parent(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    hook = on_device(make_hook, tmp_path)
    trained(hook, steps=2)
    rows = hook.counters().tensors
    child = os.fork()
    if child == 0:
        trained(hook, steps=1)
        hook.close()
        os._exit(0 if hook.device_reports() == () else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert hook.counters().tensors == rows
    assert {row["step"] for row in read_run(hook).rows} == {0, 1}
