"""Rules in the form of smdebug: subclasses of Rule with `invoke_at_step`.

    class LossTooHigh(Rule):
        def __init__(self, base_trial, threshold="10"):
            super().__init__(base_trial)
            self.threshold = float(threshold)

        def invoke_at_step(self, step):
            return self.base_trial.tensor("CrossEntropyLoss_output_0").value(step) > self.threshold

    invoke_rule(LossTooHigh(create_trial("runs/demo")))

Such rules run unchanged with invoke_rule(), and in the engine (`tdcore rules run RUN --rule
file.py::LossTooHigh:threshold=5`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tdcore.errors import (
    ConfigError,
    NoMoreData,
    RuleEvaluationConditionMet,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
    UnsupportedFeature,
)
from tdcore.rules.base import Finding
from tdcore.rules.measures.series import groups
from tdcore.rules.required_tensors import RequiredTensors
from tdcore.rules.requirements import Need

if TYPE_CHECKING:
    from tdcore.rules.source import Source
    from tdcore.rules.window import Window
    from tdcore.trial import Trial

__all__ = ["LegacyRule", "Rule", "RuleEvaluationConditionMet", "invoke_rule", "is_older_rule"]

_NOT_THERE = (TensorUnavailableForStep, TensorUnavailable, StepUnavailable, StepNotYetAvailable, NoMoreData)
_POLL_SECONDS = 0.3


class Rule:
    """Base class of rules in the form of smdebug. Subclasses implement `invoke_at_step`.

    A subclass accepts its parameters, possibly as strings, in __init__ and passes base_trial to this class.

    Args:
        base_trial: The run to judge.
        action_str: Not supported; see tdcore.rules.run(..., actions=[...]).
        other_trials: Other runs that the rule compares with.
    """

    def __init__(
        self, base_trial: Trial, action_str: str = "", other_trials: Sequence[Trial] | None = None
    ) -> None:
        if not is_older_rule(type(self)):
            raise TypeError(
                f"{type(self).__name__} has no method invoke_at_step(self, step); a rule needs it"
            )
        if action_str:
            raise UnsupportedFeature(
                "action_str is not supported: use tdcore.rules.run(..., actions=[...]) or `--on-fire`"
            )
        self.base_trial = base_trial
        self.other_trials = list(other_trials or ())
        self.trials = [base_trial, *self.other_trials]
        self.req_tensors = RequiredTensors(base_trial, self.other_trials)
        self.rule_name = type(self).__name__
        self.logger = logging.getLogger("tdcore.rules")
        self.report: dict[str, Any] = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    def set_required_tensors(self, step: int) -> None:
        """Add the tensors that invoke_at_step needs to `req_tensors` (rules/required_tensors.py).

        Subclasses override it.
        """

    def invoke_at_step(self, step: int) -> bool:
        """Return whether the rule's condition is met at `step` (global). Subclasses override this method.

        It may read this step and earlier steps only. The trials return data that was read before the call.
        """
        raise NotImplementedError

    def judge(self, step: int, *, wait: bool = True) -> bool:
        """Read the runs, collect the required tensors, and return the result of invoke_at_step.

        Args:
            step: Global step.
            wait: Wait for steps of required tensors that may still arrive.

        Raises:
            TensorUnavailable: A required tensor does not exist. StepUnavailable and similar errors are raised
                if it has no value at a step. Exceptions of invoke_at_step are raised unchanged.
        """
        from tdcore.trial import no_refresh

        for trial in self.trials:
            trial.refresh()
        with no_refresh(self.trials):
            self.req_tensors.clear()
            self.set_required_tensors(step)
            self.req_tensors.fetch(wait=wait)
            return bool(self.invoke_at_step(step))

    def invoke(self, step: int) -> None:
        """Wait for a step and judge it.

        Args:
            step: Global step.

        Raises:
            RuleEvaluationConditionMet: The rule's condition is met.
            StepUnavailable: The step was not saved.
            NoMoreData: The run ended before the step.
        """
        self.base_trial.wait_for_steps([step])
        self.report["Datapoints"] += 1
        if self.judge(step):
            self.report["RuleTriggered"] += 1
            raise RuleEvaluationConditionMet(self.rule_name, step)


def is_older_rule(kind: type[Any]) -> bool:
    """Whether a class is a rule in the form of smdebug, that is, defines invoke_at_step."""
    return issubclass(kind, Rule) and kind.invoke_at_step is not Rule.invoke_at_step


def invoke_rule(
    rule_obj: Rule,
    start_step: int | None = 0,
    end_step: int | None = None,
    raise_eval_cond: bool = False,
    *,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Judge the saved steps start_step <= step < end_step in order, and follow the run until it has ended.

    Missing steps and tensors are skipped.

    Args:
        rule_obj: The rule.
        start_step: First global step; None is 0.
        end_step: Global step after the last step; None: until the run ends.
        raise_eval_cond: Raise RuleEvaluationConditionMet at the first step where the condition is met. If
            False, the exception is logged and the next steps are judged, unless the rule raised it with
            end_of_rule=True, which ends the evaluation.
        wait: Called with a number of seconds between two polls of a run that is still written.

    Raises:
        RuleEvaluationConditionMet: See raise_eval_cond.
    """
    start_step = start_step or 0
    if end_step is not None and end_step < start_step:
        raise ConfigError(f"end_step must be at least start_step, got {end_step} and {start_step}")
    trial = rule_obj.base_trial
    step = start_step
    while True:
        last_look = trial.loaded_all_steps  # read before the steps, which are then complete
        for step_there in trial.steps():
            if step_there < step or (end_step is not None and step_there >= end_step):
                continue
            step = step_there + 1
            if _invoke(rule_obj, step_there, raise_eval_cond):
                return
        if last_look or (end_step is not None and step >= end_step):
            return
        wait(_POLL_SECONDS)


