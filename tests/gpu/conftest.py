"""Fixtures for the tests on a GPU: sessions that capture from a device, and what their runs hold.

All tests here are marked gpu and are skipped without a CUDA device. With TDCORE_TEST_GPU=simulated those that
take `device` and ask nothing of CUDA run on the simulated device instead, with tensors in host memory: that
is how they are kept working on machines without a GPU (`scripts/gpu_check.sh --dry-run`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
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

# Two runs of cuBLAS give the same bits only with this, which it reads when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests of this folder, and skips those that need what is not here."""
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
    """Where the tensors of a test are: a test that takes this asks nothing of CUDA but tensors."""
    return torch.device("cpu" if SIMULATED else "cuda")


def use_devices(ring: Any) -> None:
    """On a simulated device the ring takes tensors of host memory as the device's."""
    if SIMULATED:
        _sim.simulate_device(ring, id=0, seed=1, host_tensors=True)


def ring_config(**options: Any) -> td.RingConfig:
    """Small rings; the device's lane is the size of the main one."""
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
        """Tensors not kept as asked. They are called t0, t1, ..."""
        ids = [self.session.ring.intern(f"{prefix}{i}", 1) for i in range(len(tensors))]
        marks = bytes([flags]) * len(tensors)
        return int(self.session.ring.capture(tensors, np.array(ids, np.uint32), marks, step, 1, step))

    @property
    def trial(self) -> td.Trial:
        """The run, once capturing is over."""
        if self._trial is None:
            assert self.session.close().drained
            self._trial = td.create_trial(str(self.folder))
        return self._trial

    def value(self, name: str, step: int = 0) -> Array:
        """Values of a tensor."""
        value: Array = self.trial.tensor(name).value(step)
        return value

    def statistics(self, name: str, step: int = 0) -> dict[str, Any]:
        """Statistics of a tensor, by column."""
        (row,) = self.trial.tensor(name).stats(steps=[step]).to_pylist()
        return dict(row)

    def drops(self) -> dict[str, int]:
        """Reason -> tensors."""
        return {reason: drop.tensors for reason, drop in self.session.counters().drops.items()}

    def report(self, device: int = 0) -> dict[str, Any]:
        """What the ring says of a device."""
        return report_of(self.session.ring, device)


def report_of(ring: Any, device: int = 0) -> dict[str, Any]:
    """What a ring says of a device that it has captured from."""
    (found,) = [each for each in ring.device_reports() if each["device"] == device]
    return dict(found)


MakeTap = Callable[..., Tap]
MakeHook = Callable[..., Hook]


@pytest.fixture
def make_tap(tmp_path: Path) -> Iterator[MakeTap]:
    """Makes sessions with a flusher thread; closes what a test leaves open."""
    made: list[Tap] = []

    def make(**ring: Any) -> Tap:
        made.append(Tap(tmp_path / f"run{len(made)}", **ring))
        return made[-1]

    yield make
    for tap in made:
        tap.session.close()


@pytest.fixture
def tap(make_tap: MakeTap) -> Tap:
    """One session of the usual sizes."""
    return make_tap()


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[MakeHook]:
    """Hooks that save every step, unless save_config says otherwise."""
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


def same_bits(tensor: torch.Tensor, value: Array) -> bool:
    """Whether a tensor has the shape and the bytes of what was read."""
    host = tensor.detach().cpu().contiguous()
    return tuple(host.shape) == value.shape and host.view(-1).view(torch.uint8).numpy().tobytes() == (
        value.tobytes()
    )
