"""Rules from text: names, parameters, classes of the user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import (
    RULES,
    DeadRelu,
    ExplodingTensor,
    LossNotDecreasing,
    NLPSequenceRatio,
    VanishingGradient,
)
from tdcore.rules.base import names_of
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.loading import load_rule, load_rules, table_rule, text_of
from tdcore.rules.step_range import with_step_range

OWN_RULES = """
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tdcore.rules import Finding, Need, Window
from tdcore.rules.legacy import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikyLoss:
    code: ClassVar[str] = "U001"
    factor: float = 2.0

    def needs(self) -> Need:
        return Need(what="losses")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from ()


class Older(Rule):
    def __init__(self, base_trial, threshold="1"):
        super().__init__(base_trial)
        self.threshold = float(threshold)

    def invoke_at_step(self, step):
        return step > self.threshold


class NoRule:
    pass
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own_rules.py"
    path.write_text(OWN_RULES)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "vanishing_gradient",
        "VanishingGradient",
        "vanishing-gradient",
        "VANISHINGGRADIENT",
        "TDC101",
        "tdc101",
    ],
)
def test_a_rule_is_found_by_name_in_any_spelling_or_by_code(name: str) -> None:
    assert load_rule(name) == VanishingGradient()


def test_parameters_become_what_the_fields_say() -> None:
    assert load_rule("vanishing_gradient:threshold=1e-6,ignore_zero=True") == VanishingGradient(
        threshold=1e-6, ignore_zero=True
    )
    assert load_rule(
        "loss_not_decreasing:num_steps=200,smoothing_steps=none,mode=TRAIN"
    ) == LossNotDecreasing(num_steps=200, mode="TRAIN")
    assert load_rule("dead_relu:unit_axis=-1") == DeadRelu(unit_axis=-1)


def test_a_list_goes_on_until_the_next_parameter() -> None:
    assert load_rule("exploding_tensor:tensor_regex=relu,(?<=a)b,only_nan=yes") == ExplodingTensor(
        tensor_regex="relu,(?<=a)b", only_nan=True
    )


