"""Fixtures for the tests on a GPU: sessions that capture from a device, and the contents of their runs.

All tests here have the mark `gpu` and are skipped without a CUDA device. With TDCORE_TEST_GPU=simulated,
tests that use the fixture `device` and no other feature of CUDA run on the simulated device instead, with
tensors in host memory, so that they can be run on machines without a GPU (`scripts/gpu_check.sh --dry-run`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.session import Session
from tests import _sim

Array = npt.NDArray[Any]
VALUES, STATISTICS, BOTH = 1, 2, 3
SIMULATED = os.environ.get("TDCORE_TEST_GPU") == "simulated"
HERE = Path(__file__).resolve().parent

# Two runs of cuBLAS give the same bits only with this setting, which cuBLAS reads at its start.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, and skip tests whose requirements are missing on this machine."""
    cuda = torch.cuda.is_available()
    for item in items:
        if HERE not in Path(item.path).parents:
            continue
        item.add_marker(pytest.mark.gpu)
        simulates = SIMULATED and "device" in getattr(item, "fixturenames", ())
        if not cuda and not simulates:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def device() -> torch.device:
    """The device of a test's tensors; a test that uses it needs no other feature of CUDA."""
    return torch.device("cpu" if SIMULATED else "cuda")


def use_devices(ring: Any) -> None:
    """Make the ring capture tensors in host memory through the simulated device, if it is in use."""
    if SIMULATED:
        _sim.simulate_device(ring, id=0, seed=1, host_tensors=True)


def ring_config(**options: Any) -> td.RingConfig:
    """Small rings; the device's lane has the size of the main lane."""
    options = {
        "ring_bytes": 1 << 24,
        "slots": 1024,
        "names_bytes": 1 << 20,
        "device_ring_bytes": 1 << 26,
        "device_arena_bytes": 1 << 24,
        **options,
    }
    if SIMULATED:
        options.setdefault("device_lanes", 1)
    return td.RingConfig(**options)


class Tap:
    """A session for captures by hand, and its run."""

    def __init__(self, folder: Path, **ring: Any) -> None:
        self.folder = folder
        self.session = Session(
            folder,
            configuration={},
            framework="pytorch",
            framework_version=torch.__version__,
            ring=ring_config(**ring),
            flusher="thread",
            close_timeout=timedelta(seconds=60),
        )
        use_devices(self.session.ring)
        self._trial: td.Trial | None = None

    def capture(
        self, tensors: Sequence[object], flags: int = BOTH, *, step: int = 0, prefix: str = "t"
    ) -> int:
        """Capture tensors named t0, t1, ...; return the number of tensors not kept as requested."""
        ids = [self.session.ring.intern(f"{prefix}{i}", 1) for i in range(len(tensors))]
        marks = bytes([flags]) * len(tensors)
        return int(self.session.ring.capture(tensors, np.array(ids, np.uint32), marks, step, 1, step))

    @property
    def trial(self) -> td.Trial:
        """Close the session and return its run."""
        if self._trial is None:
            assert self.session.close().drained
            self._trial = td.create_trial(str(self.folder))
        return self._trial

    def value(self, name: str, step: int = 0) -> Array:
        """Return the values of a tensor."""
        value: Array = self.trial.tensor(name).value(step)
        return value

    def statistics(self, name: str, step: int = 0) -> dict[str, Any]:
        """Return the statistics of a tensor, by column."""
        (row,) = self.trial.tensor(name).stats(steps=[step]).to_pylist()
        return dict(row)

    def drops(self) -> dict[str, int]:
        """Return the number of dropped tensors by reason."""
        return {reason: drop.tensors for reason, drop in self.session.counters().drops.items()}

    def report(self, device: int = 0) -> dict[str, Any]:
        """Return the ring's report of a device."""
        return report_of(self.session.ring, device)


def report_of(ring: Any, device: int = 0) -> dict[str, Any]:
    """Return the ring's report of a device that it has captured from."""
    (found,) = [each for each in ring.device_reports() if each["device"] == device]
    return dict(found)


MakeTap = Callable[..., Tap]
MakeHook = Callable[..., Hook]


@pytest.fixture
def make_tap(tmp_path: Path) -> Iterator[MakeTap]:
    """Create sessions with a flusher thread; sessions that a test leaves open are closed."""
    made: list[Tap] = []

    def make(**ring: Any) -> Tap:
        made.append(Tap(tmp_path / f"run{len(made)}", **ring))
        return made[-1]

    yield make
    for tap in made:
        tap.session.close()


@pytest.fixture
def tap(make_tap: MakeTap) -> Tap:
    """A session with default sizes."""
    return make_tap()


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[MakeHook]:
    """Create hooks that save every step, unless save_config differs."""
    made: list[Hook] = []

    def make(**options: Any) -> Hook:
        options.setdefault("flusher", "thread")
        options.setdefault("save_config", td.SaveConfig(save_interval=1))
        options.setdefault("ring", ring_config())
        options.setdefault("close_timeout", timedelta(seconds=60))
        hook = Hook(options.pop("out_dir", tmp_path / f"hooked{len(made)}"), **options)
        use_devices(hook._ring)
        made.append(hook)
        return hook

    yield make
    for hook in made:
        hook.close()


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


def set_sync_debug_mode(mode: str) -> None:
    """Set the reaction of PyTorch when the host waits for the device: "default" (none) or "error".

    PyTorch warns once that the mode is a prototype. Warnings are errors in tests, and this warning is raised
    after the mode was changed.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*synchronization debug mode.*", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Make PyTorch raise an exception wherever the host would wait for the device."""
    try:
        set_sync_debug_mode("error")
        yield
    finally:
        set_sync_debug_mode("default")


def same_bits(tensor: torch.Tensor, value: Array) -> bool:
    """Return whether a tensor has the same shape and bytes as a value that was read."""
    host = tensor.detach().cpu().contiguous()
    return tuple(host.shape) == value.shape and host.view(-1).view(torch.uint8).numpy().tobytes() == (
        value.tobytes()
    )
