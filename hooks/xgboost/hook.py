"""Hook: capture of XGBoost trainings.

    hook = Hook("runs/demo", include_collections=["feature_importance", "trees"], validation_data=dvalid)
    xgboost.train(params, dtrain, evals=[(dtrain, "train"), (dvalid, "validation")], callbacks=[hook])
    hook.close()                       # or at the end of the program

The same object is a callback for train(), cv() and the estimators (`XGBClassifier(callbacks=[hook])`). A stop
request ends the training before the next round, as early stopping does: train() returns the model of the
rounds so far, and the script continues. In a job of several workers the stop request raises StopTraining
instead, because the other workers would wait for this one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import xgboost
from xgboost import collective
from xgboost.callback import TrainingCallback

from tdcore.errors import StopTraining
from tdcore.hooks import current
from tdcore.hooks.boosting.ensemble import Ensemble
from tdcore.hooks.boosting.hook import BoostingHook, check_pair
from tdcore.hooks.phase_signals import PhaseSignals, Signal
from tdcore.hooks.step_timer import CHECKPOINT, COMPUTE
from tdcore.hooks.xgboost.metrics import round_scores
from tdcore.hooks.xgboost.model import BoosterView

__all__ = ["Hook", "create_from_json_file", "get_hook"]


_SIGNALS = PhaseSignals(
    (
        Signal("xgboost.core", "Booster.update", COMPUTE),
        Signal("xgboost.core", "Booster.save_model", CHECKPOINT),
    )
)


class Hook(BoostingHook, TrainingCallback):  # type: ignore[misc]  # the library is not installed everywhere
    """Hook for XGBoost. Its arguments are the arguments of BoostingHook."""

    framework = "xgboost"

    @staticmethod
    def _version() -> str:
        return str(xgboost.__version__)

    def _phase_signals(self) -> PhaseSignals:
        return _SIGNALS

    def _rank_and_world_size(self) -> tuple[int, int]:
        return int(collective.get_rank()), int(collective.get_world_size())

    @staticmethod
    def _checked_data(name: str, data: Any) -> Any:
        if data is None or isinstance(data, xgboost.DMatrix):
            return data
        features, labels = check_pair(name, data)
        if collective.get_world_size() > 1:
            return features, labels  # not used; a DMatrix would communicate with the other workers
        return xgboost.DMatrix(features, label=labels, enable_categorical=True)

    def before_training(self, model: Any) -> Any:
        """Return the model. Called by XGBoost."""
        self._stop = False
        self._round = 0
        self._evals_log: Mapping[str, Any] = {}
        self._model = model
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Return whether a stop request ends the training before this round. Called by XGBoost."""
        return self._stop

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Record the round. Called by XGBoost."""
        self._round = epoch + 1
        self._evals_log = evals_log
        if not self._off:
            self._after_round(lambda: list(round_scores(evals_log, epoch)), lambda: _views(model))
        return False

    def after_training(self, model: Any) -> Any:
        """Record the last round if another callback has ended it, and the best round. Called by XGBoost."""
        if not self._off:
            try:
                self._end_training(model)
            except StopTraining:
                raise
            except Exception as error:
                self._fault("end of training", error)
        self._evals_log, self._model = {}, None
        return model

    def _end_training(self, model: Any) -> None:
        last, evals_log = self._round, self._evals_log
        evaluated = max((len(each) for metrics in evals_log.values() for each in metrics.values()), default=0)
        if evaluated == last + 1:  # an earlier callback ended the training in the last round
            self._round = last + 1
            whole = model is self._model  # otherwise the callback has replaced the model
            self._after_round(
                lambda: list(round_scores(evals_log, last)), lambda: _views(model) if whole else {}
            )
        best = model.attr("best_iteration")
        if best is not None:
            self._notes["best_iteration"] = int(best)
            self._notes["best_score"] = float(model.attr("best_score"))


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Create a hook from a JSON file; see Hook.create_from_json_file()."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """Return the current hook, or None. See tdcore.hooks.pytorch.get_hook()."""
    return current.get_hook(json_config_path, create_if_not_exists, hook_class=Hook)


def _views(model: Any) -> dict[str, Ensemble]:
    """The models of the round by the prefix of their names: one per fold of cv(), otherwise one."""
    folds = getattr(model, "cvfolds", None)
    if folds is None:
        return {"": BoosterView(model)}
    return {f"fold_{number}/": BoosterView(fold.bst) for number, fold in enumerate(folds)}
