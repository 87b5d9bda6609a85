"""Fixtures for the Keras hook. Its tests run in an environment of their own: stage `keras` of .ci/run.

KERAS_BACKEND chooses the backend; each has two virtual CPUs, for strategies and shardings.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.freezing import freeze

if importlib.util.find_spec("keras") is None:
    collect_ignore_glob = ["test_*.py"]  # stage keras of .ci/run has Keras
else:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        tf.get_logger().setLevel("ERROR")


@pytest.fixture(scope="module", autouse=True)
def _freeze() -> None:
    """Exclude the objects of imported modules from garbage collections."""
    freeze()


@pytest.fixture(scope="session", autouse=True)
def _compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let trainings of one program share compiled functions of JAX: compilations take most of the time."""
    if os.environ.get("KERAS_BACKEND") == "jax":
        import jax

        jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes hooks that write to the test's folder. All are closed at the end."""
    from tdcore import SaveConfig
    from tdcore.hooks.keras import Hook

    made = []

    def make(folder: str = "run", **options: Any) -> Any:
        every: dict[str, Any] = {"save_all": True, "save_config": SaveConfig(save_interval=1)}
        hook = Hook(tmp_path / folder, flusher="thread", **every | options)
        made.append(hook)
        return hook

    yield make
    for hook in made:
        hook.close()
