"""Hook: capture of LightGBM trainings.

    hook = Hook("runs/demo", include_collections=["feature_importance", "trees"], validation_data=(x, y))
    lightgbm.train(params, train_set, valid_sets=[train_set, valid_set], callbacks=[hook])
    hook.close()                       # or at the end of the program

The same object is a callback for train(), cv() and the estimators: `estimator.fit(x, y, callbacks=[hook])`.
A stop request ends the training after the round, as early stopping does: train() returns the model of the
rounds so far, and the script continues. The hook runs after the callbacks that log and store the metrics, and
before early stopping.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import lightgbm
from lightgbm.callback import EarlyStopException

from tdcore.errors import ConfigError
from tdcore.hooks import current
from tdcore.hooks.boosting.ensemble import Ensemble, EvaluationScore
from tdcore.hooks.boosting.hook import BoostingHook, check_pair
from tdcore.hooks.lightgbm.model import BoosterView
from tdcore.hooks.phase_signals import PhaseSignals, Signal
from tdcore.hooks.step_timer import CHECKPOINT, COMPUTE

__all__ = ["ORDER", "Hook", "create_from_json_file", "get_hook"]

ORDER = 25  # record_evaluation() has 20, early_stopping() has 30


_SIGNALS = PhaseSignals(
    (
        Signal("lightgbm.basic", "Booster.update", COMPUTE),
        Signal("lightgbm.basic", "Booster.save_model", CHECKPOINT),
    )
)


class Hook(BoostingHook):
    """Hook for LightGBM. The further arguments are the arguments of BoostingHook.

    Args:
        out_dir: Local folder or URL of the run.
        rank: Number of this worker in a job of several workers. HookCallback finds the number.
        world_size: Number of workers of the job.
    """

    framework = "lightgbm"
    before_iteration = False  # read by LightGBM

    def __init__(
        self,
        out_dir: str | os.PathLike[str],
        *arguments: Any,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> None:
        self._place = rank, world_size
        self.order = ORDER  # read by LightGBM; an object without `order` gets a default
        BoostingHook.__init__(self, out_dir, *arguments, **options)

    @staticmethod
    def _version() -> str:
        return str(lightgbm.__version__)

    def _phase_signals(self) -> PhaseSignals:
        return _SIGNALS

    def _rank_and_world_size(self) -> tuple[int, int]:
        return self._place

    @staticmethod
    def _checked_data(name: str, data: Any) -> Any:
        if data is None:
            return None
        if not isinstance(data, lightgbm.Dataset):
            return check_pair(name, data)
        if data.data is None or isinstance(data.data, (str, os.PathLike)):
            raise ConfigError(
                f"{name}: the Dataset does not hold its data; create it from arrays with "
                "free_raw_data=False, or pass a pair (features, labels)"
            )
        return data.data, data.label

    def __call__(self, env: Any) -> None:
        """Record the round. Called by LightGBM."""
        if self._off:
            return
        if env.iteration == env.begin_iteration:
            self._stop = False
        self._after_round(lambda: list(_scores(env.evaluation_result_list or ())), lambda: _views(env))
        if self._stop:
            raise EarlyStopException(env.iteration, env.evaluation_result_list or [])


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Create a hook from a JSON file; see Hook.create_from_json_file()."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """Return the current hook, or None. See tdcore.hooks.pytorch.get_hook()."""
    return current.get_hook(json_config_path, create_if_not_exists, hook_class=Hook)


def _scores(results: Any) -> Iterator[EvaluationScore]:
    """Yield the metrics of a round; in cv() also the standard deviation of each metric over the folds.

    results: Tuples (set, metric, value, larger is better), in cv() with the standard deviation.
    """
    for data_name, metric, value, larger_is_better, *deviation in results:
        if data_name == "cv_agg":  # in LightGBM before 4.6, the set is part of the metric
            data_name, _, metric = metric.partition(" ")
        name = f"{data_name}-{metric}"
        yield EvaluationScore(name, float(value), not larger_is_better)
        if deviation and deviation[0] is not None:
            yield EvaluationScore(f"{name}-std", float(deviation[0]), False)


def _views(env: Any) -> Mapping[str, Ensemble]:
    """The models of the round by the prefix of their names: one per fold of cv(), otherwise one."""
    boosters = getattr(env.model, "boosters", None)
    if boosters is None:
        return {"": BoosterView(env.model, env.params)}
    return {f"fold_{number}/": BoosterView(each, env.params) for number, each in enumerate(boosters)}
