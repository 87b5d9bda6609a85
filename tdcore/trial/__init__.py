"""The readers of runs: create_trial, Trial and Tensor, and the index that they use."""

from tdcore.trial.collections import SavedCollection
from tdcore.trial.documents import Attempt, RunEnd
from tdcore.trial.gaps import Gap
from tdcore.trial.index import Hole, Index
from tdcore.trial.missing import Missing
from tdcore.trial.profiles import Profile
from tdcore.trial.refresh import no_refresh, refresh
from tdcore.trial.shard_boxes import Shard
from tdcore.trial.step_state import StepState
from tdcore.trial.tensor import Tensor
from tdcore.trial.trial import Trial
from tdcore.trial.trial_factory import create_trial

__all__ = [
    "Attempt",
    "Gap",
    "Hole",
    "Index",
    "Missing",
    "Profile",
    "RunEnd",
    "SavedCollection",
    "Shard",
    "StepState",
    "Tensor",
    "Trial",
    "create_trial",
    "no_refresh",
    "refresh",
]
