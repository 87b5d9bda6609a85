"""Rules, actions and options from a file; every error message contains its place in the file."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tdcore.actions import LogFindings, RequestStop
from tdcore.errors import ConfigError
from tdcore.rules import DeadRelu, ExplodingTensor, VanishingGradient
from tdcore.rules.config_file import RulesConfig, load_rules_config
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.step_range import with_step_range

OWN = """
from tdcore.rules.legacy import Rule

class Older(Rule):
    def __init__(self, base_trial, threshold="1"):
        super().__init__(base_trial)

    def invoke_at_step(self, step):
        return False
"""


def read(folder: Path, text: str, name: str = "rules.yaml") -> RulesConfig:
    (folder / name).write_text(text)
    return load_rules_config(folder / name)


def test_rules_are_names_texts_or_names_with_parameters(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        rules:
          - vanishing_gradient
          - TDC101:threshold=1e-6
          - exploding_tensor: {tensor_regex: [relu, gelu], only_nan: true}
          - VanishingGradient:
              threshold: 1e-6         # which YAML takes for a text
              start_step: 10
              end_step: 20
          - dead_relu:
        """,
    )
    assert config.rules == (
        VanishingGradient(),
        VanishingGradient(threshold=1e-6),
        ExplodingTensor(tensor_regex="relu,gelu", only_nan=True),
        with_step_range(VanishingGradient(threshold=1e-6), 10, 20),
        DeadRelu(),
    )


def test_a_file_of_rules_is_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    config = read(tmp_path, "rules: [own.py, 'own.py::Older:threshold=3', {'own.py::Older': {threshold: 4}}]")
    parameters = [rule.parameters for rule in config.rules if isinstance(rule, LegacyRule)]
    assert parameters == [{}, {"threshold": "3"}, {"threshold": "4"}]


def test_actions_are_texts_or_names_with_settings(tmp_path: Path) -> None:
    config = read(tmp_path, "actions: [stop, log, {stop: {}}, {action: log}, {stop: }]")
    kinds = [RequestStop, LogFindings, RequestStop, LogFindings, RequestStop]
    assert [type(action) for action in config.actions] == kinds


def test_options_become_arguments_of_run(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        live: true
        until_end: false
        attempt: all
        start_step: 5
        end_step: 10
        ended: true
        write_findings: false
        start_timeout: 60
        timeout: 0.5
        poll_interval: 2
        max_findings: 10
        """,
    )
    assert config.options == {
        "live": True,
        "until_end": False,
        "attempt": "all",
        "start_step": 5,
        "end_step": 10,
        "ended": True,
        "write_findings": False,
        "start_timeout": timedelta(seconds=60),
        "timeout": timedelta(seconds=0.5),
        "poll_interval": timedelta(seconds=2),
        "max_findings": 10,
    }


def test_every_option_is_an_argument_of_run() -> None:
    import inspect

    from tdcore.rules import run
    from tdcore.rules.config_file import _OPTIONS

    assert set(_OPTIONS) <= set(inspect.signature(run).parameters)


def test_an_option_that_is_left_empty_is_not_given(tmp_path: Path) -> None:
    assert read(tmp_path, "timeout:\nrules:\nactions:\n") == RulesConfig()


def test_json_says_the_same(tmp_path: Path) -> None:
    document = {"rules": [{"vanishing_gradient": {"threshold": 1e-6}}], "live": True}
    config = read(tmp_path, json.dumps(document), "rules.json")
    assert config == RulesConfig(rules=(VanishingGradient(threshold=1e-6),), options={"live": True})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule: [x]", "unknown key 'rule'; did you mean 'rules'?"),
        ("zzz: 1", "unknown key 'zzz'; known keys: rules, actions, live"),
        ("- vanishing_gradient", "the file must be a mapping of names to values, got a list"),
        ("", "the file is empty; write at least one rule, such as `rules: [vanishing_gradient]`"),
        ("rules: vanishing_gradient", "rules must be a list, got a text"),
        ("rules: [nonsense]", "rules[0]: there is no rule 'nonsense'"),
        ("rules: [dead_relu, {TDC101: {treshold: 1}}]", "rules[1]: VanishingGradient has no parameter"),
        ("rules: [{TDC101: {threshold: small}}]", "rules[0]: VanishingGradient.threshold is 'small'"),
        ("rules: [{vanishing_gradient: {threshold: {a: 1}}}]", "vanishing_gradient.threshold must be a text"),
        ("rules: [{vanishing_gradient: 3}]", "must be a mapping of names to values, got a number"),
        ("rules: [{a: {}, b: {}}]", "rules[0]: expected one name with its settings, got a, b; write"),
        ("rules: [3]", "rules[0]: a rule must be a text, or a name with its settings, got a number or flag"),
        ("actions: [3]", "actions[0]: an action must be a text, or a name with its settings"),
        ("rules: [{'TDC101:threshold=1': {threshold: 2}}]", "gets 'threshold' twice"),
        ("actions: [explode]", "actions[0]: "),
        ("live: 3", "live must be true or false, got 3"),
        ("attempt: first", "attempt must be a whole number from 0, got 'first'"),
        ("timeout: soon", "timeout must be a number of seconds from 0, got 'soon'"),
        ("timeout: -1", "timeout must be a number of seconds from 0, got -1"),
        ("timeout: .nan", "timeout must be a number of seconds from 0, got nan"),
        ("live: true\nlive: false", "line 2: 'live' is given twice"),
        ("rules: [", "not YAML: "),
        ("rules: !!python/object/apply:os.system ['true']", "not YAML: could not determine a constructor"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"rules file {tmp_path / 'rules.yaml'}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"live": true, "live": false}', "'live' is given twice"), ("{", "not JSON: "), ("[1]", "got a list")],
)
def test_what_is_wrong_in_json_is_said_too(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, "rules.json")
    assert message in str(caught.value)


@pytest.mark.parametrize("data", [None, b"\xff\xfe\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "rules.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"rules\.yaml cannot be read: "):
        load_rules_config(path)


def test_a_secret_in_an_action_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "actions: [{webhook: 'https://example.org/T0K3N'}]")
    assert "T0K3N" not in str(caught.value)
