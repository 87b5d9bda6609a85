"""tdcore: capture of the tensors of a training run at almost no cost, and search for faults of the training.

Names load on first use, so `import tdcore` is fast and imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tdcore.config.settings import apply_log_level

# `modes` is loaded immediately: the module has the same name, so a later import of the module would replace
# the name.
from tdcore.modes import ModeKeys, modes

if TYPE_CHECKING:
    from tdcore import actions
    from tdcore._version import __version__
    from tdcore.config.collection_config import CollectionConfig
    from tdcore.config.profiler_config import (
        DataloaderProfilingConfig,
        DetailedProfilingConfig,
        FrameworkProfile,
        ProfilerConfig,
        PythonProfilingConfig,
    )
    from tdcore.config.reduction_config import ReductionConfig
    from tdcore.config.save_config import SaveConfig, SaveConfigMode
    from tdcore.errors import StopTraining, TdcoreError
    from tdcore.launch.watch import watch
    from tdcore.rules.diagnosis import diagnose
    from tdcore.session.ring_config import RingConfig
    from tdcore.sinks.s3.options import S3Options
    from tdcore.stats import TensorStats, tensor_stats
    from tdcore.trial import Tensor, Trial, create_trial
    from tdcore.view.report import write_report

apply_log_level()

_HOME = {
    "CollectionConfig": "tdcore.config.collection_config",
    "DataloaderProfilingConfig": "tdcore.config.profiler_config",
    "DetailedProfilingConfig": "tdcore.config.profiler_config",
    "FrameworkProfile": "tdcore.config.profiler_config",
    "ProfilerConfig": "tdcore.config.profiler_config",
    "PythonProfilingConfig": "tdcore.config.profiler_config",
    "ReductionConfig": "tdcore.config.reduction_config",
    "RingConfig": "tdcore.session.ring_config",
    "S3Options": "tdcore.sinks.s3.options",
    "SaveConfig": "tdcore.config.save_config",
    "SaveConfigMode": "tdcore.config.save_config",
    "StopTraining": "tdcore.errors",
    "TdcoreError": "tdcore.errors",
    "Tensor": "tdcore.trial",
    "TensorStats": "tdcore.stats",
    "Trial": "tdcore.trial",
    "__version__": "tdcore._version",
    "create_trial": "tdcore.trial",
    "diagnose": "tdcore.rules.diagnosis",
    "tensor_stats": "tdcore.stats",
    "watch": "tdcore.launch.watch",
    "write_report": "tdcore.view.report",
}

_MODULES = frozenset({"actions"})

__all__ = [
    "CollectionConfig",
    "DataloaderProfilingConfig",
    "DetailedProfilingConfig",
    "FrameworkProfile",
    "ModeKeys",
    "ProfilerConfig",
    "PythonProfilingConfig",
    "ReductionConfig",
    "RingConfig",
    "S3Options",
    "SaveConfig",
    "SaveConfigMode",
    "StopTraining",
    "TdcoreError",
    "Tensor",
    "TensorStats",
    "Trial",
    "__version__",
    "actions",
    "create_trial",
    "diagnose",
    "modes",
    "tensor_stats",
    "watch",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"tdcore.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tdcore' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
