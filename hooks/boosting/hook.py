"""BoostingHook: base class of the hooks for XGBoost and LightGBM.

A round of boosting is one step, in the mode TRAIN unless set_mode() was called. The library calls the hook
after each round. A round that saves nothing costs the count of the step. All values are read from the model
after the round, so the hook changes neither the model nor the evaluation. Threads: the training thread.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from tdcore.config.built_in_collections import BOOSTING, CollectionKeys
from tdcore.config.hook_config import HookConfig
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.hooks.base import BaseHook
from tdcore.hooks.boosting.ensemble import Ensemble, EvaluationScore
from tdcore.hooks.boosting.round_timer import RoundTimer
from tdcore.hooks.boosting.rounds import RoundRecorder
from tdcore.hooks.configured import FromConfiguration, given_config, is_given
from tdcore.hooks.phase_signals import PhaseSignals, time_phases
from tdcore.hooks.plan import Plan
from tdcore.hooks.run_notes import note_once
from tdcore.hooks.shortfall import Possible
from tdcore.hooks.step_timer import NullStepTimer
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["DEFAULT_INTERVAL", "BoostingHook", "check_pair"]

DEFAULT_INTERVAL = 10  # rounds; trainings of trees have tens to thousands of rounds
_TRAIN = ModeKeys.TRAIN.value
_NEEDS = {
    CollectionKeys.PREDICTIONS: "give the hook validation_data",
    CollectionKeys.LABELS: "give the hook validation_data with labels",
    CollectionKeys.AVERAGE_SHAP: "give the hook train_data",
    CollectionKeys.FULL_SHAP: "give the hook train_data",
    CollectionKeys.LOSSES: "pass evaluation sets to the training",
    CollectionKeys.METRICS: "pass evaluation sets to the training",
}


class BoostingHook(FromConfiguration, BaseHook):
    """Hook for gradient boosting. Users create the Hook of tdcore.hooks.xgboost or tdcore.hooks.lightgbm.

    Args:
        out_dir: Local folder or URL of the run. An existing run gets a new attempt.
        export_tensorboard: Export the run to TensorBoard while it is written (docs/export.md).
        tensorboard_dir: Folder for the exports of several runs. None: the folder `tensorboard` in out_dir.
        dry_run: Count tensors and bytes, and write nothing.
        reduction_config: Form in which tensors are saved: statistics, values, or both.
        save_config: Rounds that are saved. None: every 10th round, and metrics of every round.
        include_regex: Patterns for names of tensors, which become the collection "default".
        include_collections: Names of the collections that are saved. "losses" and "metrics" are always saved.
        save_all: Save all values, including SHAP values if there is train_data.
        include_workers: Workers that capture: "one" (rank 0), "all", or a list of ranks.
        hyperparameters: Hyper-parameters to record. None: the hyper-parameters that the model reports.
        train_data: Data for SHAP values.
        validation_data: Data for predictions and labels. None: train_data.
        ring: Size of the ring buffer.
        flusher: "process": a separate process writes the captured data. "thread": a thread of this process.
        close_timeout: Maximum time that close() waits for the last data.
        on_stop: Called once with a stop request, in the training thread. The training ends in any case.
        rules: Instances, classes or names of rules. The tensors that they need are captured too.
        profiler_config: Steps that are profiled (docs/profile.md).

    Raises:
        ConfigError: An argument is invalid.
    """

    _further_collections = tuple(BOOSTING)

    def __init__(
        self,
        out_dir: str | os.PathLike[str],
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | SaveConfigMode | Mapping[ModeKeys, SaveConfigMode] | None = None,
        include_regex: str | Iterable[str] | None = None,
        include_collections: str | Iterable[str] | None = None,
        save_all: bool = False,
        include_workers: str | Iterable[int | str] = "one",
        hyperparameters: Mapping[str, Any] | None = None,
        train_data: Any = None,
        validation_data: Any = None,
        *,
        ring: RingConfig | None = None,
        flusher: Literal["process", "thread"] = "process",
        close_timeout: timedelta = timedelta(seconds=30),
        on_stop: Callable[[StopRequest], None] | None = None,
        rules: Iterable[object] | str = (),
        profiler_config: ProfilerConfig | None = None,
    ) -> None:
        config = given_config(
            out_dir,
            export_tensorboard=export_tensorboard,
            tensorboard_dir=tensorboard_dir,
            dry_run=dry_run,
            reduction_config=reduction_config,
            save_config=SaveConfig(save_interval=DEFAULT_INTERVAL) if save_config is None else save_config,
            include_regex=include_regex,
            include_collections=include_collections,
            save_all=save_all,
            include_workers=include_workers,
            profiler_config=profiler_config,
        )
        self._stop = False  # whether a stop request ends the training
        self._user_on_stop = on_stop
        rank, world_size = self._rank_and_world_size()
        self._world_size = world_size
        self.hyperparameters = hyperparameters
        self._train_data = self._checked_data("train_data", train_data)
        self._validation_data = self._checked_data("validation_data", validation_data)
        BaseHook.__init__(
            self,
            config,
            framework_version=self._version(),
            rank=rank,
            world_size=world_size,
            ring=ring,
            flusher=flusher,
            close_timeout=close_timeout,
            # In a job, the other workers would wait for a worker that ends its training early. There a stop
            # request calls on_stop, or raises StopTraining.
            on_stop=self._on_stop if world_size == 1 else on_stop,
            rules=rules,
        )
        if save_config is None and not is_given():
            for name in (CollectionKeys.LOSSES, CollectionKeys.METRICS):
                if self._collections.get(name).save_config is None:
                    self._collections.get(name).save_config = SaveConfig(save_interval=1)
        self._clock.include(CollectionKeys.METRICS)
        self._note = note_once(self._notes, self._warn)
        self._end_phases = self._report_phases()
        self._rounds = RoundRecorder(self._recorder, self._notes, self._note, self._guarded)

    @property
    def train_data(self) -> Any:
        """Data for SHAP values."""
        return self._train_data

    @train_data.setter
    def train_data(self, data: Any) -> None:
        self._train_data = self._checked_data("train_data", data)

    @property
    def validation_data(self) -> Any:
        """Data for predictions and labels; None: train_data."""
        return self._validation_data

    @validation_data.setter
    def validation_data(self, data: Any) -> None:
        self._validation_data = self._checked_data("validation_data", data)

    def __deepcopy__(self, memo: dict[int, Any]) -> BoostingHook:
        return self  # scikit-learn copies the callbacks of an estimator

    def __reduce__(self) -> tuple[Any, ...]:
        return _closed_hook, (type(self), self.config)

    # For the library's hook -------------------------------------------------------------------------------

    @staticmethod
    def _version() -> str:
        """Version of the library."""
        raise NotImplementedError

    def _phase_signals(self) -> PhaseSignals:
        """Functions of the library that are phases. The phase "compute" is the update of a model."""
        raise NotImplementedError

    def _report_phases(self) -> Callable[[], object]:
        if isinstance(self._timer, NullStepTimer):
            return lambda: None
        self._timer = RoundTimer(self._timer, self)
        return time_phases(self, self._timer, self._recorder, self._phase_signals())

    def _rank_and_world_size(self) -> tuple[int, int]:
        """Rank of this worker and number of workers of the training."""
        return 0, 1

    @staticmethod
    def _checked_data(name: str, data: Any) -> Any:
        """Return the data of the user. Raises ConfigError for data that the library cannot read."""
        raise NotImplementedError

    def _after_round(
        self,
        scores: Callable[[], Sequence[EvaluationScore]],
        ensembles: Callable[[], Mapping[str, Ensemble]],
    ) -> None:
        """Count a round, and record it if it is saved. Only StopTraining is raised.

        Args:
            scores: Returns the metrics of the round.
            ensembles: Returns the models of the round by the prefix of their names.
        """
        if self._off:
            return
        try:
            plan = self._begin_step(self._mode or _TRAIN)
        except Exception as error:
            self._fault("steps", error)
            return
        if plan is not None:
            start = time.perf_counter_ns()
            self._guarded("metrics", self._record_scores, plan, scores)
            self._guarded("model", self._record_models, plan, ensembles)
            self._recorder.spent_ns += time.perf_counter_ns() - start
            self._guarded("steps", self._mark)
        if self._control_changed():
            self._check_control_guarded()

    def _record_scores(self, plan: Plan, scores: Callable[[], Sequence[EvaluationScore]]) -> None:
        if "metrics" not in self._rounds.failed:
            self._rounds.scores(plan, scores())

    def _record_models(self, plan: Plan, ensembles: Callable[[], Mapping[str, Ensemble]]) -> None:
        if "model" in self._rounds.failed or _only_scores(plan):
            return
        train, validation = self._train_data, self._validation_data
        if self._world_size > 1 and (train is not None or validation is not None):
            train = validation = None
            self._note(
                "predictions, labels and SHAP values are not recorded in a job of several workers: the "
                "library communicates with the other workers while it computes these values"
            )
        for prefix, ensemble in ensembles().items():
            self._rounds.model(
                plan,
                ensemble,
                prefix,
                given=self.hyperparameters,
                train_data=train,
                validation_data=train if validation is None else validation,
            )

    def _on_stop(self, request: StopRequest) -> None:
        self._stop = True
        if self._user_on_stop is not None:
            self._user_on_stop(request)

    def _switch_off(self, part: str) -> None:
        self._rounds.failed.add(part)

    def _missing(self) -> Iterator[str]:
        requested = self.config.include_collections
        for name in requested:
            if name in BOOSTING and not self._collections.get(name).seen and self._clock.due_modes(name):
                need = f"; {_NEEDS[name]}" if name in _NEEDS else ""
                yield f"collection {name!r}: no tensor was captured{need}"
        others = self._shortfalls.of_collections(Possible())
        yield from (each for each in others if not each.startswith(_NO_LOSS))


_NO_LOSS = f"collection {CollectionKeys.LOSSES!r}: no loss"  # trainings without evaluation sets have none
_SCORES = frozenset({CollectionKeys.LOSSES, CollectionKeys.METRICS, CollectionKeys.SCALARS})


def _only_scores(plan: Plan) -> bool:
    """Whether the plan selects only scores, and no values of a model."""
    return all(collection.name in _SCORES and not collection.is_filled for collection in plan.collections)


def check_pair(name: str, data: Any) -> tuple[Any, Any]:
    """Return a pair (features, labels). Raises ConfigError for other data."""
    if not isinstance(data, (tuple, list)) or len(data) != 2 or any(isinstance(x, str) for x in data):
        raise ConfigError(
            f"{name} must be data of the library or a pair (features, labels) of arrays, "
            f"got {type(data).__name__}"
        )
    return data[0], data[1]


def _closed_hook(cls: type[BoostingHook], config: HookConfig) -> BoostingHook:
    """Return a closed hook, which captures nothing. Unpickling a hook returns such a hook."""
    hook = cls.from_config(dataclasses.replace(config, dry_run=True))
    hook.close()
    return hook
