"""Requirements of rules: missing captures are reported at once, but not those that may still come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.rules import (
    ClassImbalance,
    DeadRelu,
    Engine,
    ExplodingTensor,
    Finding,
    LossNotDecreasing,
    RuleProtocol,
    Status,
    VanishingGradient,
    Verdict,
    Window,
    run,
)
from tdcore.rules.requirements import Need, run_capture, unmatched_collections, why_not_evaluable
from tdcore.rules.run_source import RunSource
from tests.rules.trainings import blobs, network, train
from tests.trial.writer import RunWriter

GRADIENTS, WEIGHTS, LOSSES = ["^gradient"], ["^(?!gradient).*weight"], ["[Ll]oss_(?!input).*output"]
NEEDS_GRADIENTS = Need(what="gradients", kinds=("gradient",))
NEEDS_GRADIENT_VALUES = Need(what="gradient values", kinds=("gradient",), payload=True)


def entry(
    regex: list[str], *, included: bool = True, interval: int = 1, values: bool = False, names: Any = ()
) -> dict[str, Any]:
    """Return an entry of collections.json as a hook writes it."""
    return {
        "include_regex": regex,
        "tensor_names": list(names),
        "save_config": td.SaveConfig(save_interval=interval).to_json_dict(),
        "reduction_config": td.ReductionConfig(save_raw_tensor=values).to_json_dict(),
        "included": included,
    }


def lack(need: Need, *, seen: bool = False, ended: bool = False, **collections: dict[str, Any]) -> str:
    return why_not_evaluable(need, run_capture(collections), seen=seen, ended=ended)


def test_kinds_that_no_saved_collection_holds_are_lacking() -> None:
    said = lack(NEEDS_GRADIENTS, losses=entry(LOSSES), weights=entry(WEIGHTS))
    assert said == "the run does not save gradients: its collections are losses, weights"


def test_a_collection_that_only_exists_does_not_count() -> None:
    found = lack(NEEDS_GRADIENTS, losses=entry(LOSSES), gradients=entry(GRADIENTS, included=False))
    assert found == "the run does not save gradients: its collections are losses"


def test_statistics_alone_are_lacking_where_values_are_needed() -> None:
    said = lack(NEEDS_GRADIENT_VALUES, losses=entry(LOSSES, values=True), gradients=entry(GRADIENTS))
    assert said == "the run saves statistics of 'gradients' only, and this rule needs values"


@pytest.mark.parametrize(
    "collections",
    [
        {"gradients": entry(GRADIENTS)},
        {"all": entry([".*"])},
        {"mine": entry(["fc"])},  # a pattern that may match a gradient
        {"mine": entry([])},  # names that the file does not contain before they are captured
        {"weights": entry([*WEIGHTS, "fc1"])},  # a built-in collection with a pattern of the user's
    ],
)
def test_nothing_is_lacking_where_a_collection_may_hold_it(collections: dict[str, Any]) -> None:
    assert lack(NEEDS_GRADIENTS, losses=entry(LOSSES), **collections) == ""


@pytest.mark.parametrize("kind", ["scalar", "loss", "custom", "metric"])
def test_what_a_script_may_record_by_hand_may_always_come(kind: str) -> None:
    assert lack(Need(what="it", kinds=(kind,)), weights=entry(WEIGHTS)) == ""
    assert lack(Need(what="it", kinds=(kind,), payload=True), all=entry([".*"])) == ""


def test_tensors_named_by_a_pattern_may_come_by_hand_until_they_were_seen_without_values() -> None:
    need = Need(what="values of relu", payload=True)
    assert lack(need, outputs=entry(["_output_"])) == ""
    assert lack(need, seen=True, outputs=entry(["_output_"])) == (
        "the run saves statistics of 'outputs' only, and this rule needs values"
    )
    assert lack(need, seen=True, outputs=entry(["_output_"]), mine=entry(["relu"], values=True)) == ""


def test_a_coarse_interval_explains_the_lack_only_once_the_run_has_ended() -> None:
    need = LossNotDecreasing(num_steps=100).needs()
    assert lack(need, losses=entry(LOSSES, interval=500)) == ""
    said = lack(need, ended=True, losses=entry(LOSSES, interval=500))
    assert said.startswith(
        "'losses' is saved every 500 steps, which is not enough: the rule needs a scalar loss"
    )
    assert lack(need, ended=True, losses=entry(LOSSES, interval=10)) == ""


NEEDS_LABELS = Need(
    what="labels",
    captures=(td.CollectionConfig(name="labels", include_regex=["y$"], module_regex=["^Loss_input"]),),
)


def test_a_collection_that_is_saved_and_holds_no_tensor_explains_the_lack() -> None:
    labels = entry(["y$"]) | {"module_regex": ["^Loss_input"]}
    said = lack(NEEDS_LABELS, ended=True, labels=labels)
    assert said.startswith("the run saves 'labels', but has no tensors with matching names (y$, ^Loss_input)")
    assert lack(NEEDS_LABELS, labels=labels) == ""
    assert lack(NEEDS_LABELS, ended=True, seen=True, labels=labels) == ""


@pytest.mark.parametrize(
    "collections",
    [
        {},
        {"labels": entry(["y$"])},
        {"labels": entry(["y$"], names=["y"]) | {"module_regex": ["^Loss_input"]}},
        {"labels": entry(["y$"]) | {"module_regex": [3, "^Loss"]}},
        {"labels": entry(["y$"]) | {"module_regex": "^Loss_input"}},
        {"labels": entry(["y$"], included=False) | {"module_regex": ["^Loss_input"]}},
    ],
)
def test_a_collection_that_is_not_saved_as_asked_or_holds_tensors_is_not_called_empty(
    collections: dict[str, Any],
) -> None:
    assert unmatched_collections(NEEDS_LABELS, run_capture(collections)) == []


def test_a_need_without_names_of_its_own_is_never_called_empty() -> None:
    need = Need(what="gradients", captures=(td.CollectionConfig(name="gradients"),))
    assert unmatched_collections(need, run_capture({"gradients": entry(GRADIENTS)})) == []


@pytest.mark.parametrize(
    "collections", [{}, {"gradients": {"include_regex": [], "tensor_names": []}}, {"mine": {"included": 1}}]
)
def test_a_run_that_does_not_say_what_it_saves_lacks_nothing_for_certain(collections: dict[str, Any]) -> None:
    assert run_capture(collections) is None
    assert lack(NEEDS_GRADIENTS, ended=True, **collections) == ""


def test_damaged_settings_in_a_run_are_read_as_unknown() -> None:
    hostile = {
        "included": True,
        "save_config": {"TRAIN": {"save_interval": "x"}, "EVAL": 3},
        "include_regex": None,
    }
    assert lack(NEEDS_GRADIENT_VALUES, ended=True, gradients=hostile) == ""


# A live run. ---------------------------------------------------------------------------------------------


class Running:
    """A live run that saves a weight at each step, and whose collections.json lists these collections."""

    def __init__(self, place: Path, rule: RuleProtocol, **collections: dict[str, Any]) -> None:
        self.writer, self.step = RunWriter(place), 0
        self.engine = Engine(RunSource(place, clock=lambda: 0.0), [rule])
        self.says(**collections)

    def says(self, **collections: dict[str, Any]) -> None:
        self.writer.put("collections.json", {"format": 1, "attempts": {"0": {"collections": collections}}})

    def saves(self, name: str, kind: str) -> Verdict:
        """Return the verdict after one more step."""
        self.writer.add(name, np.ones(3), step=self.step, kind=kind)
        self.writer.flush()
        self.step += 1
        self.engine.step()
        (verdict,) = self.engine.verdicts(finished=False)
        return verdict


def test_while_the_run_goes_on_the_verdict_says_what_it_does_not_save(tmp_path: Path) -> None:
    running = Running(tmp_path, VanishingGradient(), weights=entry(WEIGHTS))
    assert running.saves("w.weight", "weight").status is Status.IN_PROGRESS  # no step is complete yet
    verdict = running.saves("w.weight", "weight")
    assert verdict.status is Status.NOT_EVALUABLE
    assert verdict.reason == "the run does not save gradients: its collections are weights"
    assert verdict.fix.startswith('CollectionConfig(name="gradients"')


def test_a_collection_that_is_added_later_takes_the_verdict_back(tmp_path: Path) -> None:
    running = Running(tmp_path, VanishingGradient(), weights=entry(WEIGHTS))
    running.saves("w.weight", "weight")
    assert running.saves("w.weight", "weight").status is Status.NOT_EVALUABLE
    running.says(weights=entry(WEIGHTS), gradients=entry(GRADIENTS))
    assert running.saves("w.weight", "weight").status is Status.IN_PROGRESS
    running.saves("gradient/w.weight", "gradient")
    verdict = running.saves("gradient/w.weight", "gradient")
    assert (verdict.status, verdict.judged) == (Status.IN_PROGRESS, 1)


def test_a_new_attempt_that_has_not_said_what_it_saves_is_in_progress(tmp_path: Path) -> None:
    running = Running(tmp_path, VanishingGradient(), weights=entry(WEIGHTS))
    running.saves("w.weight", "weight")
    running.saves("w.weight", "weight")
    running.writer = RunWriter(tmp_path, attempt=1)
    assert running.saves("w.weight", "weight").status is Status.IN_PROGRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotSay:
    """A user's rule with a faulty `needs`."""

    code: ClassVar[str] = "U9"

    def needs(self) -> Need:
        raise ZeroDivisionError("no need")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from ()


