"""RoundRecorder: capture of the values of one saved round of boosting.

A value is computed only if a collection that is saved in this round selects its name. The tensor names are
those of smdebug; a fold of a cross validation adds the prefix "fold_<number>/". Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.boosting.ensemble import Ensemble, EvaluationScore, UnavailableError
from tdcore.hooks.boosting.settings import split_settings
from tdcore.hooks.boosting.tables import CATEGORY, COLUMNS, FURTHER_COLUMNS
from tdcore.hooks.plan import CaptureSpec, Plan
from tdcore.hooks.recorder import Recorder

__all__ = ["ALL_FEATURES", "RoundRecorder"]

ALL_FEATURES = 1000  # models with more features record the importance of used features only
_TREE_NAMES = (*COLUMNS, CATEGORY, *FURTHER_COLUMNS)


class RoundRecorder:
    """Recorder of the values of saved rounds.

    Args:
        recorder: Recorder of the hook.
        notes: Notes of the run.
        note: Stores and logs a sentence about values that are not recorded, once.
        guarded: Calls a function so that its errors do not reach the training.
    """

    def __init__(
        self,
        recorder: Recorder,
        notes: dict[str, Any],
        note: Callable[[str], None],
        guarded: Callable[..., None],
    ) -> None:
        self._recorder = recorder
        self._notes = notes
        self._note = note
        self._guarded = guarded
        self._known: dict[str, dict[str, float]] = {}  # prefix -> hyper-parameters as last recorded
        self.failed: set[str] = set()  # parts that raised an error

    def scores(self, plan: Plan, scores: Sequence[EvaluationScore]) -> None:
        """Record the metrics of the evaluation sets."""
        for kind in (TensorKind.LOSS, TensorKind.METRIC):
            chosen = [score for score in scores if score.is_loss is (kind is TensorKind.LOSS)]
            self._record(plan, [score.name for score in chosen], [score.value for score in chosen], kind)

    def model(
        self,
        plan: Plan,
        ensemble: Ensemble,
        prefix: str,
        *,
        given: Mapping[str, Any] | None,
        train_data: Any,
        validation_data: Any,
    ) -> None:
        """Record the values of one model.

        Args:
            plan: Plan of the round.
            ensemble: The model.
            prefix: First part of all names.
            given: Hyper-parameters of the user; None: the hyper-parameters of the model.
            train_data: Data for SHAP values; None: SHAP values are not recorded.
            validation_data: Data for predictions and labels; None: neither is recorded.
        """
        self._part("hyperparameters", self._settings, plan, ensemble, prefix, given)
        self._part("feature importance", self._importance, plan, ensemble, prefix)
        self._part("trees", self._trees, plan, ensemble, prefix)
        if validation_data is not None:
            self._part("predictions", self._predictions, plan, ensemble, prefix, validation_data)
        if train_data is not None:
            self._part("SHAP values", self._shap, plan, ensemble, prefix, train_data)

    def _part(self, part: str, record: Callable[..., None], *args: Any) -> None:
        if part not in self.failed:
            self._guarded(part, self._if_available, record, *args)

    def _if_available(self, record: Callable[..., None], *args: Any) -> None:
        try:
            record(*args)
        except UnavailableError as error:
            self._note(str(error))

    def _settings(self, plan: Plan, ensemble: Ensemble, prefix: str, given: Mapping[str, Any] | None) -> None:
        """Record the hyper-parameters that are new or have changed since they were last recorded."""
        if not plan.may_take(TensorKind.HYPERPARAMETER):
            return
        numbers, texts = split_settings(ensemble.settings() if given is None else given)
        heading = f"{prefix}hyperparameters"
        if texts and self._notes.get(heading) != texts:
            self._notes[heading] = texts
        known = self._known.setdefault(prefix, {})
        kind = TensorKind.HYPERPARAMETER
        changed = {
            name: number
            for name, number in numbers.items()
            if known.get(name) != number and plan.takes(f"{prefix}hyperparameters/{name}", kind)
        }
        names = [f"{prefix}hyperparameters/{name}" for name in changed]
        self._record(plan, names, list(changed.values()), kind)
        known.update(changed)

    def _importance(self, plan: Plan, ensemble: Ensemble, prefix: str) -> None:
        features = ensemble.features
        for kind in ensemble.importance_types:
            head = f"{prefix}feature_importance/{kind}/"
            if not _takes_any(plan, head, features):
                continue
            values = ensemble.importance(kind)
            chosen: Iterable[int] = range(len(features))
            if len(features) > ALL_FEATURES:
                chosen = np.flatnonzero(np.any(values.reshape(len(features), -1) != 0, axis=1)).tolist()
                self._note(
                    f"feature_importance: the model has {len(features)} features, so features without "
                    "importance have no rows"
                )
            picked = list(chosen)
            self._record(plan, [head + features[at] for at in picked], [values[at] for at in picked])

    def _trees(self, plan: Plan, ensemble: Ensemble, prefix: str) -> None:
        names = [f"{prefix}trees/{column}" for column in _TREE_NAMES]
        if not _takes_any(plan, "", names):
            return
        table = ensemble.trees()
        self._note_features(ensemble)
        self._record(plan, [f"{prefix}trees/{column}" for column in table], list(table.values()))

    def _predictions(self, plan: Plan, ensemble: Ensemble, prefix: str, data: Any) -> None:
        for name, compute in (("labels", ensemble.labels), ("predictions", ensemble.predictions)):
            if _takes_any(plan, prefix, [name]):
                self._record(plan, [prefix + name], [compute(data)])

    def _shap(self, plan: Plan, ensemble: Ensemble, prefix: str, data: Any) -> None:
        features = ensemble.features
        average, full = f"{prefix}average_shap/", f"{prefix}full_shap/"
        takes_full = _takes_any(plan, full, features)
        if not takes_full and not _takes_any(plan, average, features):
            return
        values = ensemble.shap(data)
        means = np.abs(values).mean(axis=0, dtype=np.float64)
        self._record(
            plan, [average + name for name in features], [means[..., at] for at in range(len(features))]
        )
        if takes_full:
            with_bias = [*features, *([] if "bias" in features else ["bias"])]
            columns = [np.ascontiguousarray(values[..., at]) for at in range(len(with_bias))]
            self._record(plan, [full + name for name in with_bias], columns)

    def _note_features(self, ensemble: Ensemble) -> None:
        names = list(ensemble.features)
        if self._notes.get("features") != names:
            self._notes["features"] = names

    def _record(
        self, plan: Plan, names: Sequence[str], values: Sequence[Any], kind: TensorKind = TensorKind.CUSTOM
    ) -> None:
        """Record the values whose names the plan selects, in one native call."""
        arrays, specs = [], []
        for name, value in zip(names, values, strict=True):
            spec = plan.spec(name, kind)
            if spec is not None:
                array = np.asarray(value, dtype=None if hasattr(value, "dtype") else np.float64)
                arrays.append(array)
                specs.append(spec.whole if array.ndim == 0 else spec)
        if arrays:
            self._recorder.capture(arrays, CaptureSpec(specs))


def _takes_any(plan: Plan, head: str, names: Sequence[str]) -> bool:
    return any(plan.takes(head + name, TensorKind.CUSTOM) for name in names)