def test_a_pattern_may_hold_a_colon() -> None:
    assert load_rule("exploding_tensor:tensor_regex=(?:a|b)") == ExplodingTensor(tensor_regex="(?:a|b)")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vanishing_gradent", "did you mean VanishingGradient"),
        ("vanishing_gradient:treshold=1", "no parameter 'treshold'; it has threshold, ignore_zero"),
        ("vanishing_gradient:threshold=small", "expected a number"),
        ("vanishing_gradient:ignore_zero=maybe", "expected true or false"),
        ("loss_not_decreasing:num_steps=1.5", "expected a whole number"),
        ("vanishing_gradient:1e-6", "write name=value"),
        ("vanishing_gradient:threshold=1,threshold=2", "gives 'threshold' twice"),
        ("vanishing_gradient:threshold=-1", "must be a number above 0"),
        ("no_such_module_x:Rule", "nor a module that can be imported"),
        ("json:JSONDecoder", "JSONDecoder is not a rule"),
        ("json:NoSuchClass", "json has no class 'NoSuchClass'"),
        ("no_such_file.py::Rule", "there is no file no_such_file.py"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(spec: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_rule(spec)
    assert message in str(caught.value)


def test_a_users_rule_comes_from_a_file(own: Path) -> None:
    rule = load_rule(f"{own}::SpikyLoss:factor=3")
    assert (type(rule).__name__, rule.code, rule.factor) == ("SpikyLoss", "U001", 3.0)  # type: ignore[attr-defined]


def test_a_users_rule_comes_from_a_module(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(own.parent))
    assert type(load_rule("own_rules:SpikyLoss")).__name__ == "SpikyLoss"


def test_a_rule_of_the_older_kind_comes_from_a_file(own: Path) -> None:
    assert isinstance(load_rule(f"{own}::Older:threshold=3"), LegacyRule)


def test_a_class_that_is_no_rule_is_refused(own: Path) -> None:
    with pytest.raises(ConfigError, match="NoRule is not a rule"):
        load_rule(f"{own}::NoRule")
    with pytest.raises(ConfigError, match="has no class 'Missing'; it has NoRule, Older, SpikyLoss"):
        load_rule(f"{own}::Missing")


def test_a_file_that_fails_to_load_is_reported_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"broken\.py could not be loaded: ZeroDivisionError"):
        load_rule(f"{path}::Rule")


def test_a_file_alone_is_every_rule_that_it_defines(own: Path) -> None:
    rules = load_rules([str(own)])
    assert [type(rule).__name__ for rule in rules] == ["SpikyLoss", "LegacyRule"]
    with pytest.raises(
        ConfigError, match=r"defines several rules; name one of them: .*::SpikyLoss, .*::Older"
    ):
        load_rule(str(own))


def test_a_file_with_one_rule_or_none(tmp_path: Path) -> None:
    one = tmp_path / "one.py"
    one.write_text(
        "from tdcore.rules import VanishingGradient\n"
        "from tdcore.rules.legacy import Rule\n"
        "class Mine(Rule):\n"
        "    def invoke_at_step(self, step):\n"
        "        return False\n"
        "class Unfinished(Rule):\n"
        "    pass\n"
    )
    rule = load_rule(str(one))
    assert isinstance(rule, LegacyRule)
    assert rule.label == "Mine"
    none = tmp_path / "none.py"
    none.write_text("x = 1")
    with pytest.raises(ConfigError, match=r"none\.py defines no rule"):
        load_rules([str(none)])


def test_rules_are_given_as_instances_classes_or_text() -> None:
    given = [VanishingGradient(threshold=1), DeadRelu, "TDC102"]
    assert load_rules(given) == [VanishingGradient(threshold=1), DeadRelu(), ExplodingTensor()]
    assert load_rules("dead_relu") == [DeadRelu()]


@pytest.mark.parametrize("what", [3, None, object(), int])
def test_what_is_no_rule_is_refused(what: object) -> None:
    with pytest.raises(ConfigError):
        load_rules([what])


def test_parameters_beside_the_text_are_joined_with_those_in_it() -> None:
    rule = load_rule("exploding_tensor:only_nan=true", {"tensor_regex": "a,b=c"})
    assert rule == ExplodingTensor(only_nan=True, tensor_regex="a,b=c")
    with pytest.raises(ConfigError, match="gets 'only_nan' twice"):
        load_rule("exploding_tensor:only_nan=true", {"only_nan": "true"})


def test_a_pattern_may_hold_two_colons() -> None:
    assert load_rule("exploding_tensor:tensor_regex=a::b") == ExplodingTensor(tensor_regex="a::b")


@pytest.mark.parametrize("code", list(RULES))
def test_the_text_of_every_rule_makes_it_again(code: str) -> None:
    rule = load_rule(code)
    text = text_of(rule)
    assert load_rule(text) == table_rule(text) == rule
    assert text.replace("_", "").isalnum()


@given(
    threshold=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    flags=st.tuples(st.booleans(), st.booleans()),
    bounds=st.tuples(st.integers(0, 50), st.none() | st.integers(51, 99)),
)
def test_the_text_of_a_rule_keeps_its_parameters_exactly(
    threshold: float, flags: tuple[bool, bool], bounds: tuple[int, int | None]
) -> None:
    ignore_zero, compat = flags
    rule = with_step_range(
        VanishingGradient(threshold=threshold, ignore_zero=ignore_zero, compat=compat), *bounds
    )
    assert load_rule(text_of(rule)) == rule


@pytest.mark.parametrize(
    "given", [["relu", "gelu"], ("relu",), "relu,gelu", "a{1,2}", ["a{1,2}", "b"], "a::b:c"]
)
def test_the_text_of_a_list_names_the_same_things(given: str | list[str]) -> None:
    again = load_rule(text_of(DeadRelu(tensor_regex=given)))
    assert isinstance(again, DeadRelu)
    assert names_of(again.tensor_regex) == names_of(given)


@pytest.mark.parametrize(
    ("given", "finds"), [(["x", "ge,lu"], "ge,lu"), ("x=1,y=2", "y=2"), (["x", "y=2,z"], "y=2,z")]
)
def test_commas_and_equals_signs_of_a_pattern_survive_the_text(given: str | list[str], finds: str) -> None:
    again = load_rule(text_of(DeadRelu(tensor_regex=given)))
    assert isinstance(again, DeadRelu)
    patterns = names_of(again.tensor_regex)
    assert len(patterns) == 2
    assert re.search(patterns[1], finds)


def test_numbers_in_a_list_survive_the_text() -> None:
    rule = NLPSequenceRatio(token_values=[0, 3], token_thresholds_percent=[50.5, 60])
    assert text_of(rule) == "nlp_sequence_ratio:token_values=0,3,token_thresholds_percent=50.5,60"
    assert load_rule(text_of(rule)).needs() == rule.needs()


@pytest.mark.parametrize("text", ["import sys\nsys.exit(3)", "def (", "1 / 0"])
def test_code_of_the_user_that_does_not_load_is_wrong_usage(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_rules_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"could not be loaded: (SystemExit|SyntaxError|ZeroDivisionError)"):
        load_rule(f"{tmp_path}/broken_rules_module.py::Mine")
    with pytest.raises(
        ConfigError, match=r"could not be imported: (SystemExit|SyntaxError|ZeroDivisionError)"
    ):
        load_rule("broken_rules_module:Mine")


@pytest.mark.parametrize("spec", ["..x:Mine", ":Mine"])
def test_a_module_is_named_in_full(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"nor a module that can be imported"):
        load_rule(spec)


def test_the_text_of_a_users_rule_says_where_its_class_is(own: Path) -> None:
    spiky, older = load_rules([f"{own}::SpikyLoss:factor=3", f"{own}::Older:threshold=5"])
    assert text_of(spiky) == f"{own}::SpikyLoss:factor=3.0"
    assert text_of(older) == f"{own}::Older:threshold=5"
    assert load_rule(text_of(spiky)) == spiky
    assert table_rule(text_of(spiky)) is None


@pytest.mark.parametrize("spec", ["own.py::Rule", "own.py", "os:system", "", "::", "nonsense", ":"])
def test_a_table_rule_is_nothing_but_a_rule_of_the_table(spec: str) -> None:
    assert table_rule(spec) is None
