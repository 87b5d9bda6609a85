"""Fixtures for hook tests: real sessions with a flusher thread, and a reader of what they left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
import torch

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.compile import code_variants


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """For tests that call torch.compile: no code is compiled, and for later tests none ever was."""
    import torch._dynamo.utils  # takes a second

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    code_variants._ever = False


class Captured:
    """What a run holds, as plain values."""

    def __init__(self, path: Path) -> None:
        self.trial = td.create_trial(str(path))
        rows = self.trial.rows().to_pylist()
        self.rows = sorted(rows, key=lambda row: (row["attempt"], row["step"], row["seq"]))

    def names(self, step: int | None = None) -> list[str]:
        """Names in order of execution, of one step or of all."""
        return [row["name"] for row in self.rows if step is None or row["step"] == step]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Rows of one tensor."""
        return [row for row in self.rows if row["name"] == name]

    def steps(self, name: str) -> list[int]:
        """Steps at which there is a row of the tensor."""
        return [row["step"] for row in self.of(name)]

    def value(self, name: str, step: int, call: int | None = None) -> npt.NDArray[Any]:
        """Payload of one capture."""
        value: npt.NDArray[Any] = self.trial.tensor(name).value(step, call=call)
        return value


MakeHook = Callable[..., Hook]
ReadRun = Callable[[Hook], Captured]


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[MakeHook]:
    """Hooks on small rings; every step is saved unless save_config says otherwise."""
    made: list[Hook] = []

    def make(**options: Any) -> Hook:
        options.setdefault("flusher", "thread")
        options.setdefault("save_config", td.SaveConfig(save_interval=1))
        options.setdefault("ring", td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20))
        options.setdefault("close_timeout", timedelta(seconds=20))
        hook = Hook(options.pop("out_dir", tmp_path / "run"), **options)
        made.append(hook)
        return hook

    yield make
    for hook in made:
        hook.close()


@pytest.fixture
def read_run() -> ReadRun:
    """Closes the hook and reads its run."""

    def read(hook: Hook) -> Captured:
        hook.close()
        return Captured(Path(hook.out_dir))

    return read


@pytest.fixture(autouse=True)
def _one_seed_one_thread() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the models are tiny: more threads only wait for each other
