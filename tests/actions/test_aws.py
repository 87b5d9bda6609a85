"""Shared parts of the actions on AWS: region, boto3, errors that show no secrets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tdcore.actions import SMS, CloudWatchEvent, CloudWatchMetric, Email, StopSageMakerJob
from tdcore.errors import ActionError, ConfigError
from tests.actions.findings import Running, finding

Make = Callable[..., Any]
MAKE: dict[str, Make] = {
    "Email": lambda **options: Email("a@example.org", **options),
    "SMS": lambda **options: SMS("+4915112345678", **options),
    "CloudWatchMetric": CloudWatchMetric,
    "CloudWatchEvent": CloudWatchEvent,
    "StopSageMakerJob": lambda **options: StopSageMakerJob("job", **options),
}


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove all settings of AWS; return the file that replaces ~/.aws/config."""
    import os

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path / "config"


@pytest.mark.parametrize("name", MAKE)
def test_without_a_region_nothing_is_made_and_none_is_guessed(name: str, no_aws: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name} has no AWS region; set AWS_REGION"):
        MAKE[name]()


@pytest.mark.parametrize("name", MAKE)
def test_without_boto3_the_extra_is_named(name: str, no_aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=rf'{name} needs boto3; pip install "tdcore-capture\[aws\]"'):
        MAKE[name](region="eu-west-1")


def test_the_region_comes_from_the_argument_the_environment_or_the_profile(
    no_aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_aws.write_text("[default]\nregion = eu-south-1\n[profile other]\nregion = sa-east-1\n")
    regions = [region_of(CloudWatchMetric())]
    monkeypatch.setenv("AWS_PROFILE", "other")
    regions.append(region_of(CloudWatchMetric()))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ca-central-1")
    regions.append(region_of(CloudWatchMetric()))
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    regions.append(region_of(CloudWatchMetric()))
    regions.append(region_of(CloudWatchMetric(region="us-west-2")))
    assert regions == ["eu-south-1", "sa-east-1", "ca-central-1", "ap-south-1", "us-west-2"]


def region_of(action: CloudWatchMetric) -> str:
    return repr(action).rpartition("region='")[2].rstrip("')")


def test_a_topics_arn_says_its_region(no_aws: Path) -> None:
    email = Email("a@example.org", topic="arn:aws:sns:eu-north-1:123456789012:mine")
    assert email._aws.region == "eu-north-1"


def test_a_profile_that_is_not_there_is_a_wrong_configuration(
    no_aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="nobody"):
        CloudWatchMetric()


def test_without_credentials_the_failure_says_so(no_aws: Path) -> None:
    with pytest.raises(ActionError, match=r"CloudWatch refused \(eu-west-1\): Unable to locate credentials"):
        CloudWatchMetric(region="eu-west-1").act([finding()], Running(), None)


def test_clients_have_time_outs_and_try_again(aws: Make) -> None:
    action = CloudWatchMetric()
    config = action._aws.client("cloudwatch").meta.config
    assert (config.connect_timeout, config.read_timeout) == (5, 15)
    assert config.retries == {"mode": "standard", "total_max_attempts": 4}


def test_the_region_of_an_arn_goes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    topic, bus = "arn:aws:sns:eu-west-1:123456789012:t", "arn:aws:events:eu-west-1:123456789012:event-bus/b"
    for action in (Email("a@b.org", topic=topic), CloudWatchEvent(bus)):
        assert action._aws.region == "eu-west-1"
    assert CloudWatchEvent("b")._aws.region == "us-east-1"


def test_a_region_that_is_not_that_of_the_arn_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"the ARN of Email.topic has the region eu-west-1, got region='us-east-1'"
    ):
        Email("a@b.org", topic="arn:aws:sns:eu-west-1:123456789012:t", region="us-east-1")
    with pytest.raises(ConfigError, match=r"CloudWatchEvent.bus has the region eu-west-1"):
        CloudWatchEvent("arn:aws:events:eu-west-1:123456789012:event-bus/b", region="us-east-1")
