"""An analysis of a run with trials and rules of smdebug, as its users write it (tests/compat/test_shim.py).

Prints a JSON document: names by collection, steps by mode, and where a rule of the script fires.
"""

import argparse
import json

import numpy as np
from smdebug.analysis.utils import no_refresh
from smdebug.core.modes import ModeKeys
from smdebug.exceptions import (
    NoMoreData,
    RuleEvaluationConditionMet,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from smdebug.rules import Rule, invoke_rule
from smdebug.trials import create_trial


class SmallGradients(Rule):
    """Fires at the first training step where the mean of all |gradients| is below a threshold."""

    def __init__(self, base_trial, threshold="0.0001", first_step="0"):
        super().__init__(base_trial, action_str="")
        self.threshold = float(threshold)
        self.first_step = int(first_step)

    def set_required_tensors(self, step):
        for name in self.base_trial.tensor_names(collection="gradients"):
            if step in self.base_trial.tensor(name).steps():
                self.req_tensors.add(name, steps=[step])

    def invoke_at_step(self, step):
        if step < self.first_step:
            return False
        means = [
            tensor.reduction_value(step, "mean", abs=True)
            for tensor in self.req_tensors.get()
            if step in tensor.steps()
        ]
        return len(means) > 0 and float(np.mean(means)) < self.threshold


def fired_at(trial, threshold, first_step):
    rule = SmallGradients(trial, threshold=threshold, first_step=first_step)
    try:
        invoke_rule(rule, start_step=0, end_step=10, raise_eval_cond=True)
    except RuleEvaluationConditionMet as met:
        return int(met.step)
    except (NoMoreData, StopIteration):
        pass
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    args = parser.parse_args()
    trial = create_trial(args.path)
    report = {"collections": {}, "steps": {}, "tensor_steps": {}, "values": {}}
    with no_refresh([trial]):
        for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            report["steps"][mode.name] = [int(step) for step in trial.steps(mode=mode)]
        for name in ("weights", "gradients", "losses", "activations"):
            report["collections"][name] = sorted(trial.tensor_names(collection=name))
        for names in report["collections"].values():
            for name in names:
                tensor = trial.tensor(name)
                report["tensor_steps"][name] = [int(step) for step in tensor.steps(mode=ModeKeys.TRAIN)]
        for name in report["collections"]["losses"]:
            for step, value in sorted(trial.tensor(name).values(mode=ModeKeys.TRAIN).items()):
                report["values"][str(step)] = float(np.mean(value))
        try:
            trial.tensor(report["collections"]["losses"][0]).value(10**6)
        except (StepUnavailable, StepNotYetAvailable, TensorUnavailableForStep):
            report["missing"] = True
    report["fired"] = fired_at(trial, "1000", "3")
    report["quiet"] = fired_at(trial, "0", "0")
    print("REPORT " + json.dumps(report))


if __name__ == "__main__":
    main()