def _invoke(rule_obj: Rule, step: int, raise_eval_cond: bool) -> bool:
    """Judge one step. Return whether the rule has ended."""
    try:
        rule_obj.invoke(step)
    except _NOT_THERE as error:
        rule_obj.logger.debug("%s at step %d skipped: %s", rule_obj.rule_name, step, error)
    except RuleEvaluationConditionMet as met:
        if raise_eval_cond:
            raise
        rule_obj.logger.info("%s", met)
        return met.end_of_rule
    return False


class LegacyRule:
    """Adapter that runs a rule in the form of smdebug in the engine.

    As in smdebug, the rule ends when its condition is met for the first time. The run is opened when its
    first steps are complete.

    Attributes:
        kind: The user's class.
        parameters: Passed to the class as strings.
    """

    code: ClassVar[str] = "user"

    def __init__(self, kind: type[Rule], parameters: Mapping[str, str] | None = None) -> None:
        self.label = kind.__name__
        self.kind = kind
        self.parameters = dict(parameters or {})
        self._place: Any = None
        self._rule: Rule | None = None

    def attach(self, source: Source) -> None:
        """Set the run that the rule judges. The runner calls this method before the first window."""
        self._place = source.where

    def needs(self) -> Need:
        """No captures: the needs of a user's code are unknown."""
        return Need(what="steps at which the tensors that the rule reads were saved")

    def check(self, window: Window) -> Iterator[Finding]:
        """Invoke the rule at each global step that is complete on all workers found so far, in order."""
        if window.memory.get("met"):
            return
        for row, step in _complete_steps(window):
            try:
                met = self._opened().judge(step, wait=False)
            except _NOT_THERE as error:
                window.missing(f"skipped: {type(error).__name__}", 1)
                continue
            except RuleEvaluationConditionMet:
                met = True
            window.judged(1)
            if not met:
                continue
            window.memory["met"] = True
            attempt, worker, mode, mode_step = row
            yield Finding(
                rule=self.label,
                code=self.code,
                step=step,
                mode=mode,
                mode_step=mode_step,
                worker=worker,
                attempt=attempt,
                tensor="",
                numbers={},
                why=f"the condition of {self.label} is met",
                do=(self.kind.__doc__ or "see the rule's own documentation").strip().splitlines()[0],
            )
            return

    def _opened(self) -> Rule:
        if self._rule is None:
            if self._place is None:
                raise ConfigError(f"{self.label} was given no run; use tdcore.rules.run or invoke_rule")
            from tdcore.trial import create_trial

            make: Callable[..., Rule] = self.kind
            try:
                self._rule = make(create_trial(self._place, compat=True), **self.parameters)
            except TypeError as error:
                raise ConfigError(
                    f"{self.label} does not take the parameters {self.parameters}: {error}"
                ) from error
        return self._rule


def _complete_steps(window: Window) -> list[tuple[tuple[int, str, str, int], int]]:
    """((attempt, worker, mode, mode_step), global step) of steps that all workers have completed, sorted.

    Global steps are those of the first worker by rank. If that worker has no steps of a mode, the steps of
    this mode cannot be compared and are ignored. A row of a step that was returned before is not a new step.
    """
    columns, memory = window.columns, window.memory
    waiting: dict[int, tuple[int, str, str, int]] = memory.setdefault("waiting", {})
    newest: dict[tuple[int, str], dict[str, int]] = memory.setdefault("newest", {})
    judged: dict[int, int] = memory.setdefault("judged", {})  # attempt -> the last step that was returned
    steps, attempts, mode_steps = columns.ints("step"), columns.ints("attempt"), columns.ints("mode_step")
    everything = np.arange(len(window), dtype=np.int64)
    for attempt, worker, mode, group in groups(columns, everything, "attempt", "worker", "mode"):
        of_mode = newest.setdefault((attempt, worker), {})
        of_mode[mode] = max(of_mode.get(mode, -1), int(steps[group].max()))
    for step, row in zip(*(found.tolist() for found in np.unique(steps, return_index=True)), strict=True):
        attempt, worker, mode = int(attempts[row]), columns.text("worker", row), columns.text("mode", row)
        if step > judged.get(attempt, -1):
            waiting.setdefault(step, (attempt, worker, mode, int(mode_steps[row])))
    going_on = [_reached(newest, pair) for pair in newest if pair not in window.ended]
    ready = sorted(step for step in waiting if not going_on or step <= min(going_on))
    for step in ready:
        attempt = waiting[step][0]
        judged[attempt] = max(step, judged.get(attempt, -1))
    return [(waiting.pop(step), step) for step in ready]


def _reached(newest: Mapping[tuple[int, str], Mapping[str, int]], pair: tuple[int, str]) -> int:
    """The highest global step of a worker, in the modes that the first worker of the attempt has."""
    from tdcore.trial.worker_order import first_worker

    first = newest[pair[0], first_worker(worker for attempt, worker in newest if attempt == pair[0])]
    shared = [step for mode, step in newest[pair].items() if mode in first]
    return max(shared or newest[pair].values())
