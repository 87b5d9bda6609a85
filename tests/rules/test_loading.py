"""Rules from text: names, parameters, users' own classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdcore.errors import ConfigError
from tdcore.rules import DeadRelu, ExplodingTensor, LossNotDecreasing, VanishingGradient
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.loading import load_rule

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
