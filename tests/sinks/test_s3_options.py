"""s3:// URLs: places, options, refused values, and the engine of each URL."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from tdcore.errors import ConfigError, UnsupportedFeature
from tdcore.sinks.s3 import S3Options, S3Place, parse_s3_url
from tdcore.sinks.s3.aws_chain import AwsChain
from tdcore.sinks.s3.engine_choice import choose_engine

EVERYTHING = S3Options(
    endpoint_url="https://minio.lab:9000/s3", region="eu-west-1", profile="lab one", addressing="path",
    sse="aws:kms", sse_kms_key_id="arn:aws:kms:eu-west-1:1:key/a+b", bucket_key=True, requester_pays=True,
    storage_class="STANDARD_IA", tags={"team": "vision & co", "a=b": "c+d"}, ca_bundle="/etc/a b.pem",
    engine="aiobotocore", checksum="crc32c", concurrency=3, connect_timeout=timedelta(milliseconds=1500),
    read_timeout=timedelta(minutes=1), spool="/var/spool/a b", spool_bytes=3 << 29,
)  # fmt: skip


def test_a_plain_url_is_a_place_with_the_defaults() -> None:
    place = parse_s3_url("s3://my-bucket/runs/2024 01/a/")
    assert place == S3Place(bucket="my-bucket", prefix="runs/2024 01/a", options=S3Options())
    assert place.where == "s3://my-bucket/runs/2024 01/a"
    assert place.key("index/x") == "runs/2024 01/a/index/x"


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket?region=eu-west-1"])
def test_a_bucket_alone_is_a_place(url: str) -> None:
    place = parse_s3_url(url)
    assert (place.bucket, place.prefix, place.where, place.key("a")) == ("bucket", "", "s3://bucket", "a")


@pytest.mark.parametrize("options", [S3Options(), EVERYTHING], ids=["defaults", "everything"])
def test_options_survive_the_way_through_a_url(options: S3Options) -> None:
    assert parse_s3_url(options.at("s3://bucket/p")).options == options


def test_a_url_holds_only_what_is_not_the_default() -> None:
    assert S3Options().at("s3://bucket/p") == "s3://bucket/p"
    assert S3Options(region="eu-west-1", requester_pays=True).at("s3://b-b/p") == (
        "s3://b-b/p?region=eu-west-1&requester_pays=true"
    )


def test_options_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(EVERYTHING)) == EVERYTHING


def test_a_spool_limit_may_be_given_in_gib() -> None:
    assert parse_s3_url("s3://bucket/p?spool_gib=1.5").options.spool_bytes == 3 << 29


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("s3:/bucket/p", "expected s3://"),
        ("/local", "expected s3://"),
        ("s3://", "names no bucket"),
        ("s3://b/p", "3 or more letters"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "alias"),
        ("s3://data--use1-az4--x-s3/p", "directory bucket"),
        ("s3://bucket//p", "prefix '/p'"),
        ("s3://bucket/a/../b", "cannot contain a run"),
        ("s3://bucket/p?colour=red", "unknown S3 option 'colour'; use one of: addressing, .*tag.NAME"),
        ("s3://bucket/p?region", "region has no value"),
        ("s3://bucket/p?region=", "region has no value"),
        ("s3://bucket/p?addressing=dns", "addressing must be one of auto, path, virtual, got 'dns'"),
        ("s3://bucket/p?sse=none", "sse must be one of AES256, aws:kms"),
        ("s3://bucket/p?sse_kms_key_id=k", "needs sse 'aws:kms'"),
        ("s3://bucket/p?bucket_key=true&sse=AES256", "needs sse 'aws:kms'"),
        ("s3://bucket/p?bucket_key=1", "true or false, got '1'"),
        ("s3://bucket/p?engine=boto3", "engine must be one of auto, obstore, aiobotocore"),
        ("s3://bucket/p?checksum=md5", "checksum must be one of"),
        ("s3://bucket/p?concurrency=0", "1 to 256"),
        ("s3://bucket/p?concurrency=many", "whole number, got 'many'"),
        ("s3://bucket/p?read_timeout=0", "1 millisecond to 1 hour"),
        ("s3://bucket/p?read_timeout=1e99", "number of seconds"),
        ("s3://bucket/p?spool_gib=x", "number, got 'x'"),
        ("s3://bucket/p?spool_gib=nan", "GiB"),
        ("s3://bucket/p?spool_bytes=5", "at least 1 MiB"),
        ("s3://bucket/p?endpoint_url=minio:9000", "http://host:port"),
        ("s3://bucket/p?tag.=x", "a name has 1 to 128 letters"),
        ("s3://bucket/p?" + "&".join(f"tag.{at}=x" for at in range(11)), "at most 10 tags, got 11"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(url: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_s3_url(url)


@pytest.mark.parametrize(
    "query",
    ["access_key=AKIA", "AWS_SECRET_ACCESS_KEY=hush-hush", "session_token=hush-hush", "accesskeyid=x",
     "endpoint_url=http://user:hush-hush@host"],
)  # fmt: skip
def test_credentials_in_a_url_are_refused_and_not_shown(query: str) -> None:
    with pytest.raises(ConfigError, match="AWS chain") as caught:
        parse_s3_url(f"s3://bucket/p?{query}")
    assert "hush" not in str(caught.value)


def test_the_cheapest_engine_is_chosen() -> None:
    name, reason = choose_engine(S3Options())
    assert name == "obstore"
    assert "least CPU" in reason


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (S3Options(checksum="crc32c"), "aiobotocore"),
        (S3Options(checksum="crc64nvme"), "obstore"),
        (S3Options(engine="aiobotocore"), "aiobotocore"),
        (S3Options(sse="aws:kms", storage_class="X", requester_pays=True, tags={"a": "b"}), "obstore"),
    ],
)
def test_an_engine_that_can_do_the_options_is_chosen(options: S3Options, name: str) -> None:
    assert choose_engine(options)[0] == name


@pytest.mark.parametrize(
    "options",
    [S3Options(engine="obstore", checksum="crc32c"), S3Options(engine="aiobotocore", checksum="crc64nvme")],
    ids=["obstore", "aiobotocore"],
)
def test_an_engine_asked_for_by_name_must_be_able(options: S3Options) -> None:
    with pytest.raises(ConfigError, match=f"{options.engine} cannot send checksum"):
        choose_engine(options)


def test_a_client_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"obstore": "0.9.5", "aiobotocore": "3.1.0"}
    monkeypatch.setattr("tdcore.sinks.s3.engine_choice.importlib.metadata.version", versions.__getitem__)
    name, reason = choose_engine(S3Options())
    assert name == "aiobotocore"
    assert "obstore 0.9.5 is older than 0.11" in reason


def test_dual_stack_end_points_need_the_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    name, reason = choose_engine(S3Options())
    assert name == "aiobotocore"
    assert "dual-stack" in reason
    assert choose_engine(S3Options(endpoint_url="http://127.0.0.1:9"))[0] == "obstore"


def test_without_a_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcore.sinks.s3.engine_choice.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedFeature, match=r'pip install "tdcore-capture\[s3\]"'):
        choose_engine(S3Options())
    with pytest.raises(UnsupportedFeature, match="obstore is not installed"):
        choose_engine(S3Options(engine="obstore"))


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Remove all AWS_ variables except those of two configuration files."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-north-1\n"
        "[profile lab]\nregion = eu-west-3\nca_bundle = /etc/lab.pem\nservices = lab-services\n"
        "[services lab-services]\ns3 =\n  endpoint_url = http://lab:9000\n"
    )
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = AKLAB\naws_secret_access_key = hush\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_the_chain_gives_what_the_options_leave_open(chain: pytest.MonkeyPatch) -> None:
    found = AwsChain.of(parse_s3_url("s3://bucket/p"))
    assert (found.region, found.url(), found.path_style) == (
        "eu-north-1",
        "https://s3.eu-north-1.amazonaws.com",
        False,
    )
    assert found.bucket_url("bucket") == "https://bucket.s3.eu-north-1.amazonaws.com"
    found = AwsChain.of(parse_s3_url("s3://bucket/p?profile=lab"))
    assert (found.region, found.url(), found.ca_bundle, found.path_style) == (
        "eu-west-3",
        "http://lab:9000",
        "/etc/lab.pem",
        True,
    )
    credentials = found.credentials()
    assert credentials is not None
    assert credentials.source == "shared-credentials-file"
    assert credentials()["access_key_id"] == "AKLAB"


def test_the_environment_stands_above_the_files_and_options_above_both(chain: pytest.MonkeyPatch) -> None:
    chain.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    assert AwsChain.of(parse_s3_url("s3://bucket/p")).region == "ap-south-1"
    chain.setenv("AWS_REGION", "ap-east-1")
    chain.setenv("AWS_ENDPOINT_URL", "http://everything:1")
    assert AwsChain.of(parse_s3_url("s3://bucket/p?profile=lab")).url() == "http://everything:1"
    chain.setenv("AWS_ENDPOINT_URL_S3", "http://only-s3:1")
    found = AwsChain.of(parse_s3_url("s3://bucket/p?profile=lab"))
    assert (found.region, found.url()) == ("ap-east-1", "http://only-s3:1")
    found = AwsChain.of(parse_s3_url("s3://bucket/p?region=sa-east-1&endpoint_url=http://mine:1/"))
    assert (found.region, found.url()) == ("sa-east-1", "http://mine:1")
    assert (
        AwsChain.of(parse_s3_url("s3://bucket/p?region=sa-east-1"), region="me-south-1").region
        == "me-south-1"
    )


def test_a_profile_that_is_not_there_is_a_configuration_error(chain: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no profile 'none'"):
        AwsChain.of(parse_s3_url("s3://bucket/p?profile=none"))


def test_resolved_options_mean_the_same_elsewhere(chain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chain.chdir(tmp_path)
    chain.setenv("HOME", "/home/me")
    assert S3Options().resolved() == S3Options()
    chain.setenv("AWS_ENDPOINT_URL", "http://everything:1")
    chain.setenv("AWS_DEFAULT_REGION", "ap-south-1")
    chain.setenv("AWS_PROFILE", "lab")
    found = S3Options(ca_bundle="ca.pem", spool="~/spool", concurrency=3).resolved()
    assert found == S3Options(
        endpoint_url="http://everything:1", region="ap-south-1", profile="lab", concurrency=3,
        ca_bundle=str(tmp_path / "ca.pem"), spool="/home/me/spool",
    )  # fmt: skip
    assert found.resolved() == found
    assert EVERYTHING.resolved() == EVERYTHING
    chain.setenv("AWS_ENDPOINT_URL_S3", "http://only-s3:1")
    chain.setenv("AWS_REGION", "ap-east-1")
    found = S3Options().resolved()
    assert (found.endpoint_url, found.region) == ("http://only-s3:1", "ap-east-1")


def test_a_profile_below_the_credentials_of_the_environment_stays_there(chain: pytest.MonkeyPatch) -> None:
    chain.setenv("AWS_PROFILE", "lab")
    chain.setenv("AWS_ACCESS_KEY_ID", "AKMINE")
    chain.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    for options in (S3Options(), S3Options().resolved()):
        found = AwsChain.of(parse_s3_url(options.at("s3://bucket/p"))).credentials()
        assert found is not None
        assert found()["access_key_id"] == "AKMINE"


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("https://me:hush@store:9000", "user or password"),
        ("me:hush@store:9000", "user or password"),
        ("store:9000", "http://host:port"),
        ("http://[::1", "http://host:port"),
    ],
)
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_an_end_point_of_the_environment_is_checked_as_the_option_is(
    name: str, url: str, match: str, chain: pytest.MonkeyPatch
) -> None:
    chain.setenv(name, url)
    for ask in (S3Options().resolved, lambda: AwsChain.of(parse_s3_url("s3://bucket/p"))):
        with pytest.raises(ConfigError, match=f"{name} .*{match}") as caught:
            ask()
        assert "hush" not in str(caught.value)
    assert S3Options(endpoint_url="http://mine:1").resolved().endpoint_url == "http://mine:1"
    chain.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert S3Options().resolved().endpoint_url is None


def test_an_end_point_of_the_files_is_checked_too(chain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nendpoint_url = http://me:hush@store:1\n")
    with pytest.raises(ConfigError, match="AWS configuration files holds a user or password"):
        AwsChain.of(parse_s3_url("s3://bucket/p"))


@pytest.mark.parametrize("variable", ["AWS_PROFILE", "AWS_DEFAULT_PROFILE", ""])
def test_a_profile_needs_botocore(variable: str, chain: pytest.MonkeyPatch) -> None:
    chain.setattr("tdcore.sinks.s3.aws_chain.has_botocore", lambda: False)
    options = S3Options(engine="obstore", profile=None if variable else "lab")
    if variable:
        chain.setenv(variable, "lab")
    with pytest.raises(ConfigError, match=r"profiles \('lab'\) through botocore"):
        choose_engine(options)
    name, _ = choose_engine(S3Options(profile=options.profile))
    assert name == "aiobotocore"


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ("region=cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn"),
        ("region=eu-west-1&addressing=path", "https://s3.eu-west-1.amazonaws.com/bucket"),
        ("endpoint_url=https://store:9000", "https://store:9000/bucket"),
        ("endpoint_url=https://store:9000&addressing=virtual", "https://bucket.store:9000"),
    ],
)
def test_addressing_puts_the_bucket_into_the_path_or_the_host(
    query: str, url: str, chain: pytest.MonkeyPatch
) -> None:
    assert AwsChain.of(parse_s3_url(f"s3://bucket/p?{query}")).bucket_url("bucket") == url


def test_a_bucket_with_dots_goes_into_the_path(chain: pytest.MonkeyPatch) -> None:
    assert AwsChain.of(parse_s3_url("s3://my.bucket/p?region=eu-west-1")).bucket_url("my.bucket") == (
        "https://s3.eu-west-1.amazonaws.com/my.bucket"
    )
