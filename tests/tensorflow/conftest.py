"""Fixtures for the TensorFlow hook. Its tests run in the environment of Keras: stage `keras` of .ci/run.

There are two virtual CPUs, for strategies.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.freezing import freeze

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]  # stage keras of .ci/run has TensorFlow
else:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.get_logger().setLevel("ERROR")


@pytest.fixture(scope="module", autouse=True)
def _freeze() -> None:
    """Exclude the objects of imported modules from garbage collections."""
    freeze()


@pytest.fixture
def make_hook(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes hooks that write to the test's folder. All are closed at the end."""
    from tdcore import SaveConfig
    from tdcore.hooks.tensorflow import Hook

    made = []

    def make(folder: str = "run", **options: Any) -> Any:
        every: dict[str, Any] = {"save_all": True, "save_config": SaveConfig(save_interval=1)}
        hook = Hook(tmp_path / folder, flusher="thread", **every | options)
        made.append(hook)
        return hook

    yield make
    for hook in made:
        hook.close()