def test_a_rule_that_cannot_say_what_it_needs_is_an_error_and_stops_no_other(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    add_weight(writer, 0)
    writer.end()
    wrong, other = run(tmp_path, [CannotSay(), ExplodingTensor()]).verdicts
    assert (wrong.status, other.status) == (Status.ERROR, Status.NO_ISSUE)
    assert wrong.reason.startswith("ZeroDivisionError: no need")


# Real trainings. -------------------------------------------------------------------------------------------


def verdict_of(place: Path, rule: RuleProtocol) -> Verdict:
    (verdict,) = run(place, [rule], write_findings=False).verdicts
    return verdict


def test_a_training_that_saves_losses_only_is_told_so(losses_run: Path) -> None:
    verdict = verdict_of(losses_run, VanishingGradient())
    assert verdict.status is Status.NOT_EVALUABLE
    assert verdict.reason == "the run does not save gradients: its collections are losses"


def test_a_training_that_saves_statistics_only_is_told_so(statistics_run: Path) -> None:
    verdict = verdict_of(statistics_run, DeadRelu())
    assert verdict.status is Status.NOT_EVALUABLE
    assert "the run saves statistics of" in verdict.reason
    assert "save_raw_tensor=True" in verdict.fix


def test_a_rule_whose_tensors_the_run_has_under_other_names_is_told_so_and_not_to_capture_again(
    tmp_path: Path,
) -> None:
    with Hook(tmp_path, rules=["class_imbalance"], flusher="thread") as hook:
        model = network()
        hook.register_module(model)
        for inputs, _ in blobs(2):
            model(inputs)
            hook.record_tensor_value("my_loss", 1.0)
    verdict = verdict_of(tmp_path, ClassImbalance())
    assert verdict.status is Status.NOT_EVALUABLE
    assert (
        "the run saves 'labels' and 'predictions', but has no tensors with matching names" in verdict.reason
    )
    assert (verdict.fix, verdict.captures) == ("", ())


def test_a_training_that_saves_too_seldom_is_told_so(tmp_path: Path) -> None:
    train(tmp_path / "run", network(), blobs(24), every=12)
    verdict = verdict_of(tmp_path / "run", LossNotDecreasing(num_steps=20))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "saved every 12 steps" in verdict.reason


def test_a_training_that_goes_on_is_told_at_once_and_only_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    said: list[str] = []

    def enough(verdict: Verdict) -> None:
        said.append(verdict.reason)
        raise KeyboardInterrupt

    hook = Hook(
        tmp_path / "run",
        include_collections=["weights"],
        save_config=td.SaveConfig(save_interval=1),
        flusher="thread",
    )
    with hook:
        hook.register_module(model)
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
        report = run(tmp_path / "run", [VanishingGradient()], live=True, on_lacking=enough)
    assert said == ["the run does not save gradients: its collections are losses, weights"]
    assert report.verdicts[0].status is Status.NOT_EVALUABLE
    assert report.exit_code == 3


def test_following_tells_of_each_rule_once(tmp_path: Path) -> None:
    from tdcore.rules.runner import follow

    running = Running(tmp_path, VanishingGradient(), weights=entry(WEIGHTS))
    source = running.engine.source
    steps = [partial(add_weight, running.writer, step) for step in range(4)]
    script: list[Callable[[], object]] = [*steps, running.writer.end]
    said: list[str] = []

    def wait(seconds: float) -> None:
        script.pop(0)()

    follow(
        running.engine,
        source,
        until_end=True,
        poll_interval=timedelta(0),
        on_lacking=lambda verdict: said.append(verdict.rule),
        wait=wait,
    )
    assert said == ["VanishingGradient"]


def add_weight(writer: RunWriter, step: int) -> None:
    writer.add("w.weight", np.ones(3), step=step)
    writer.flush()
