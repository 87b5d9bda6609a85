"""Fixtures for tests of hooks: real sessions with a flusher thread, and a reader of their runs."""

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
    """Reset torch.compile before the test; later tests behave as if nothing had been compiled."""
    import torch._dynamo.utils  # the import takes a second

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    code_variants._ever = False


class Captured:
    """Content of a run, as plain values."""

    def __init__(self, path: Path) -> None:
        self.trial = td.create_trial(str(path))
        rows = self.trial.rows().to_pylist()
        self.rows = sorted(rows, key=lambda row: (row["attempt"], row["step"], row["seq"]))

    def names(self, step: int | None = None) -> list[str]:
        """Return names in order of execution, of one step or of all steps."""
        return [row["name"] for row in self.rows if step is None or row["step"] == step]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of one tensor."""
        return [row for row in self.rows if row["name"] == name]

    def steps(self, name: str) -> list[int]:
        """Return the steps in which the tensor has a row."""
        return [row["step"] for row in self.of(name)]

    def value(self, name: str, step: int, call: int | None = None) -> npt.NDArray[Any]:
        """Return the payload of one capture."""
        value: npt.NDArray[Any] = self.trial.tensor(name).value(step, call=call)
        return value


MakeHook = Callable[..., Hook]
ReadRun = Callable[[Hook], Captured]


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[MakeHook]:
    """Create hooks with small rings; every step is saved unless save_config differs."""
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
    """Close the hook and read its run."""

    def read(hook: Hook) -> Captured:
        hook.close()
        return Captured(Path(hook.out_dir))

    return read


@pytest.fixture(autouse=True)
def _one_seed_one_thread() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the models are tiny: more threads would only wait for each other
