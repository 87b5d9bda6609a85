"""The capture configuration for a set of rules contains everything that one of the rules needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcore
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.hook_json import hook_document, parse_hook_config
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.modes import ModeKeys
from tdcore.rules import (
    RULES,
    ExplodingTensor,
    Finding,
    LossNotDecreasing,
    RuleProtocol,
    VanishingGradient,
    Window,
)
from tdcore.rules.loading import load_rules
from tdcore.rules.planning import joined, plan, plan_as_code, united
from tdcore.rules.requirements import STATISTICS, VALUES, Need, as_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """A rule that needs these collections."""

    code: ClassVar[str] = "T001"
    captures: tuple[CollectionConfig, ...] = ()

    def needs(self) -> Need:
        return Need(what="what it asks for", captures=self.captures)

    def check(self, window: Window) -> Iterator[Finding]:
        yield from ()


steps = st.integers(0, 60)
mode_configs = st.builds(
    SaveConfigMode,
    save_interval=st.integers(1, 24),
    start_step=steps,
    end_step=st.none() | steps,
    save_steps=st.lists(steps, max_size=3),
)
save_configs = st.builds(
    lambda rest, modes: SaveConfig(
        save_interval=rest.save_interval,
        start_step=rest.start_step,
        end_step=rest.end_step,
        save_steps=rest.save_steps,
        mode_save_configs=modes,
    ),
    mode_configs,
    st.dictionaries(st.sampled_from(ModeKeys), mode_configs, max_size=4),
)
names = st.lists(st.sampled_from(["a", "b.*", "relu", r"\d", 'q"', "it's"]), max_size=3)
reductions = st.builds(
    ReductionConfig,
    reductions=st.lists(st.sampled_from(["min", "prod"]), max_size=2),
    abs_reductions=st.lists(st.sampled_from(["max", "mean"]), max_size=2),
    norms=st.lists(st.sampled_from(["l1", "l2"]), max_size=2),
    abs_norms=st.lists(st.sampled_from(["l1"]), max_size=1),
    save_raw_tensor=st.booleans(),
)
captures = st.builds(
    CollectionConfig,
    name=st.sampled_from(["gradients", "weights", "mine"]),
    include_regex=names,
    tensor_names=names,
    module_regex=names,
    save_config=st.none() | save_configs,
    reduction_config=st.none() | reductions,
)
rule_sets = st.lists(st.builds(Asks, captures=st.lists(captures, max_size=2).map(tuple)), max_size=4)


def gives(here: CollectionConfig, wanted: CollectionConfig) -> bool:
    """Return whether collection `here` captures the tensors of `wanted`, at its steps and in its form."""
    if here.name.partition("_")[0] != wanted.name:
        return False
    for field in ("include_regex", "tensor_names", "module_regex"):
        if not {*getattr(here, field)} >= {*getattr(wanted, field)}:
            return False
    if wanted.reduction_config is not None:
        if here.reduction_config is None:
            return False
        if wanted.reduction_config.save_raw_tensor and not here.reduction_config.save_raw_tensor:
            return False
        if not {*here.reduction_config.reductions} >= {*wanted.reduction_config.reductions}:
            return False
    when = wanted.save_config
    return when is None or (
        here.save_config is not None
        and all(
            here.save_config.should_save_step(mode, step)
            for mode in ModeKeys
            for step in range(130)
            if when.should_save_step(mode, step)
        )
    )


@given(rule_sets)
def test_every_step_tensor_and_form_that_a_rule_wants_is_in_the_plan(rules: list[Asks]) -> None:
    planned = plan(rules)
    for rule in rules:
        for wanted in rule.captures:
            assert any(gives(here, wanted) for here in planned)
    assert len({here.name for here in planned}) == len(planned)


@given(rule_sets)
def test_the_json_of_a_plan_is_read_back_as_the_plan(rules: list[Asks]) -> None:
    planned = plan(rules)
    document = json.loads(json.dumps(hook_document(planned, "runs/x")))
    config = parse_hook_config(document)
    assert config.out_dir == "runs/x"
    assert config.collections == planned


@given(captures)
def test_the_python_text_of_a_collection_makes_it_again(capture: CollectionConfig) -> None:
    known = ("CollectionConfig", "SaveConfig", "SaveConfigMode", "ReductionConfig", "modes")
    assert eval(as_code(capture), {name: getattr(tdcore, name) for name in known}) == capture


@given(save_configs, save_configs)
def test_two_save_configs_joined_save_the_steps_of_both_whichever_comes_first(
    one: SaveConfig, other: SaveConfig
) -> None:
    there, back = united(one, other), united(other, one)
    for mode in ModeKeys:
        for step in range(130):
            if one.should_save_step(mode, step) or other.should_save_step(mode, step):
                assert there.should_save_step(mode, step)
                assert back.should_save_step(mode, step)


def test_a_few_steps_at_the_start_do_not_make_the_rest_fine() -> None:
    start, rest = SaveConfig(save_interval=1, end_step=20), SaveConfig(save_interval=100, save_steps=[3, 50])
    for both in (united(start, rest), united(rest, start)):
        saved = [step for step in range(301) if both.should_save_step(ModeKeys.TRAIN, step)]
        assert saved == [*range(20), 50, 100, 200, 300]


def test_steps_alone_do_not_make_the_rest_fine() -> None:
    alone = SaveConfig(end_step=0, save_steps=[0, 7])
    assert united(alone, SaveConfig(save_interval=7, start_step=1)) == SaveConfig(
        save_interval=7, start_step=1, save_steps=[0]
    )


@given(save_configs)
def test_a_save_config_joined_with_itself_saves_the_same_steps(when: SaveConfig) -> None:
    both = united(when, when)
    assert all(
        both.should_save_step(mode, step) == when.should_save_step(mode, step)
        for mode in ModeKeys
        for step in range(130)
    )


def test_intervals_that_divide_each_other_become_the_finer_and_others_their_common_divisor() -> None:
    assert united(SaveConfig(save_interval=100), SaveConfig(save_interval=20)) == SaveConfig(save_interval=20)
    assert united(SaveConfig(save_interval=10), SaveConfig(save_interval=15)) == SaveConfig(save_interval=5)


def test_values_win_over_statistics() -> None:
    one = CollectionConfig(name="weights", reduction_config=STATISTICS)
    other = CollectionConfig(name="weights", reduction_config=VALUES)
    assert joined(one, other).reduction_config == joined(other, one).reduction_config == VALUES


def test_rules_that_need_the_same_collection_share_it() -> None:
    rules: list[RuleProtocol] = [VanishingGradient(), ExplodingTensor(), LossNotDecreasing(num_steps=200)]
    assert [each.name for each in plan(rules)] == ["gradients", "losses"]


def test_names_that_mean_different_tensors_in_different_forms_are_kept_apart() -> None:
    everything = CollectionConfig(name="watched", include_regex=[".*"], reduction_config=STATISTICS)
    few = CollectionConfig(name="watched", include_regex=["relu"], reduction_config=VALUES)
    planned = plan([Asks(captures=(everything,)), Asks(captures=(few,))])
    assert [(each.name, each.reduction_config) for each in planned] == [
        ("watched", STATISTICS),
        ("watched_2", VALUES),
    ]


def test_classes_of_modules_in_different_forms_are_kept_apart_too() -> None:
    inputs = CollectionConfig(name="watched", module_regex=["^ReLU_input"], reduction_config=STATISTICS)
    values = CollectionConfig(name="watched", module_regex=["^Tanh_input"], reduction_config=VALUES)
    assert [each.name for each in plan([Asks(captures=(inputs, values))])] == ["watched", "watched_2"]


def test_no_rules_need_nothing() -> None:
    assert plan([]) == ()


@pytest.mark.parametrize("codes", [["TDC101", "TDC104"], list(RULES)])
def test_the_python_text_of_a_plan_runs(codes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import tdcore.hooks.pytorch

    added: list[CollectionConfig] = []

    class Hook:
        def __init__(self, out_dir: str) -> None:
            assert out_dir == "runs/demo"

        def add_collection(self, collection: CollectionConfig) -> None:
            added.append(collection)

    monkeypatch.setattr(tdcore.hooks.pytorch, "Hook", Hook)
    planned = plan(load_rules(codes))
    exec(plan_as_code(planned, "runs/demo", ["x"]), {})
    assert tuple(added) == planned
