"""Actions from text and from configuration files."""

from __future__ import annotations

from typing import Any

import pytest

from tdcore.actions import (
    SMS,
    ActionList,
    CaptureMore,
    CloudWatchEvent,
    CloudWatchMetric,
    Command,
    Email,
    LogFindings,
    RequestStop,
    StopSageMakerJob,
    Webhook,
    action_from_config,
    load_action,
)
from tdcore.actions.loading import ACTIONS
from tdcore.errors import ConfigError


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("stop", RequestStop),
        ("StopTraining", RequestStop),  # the name in smdebug
        ("RequestStop", RequestStop),
        ("log", LogFindings),
        ("email:address=a@b.org", Email),
        ("SMS:number=+49 151 1234567,topic=mine", SMS),
        ("webhook:url=https://example.org/a,b?c=d,e=f", Webhook),
        ("command:argv=notify-send -u critical 'a, b=c'", Command),
        ("capture_more:steps=20", CaptureMore),
        (
            "CaptureMore:steps=5, regex=^a{1,2}|b,level=statistics,again_after=90,modes=TRAIN|EVAL",
            CaptureMore,
        ),
        ("cloudwatch_metric", CloudWatchMetric),
        ("cloudwatch-metric:namespace=a/b,region=us-west-2", CloudWatchMetric),
        ("cloudwatch_event:bus=mine,max_listed=3", CloudWatchEvent),
        ("stop_sagemaker_job:job_name_prefix=My-Job", StopSageMakerJob),
    ],
)
def test_an_action_is_loaded_from_text(spec: str, kind: type[Any]) -> None:
    assert isinstance(load_action(spec), kind)


def test_a_values_text_goes_on_to_the_next_parameter() -> None:
    command = load_action("command:argv=say 'a,b' x=1,timeout=5,shell=false")
    webhook = load_action("webhook:url=https://example.org/a,b?c=d,timeout=2.5")
    more = load_action("capture_more:tensors=a|b,steps=3,regex=^a{1,2}$")
    assert isinstance(command, Command)
    assert isinstance(webhook, Webhook)
    assert isinstance(more, CaptureMore)
    assert (command._argv, command._timeout) == (["say", "a,b", "x=1"], 5.0)
    assert (webhook._url, webhook._timeout) == ("https://example.org/a,b?c=d", 2.5)
    assert (more._names, [each.pattern for each in more._patterns]) == (("a", "b"), ["^a{1,2}$"])


@pytest.mark.parametrize("name", ACTIONS)
def test_every_parameter_in_the_table_is_one_of_the_class(name: str) -> None:
    import importlib
    import inspect

    module, class_name, known = ACTIONS[name]
    made = getattr(importlib.import_module(f"tdcore.actions.{module}"), class_name)
    names = {
        parameter
        for each in made.__mro__
        if "__init__" in vars(each)
        for parameter in inspect.signature(each.__init__).parameters
    }
    assert set(known) <= names


def test_a_value_can_come_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "https://example.org/secret")
    for action in (
        load_action("webhook:url=env:HOOK"),
        action_from_config({"action": "webhook", "url": "env:HOOK"}),
    ):
        assert isinstance(action, Webhook)
        assert action._url == "https://example.org/secret"
    monkeypatch.setenv("TOKEN", "a b")
    command = action_from_config({"action": "command", "argv": ["say", "env:TOKEN"]})
    assert isinstance(command, Command)
    assert command._argv == ["say", "a b"]


@pytest.mark.parametrize("value", ["http://example.org/SECRET", "ftp://x/SECRET", "SECRET"])
def test_a_secret_that_does_not_fit_is_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", value)
    for spec in (f"webhook:url={value}", "webhook:url=env:HOOK", f"webhook:{value}",
                 "webhook:url=https://example.org,timeout=env:HOOK"):  # fmt: skip
        with pytest.raises(ConfigError) as raised:
            load_action(spec)
        assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ("capture_more:steps=3", CaptureMore),
        ({"action": "capture_more", "steps": 3, "regex": ["a", "b,c"], "again_after": None}, CaptureMore),
        ({"action": "webhook", "url": "http://example.org", "allow_http": True, "timeout": 3}, Webhook),
        ({"name": "email", "endpoint": "First.Last@Example.org"}, Email),
        ({"name": "sms", "endpoint": "+4915112345678"}, SMS),
        ({"name": "stoptraining"}, RequestStop),
    ],
)
def test_an_action_is_made_from_a_configuration(config: Any, kind: type[Any]) -> None:
    assert isinstance(action_from_config(config), kind)


def test_the_older_librarys_prefix_keeps_its_capitals() -> None:
    action = action_from_config({"name": "StopTraining", "training_job_prefix": "My-Job"})
    assert isinstance(action, StopSageMakerJob)
    assert action._prefix == "My-Job"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mail:address=a@b.org", "there is no action 'mail'.*did you mean email.*actions are capture_more, "),
        ("", "there is no action ''"),
        ("email", "action email lacks address=; its parameters are address, topic, region"),
        ("email:adress=a@b.org", "action email has no parameter 'adress'; it has address"),
        ("email:a@b.org", "a parameter is written name=value"),
        ("stop:now=1", "action stop has no parameter 'now'; it has none"),
        ("capture_more:steps=many", "action capture_more, steps: expected a whole number, got 'many'"),
        ("capture_more:steps=0", "steps must be 1 to 1000"),
        ("capture_more:regex=(", "not a regular expression"),
        ("capture_more:again_after=soon", "expected a number of seconds"),
        ("capture_more:steps=1,steps=2", "is given 'steps' twice"),
        ("webhook:url=https://example.org,allow_http=maybe", "expected true or false"),
        ("webhook:url=env:NOT_THERE", "the environment variable 'NOT_THERE' is not set"),
    ],
)
def test_errors_name_what_there_is(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_action(spec)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (3, "a text or a mapping"),
        ({}, "needs its name under 'action'"),
        ({"action": 3}, "needs its name"),
        ({"action": "capture_more", "steps": True}, "are not allowed, got True"),
        ({"action": "capture_more", "steps": [1]}, "steps must be"),
    ],
)
def test_a_wrong_configuration_says_what_is_right(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        action_from_config(config)


def test_an_action_list_holds_actions_only() -> None:
    actions = ActionList(RequestStop(), LogFindings())
    assert [action.name for action in actions] == ["stop", "log"]
    for wrong in ("stop", RequestStop):
        with pytest.raises(TypeError, match="must contain only actions"):
            ActionList(wrong)  # type: ignore[arg-type]
