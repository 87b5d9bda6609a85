"""The names of smdebug for PyTorch scripts, trials and rules: `import tdcore.smd as smd`.

    import tdcore.smd as smd                     # was: import smdebug.pytorch as smd
    from tdcore.smd import modes, get_hook       # was: from smdebug import modes; ... import get_hook

    hook = smd.get_hook(create_if_not_exists=True)
    trial = smd.create_trial("runs/demo")        # waits for the run; arrays are writable

All names are those of tdcore, except create_trial, LocalTrial and S3Trial, which have smdebug's arguments and
results (tdcore/trial/older_trials.py). docs/moving.md lists the differences between tdcore and smdebug. Names
load on first use, so reading a run imports no framework. Threads: any.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tdcore.modes import ModeKeys, modes

if TYPE_CHECKING:
    from tdcore.config.built_in_collections import CollectionKeys
    from tdcore.config.collection import Collection
    from tdcore.config.collection_manager import CollectionManager
    from tdcore.config.reduction_config import ReductionConfig
    from tdcore.config.save_config import SaveConfig, SaveConfigMode
    from tdcore.errors import (
        InsufficientInformationForRuleInvocation,
        InvalidCollectionConfiguration,
        InvalidWorker,
        MissingCollectionFiles,
        NoMoreData,
        RuleEvaluationConditionMet,
        StepNotYetAvailable,
        StepUnavailable,
        TensorUnavailable,
        TensorUnavailableForStep,
    )
    from tdcore.errors import RunCorrupt as IndexReaderException
    from tdcore.errors import TensorUnavailableForStep as ShapeUnavailableForStep
    from tdcore.hooks.pytorch import Hook, del_hook, get_hook, set_hook
    from tdcore.rules.legacy import Rule, invoke_rule
    from tdcore.rules.required_tensors import RequiredTensors
    from tdcore.trial import StepState, Tensor, Trial, no_refresh, refresh
    from tdcore.trial.older_trials import LocalTrial, S3Trial, create_trial

_HOME = {
    "Collection": "tdcore.config.collection",
    "CollectionKeys": "tdcore.config.built_in_collections",
    "CollectionManager": "tdcore.config.collection_manager",
    "Hook": "tdcore.hooks.pytorch",
    "IndexReaderException": "tdcore.errors:RunCorrupt",
    "InsufficientInformationForRuleInvocation": "tdcore.errors",
    "InvalidCollectionConfiguration": "tdcore.errors",
    "InvalidWorker": "tdcore.errors",
    "LocalTrial": "tdcore.trial.older_trials",
    "MissingCollectionFiles": "tdcore.errors",
    "NoMoreData": "tdcore.errors",
    "ReductionConfig": "tdcore.config.reduction_config",
    "RequiredTensors": "tdcore.rules.required_tensors",
    "Rule": "tdcore.rules.legacy",
    "RuleEvaluationConditionMet": "tdcore.errors",
    "S3Trial": "tdcore.trial.older_trials",
    "SaveConfig": "tdcore.config.save_config",
    "SaveConfigMode": "tdcore.config.save_config",
    "ShapeUnavailableForStep": "tdcore.errors:TensorUnavailableForStep",
    "StepNotYetAvailable": "tdcore.errors",
    "StepState": "tdcore.trial",
    "StepUnavailable": "tdcore.errors",
    "Tensor": "tdcore.trial",
    "TensorUnavailable": "tdcore.errors",
    "TensorUnavailableForStep": "tdcore.errors",
    "Trial": "tdcore.trial",
    "create_trial": "tdcore.trial.older_trials",
    "del_hook": "tdcore.hooks.pytorch",
    "get_hook": "tdcore.hooks.pytorch",
    "invoke_rule": "tdcore.rules.legacy",
    "no_refresh": "tdcore.trial",
    "refresh": "tdcore.trial",
    "set_hook": "tdcore.hooks.pytorch",
}

__all__ = [
    "Collection",
    "CollectionKeys",
    "CollectionManager",
    "Hook",
    "IndexReaderException",
    "InsufficientInformationForRuleInvocation",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "LocalTrial",
    "MissingCollectionFiles",
    "ModeKeys",
    "NoMoreData",
    "ReductionConfig",
    "RequiredTensors",
    "Rule",
    "RuleEvaluationConditionMet",
    "S3Trial",
    "SaveConfig",
    "SaveConfigMode",
    "ShapeUnavailableForStep",
    "StepNotYetAvailable",
    "StepState",
    "StepUnavailable",
    "Tensor",
    "TensorUnavailable",
    "TensorUnavailableForStep",
    "Trial",
    "create_trial",
    "del_hook",
    "get_hook",
    "invoke_rule",
    "modes",
    "no_refresh",
    "refresh",
    "set_hook",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tdcore.smd' has no attribute {name!r}")
    module, _, own = home.partition(":")
    value: object = getattr(importlib.import_module(module), own or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
