"""Fixtures for the JAX hook. Its tests run in stage `keras` of .ci/run, on four virtual CPUs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.freezing import freeze

if importlib.util.find_spec("jax") is None:
    collect_ignore_glob = ["test_*.py"]  # stage keras of .ci/run has JAX
else:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"


@pytest.fixture(scope="module", autouse=True)
def _freeze() -> None:
    """Exclude the objects of imported modules from garbage collections."""
    freeze()


@pytest.fixture(scope="session", autouse=True)
def _compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let trainings of one program share compiled functions: compilations take most of the time."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes hooks that write to the test's folder. All are closed at the end."""
    from tdcore import SaveConfig
    from tdcore.hooks.jax import Hook

    made = []

    def make(folder: str = "run", **options: Any) -> Any:
        every: dict[str, Any] = {"save_all": True, "save_config": SaveConfig(save_interval=1)}
        hook = Hook(tmp_path / folder, flusher="thread", **every | options)
        made.append(hook)
        return hook

    yield make
    for hook in made:
        hook.close()
