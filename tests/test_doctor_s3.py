"""`tdcore doctor s3://bucket/prefix`: its findings on services that support more or fewer features."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from tdcore.cli import doctor_s3
from tdcore.cli.doctor import checks
from tdcore.cli.doctor_check import Check
from tdcore.sinks.s3.options import parse_s3_url
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer
from tests.test_cli import Command


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def look(url: str) -> dict[str, Check]:
    return {check.name: check for check in checks(url) if check.name.startswith("S3 ")}


@pytest.mark.parametrize("engine", ["obstore", "aiobotocore"])
def test_on_a_good_service_all_is_ok_and_nothing_is_left(stub: StubServer, engine: str) -> None:
    found = look(stub.url("runs", engine=engine))
    assert {check.state for check in found.values()} == {"ok"}
    assert list(found) == [
        "S3 client", "S3 credentials", "S3 endpoint", "S3 write", "S3 list", "S3 read", "S3 ranges",
        "S3 conditional put", "S3 checksum", "S3 delete",
    ]  # fmt: skip
    assert engine in found["S3 client"].detail
    assert found["S3 credentials"].detail == "from env"
    assert f"{stub.endpoint}, region us-east-1, path addressing" in found["S3 endpoint"].detail
    assert stub.objects() == {}


def test_what_a_service_cannot_do_is_said_and_nothing_is_left(s3_place: Place) -> None:
    found = look(s3_place.url())
    cannot = {name for name, check in found.items() if check.state != "ok"}
    assert (
        cannot
        == {
            "moto": {"S3 checksum"},
            "rclone": {"S3 checksum", "S3 conditional put", "S3 ranges"},
            "stub": set(),
        }[s3_place.server.name]
    )
    assert all(found[name].advice for name in cannot)
    assert s3_place.objects() == {}


@pytest.mark.parametrize("setting", ["ignore_if_none_match", "not_implemented_if_none_match"])
def test_missing_conditional_puts_are_found(stub: StubServer, setting: str) -> None:
    stub.set(**{setting: True})
    check = look(stub.url("runs"))["S3 conditional put"]
    assert check.state == "missing"
    assert "If-None-Match" in check.detail


@pytest.mark.parametrize(
    ("action", "line", "permission"),
    [
        ("PutObject", "S3 write", "s3:PutObject on arn:aws:s3:::"),
        ("ListBucket", "S3 list", "s3:ListBucket on arn:aws:s3:::"),
        ("GetObject", "S3 read", "s3:GetObject on arn:aws:s3:::"),
        ("DeleteObject", "S3 delete", "s3:DeleteObject on arn:aws:s3:::"),
    ],
)
def test_a_missing_permission_is_named(
    stub: StubServer,
    action: str,
    line: str,
    permission: str,
) -> None:
    stub.set(deny=[action])
    check = look(stub.url("runs"))[line]
    assert check.state == "failed"
    assert permission in check.advice
    assert "AccessDenied" in check.detail


def test_no_credentials_are_said_and_none_are_shown(
    stub: StubServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = str(look(stub.url("runs")))
    assert stub.keys.secret_key not in text
    assert stub.keys.access_key not in text
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    check = look(stub.url("runs"))["S3 credentials"]
    assert check.state == "failed"
    assert "no credentials" in check.detail


def test_an_end_point_with_a_password_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:hush@127.0.0.1:9")
    found = look("s3://bucket/runs")
    assert list(found) == ["S3 place"]
    assert "AWS_ENDPOINT_URL holds a user or password" in found["S3 place"].detail
    assert "hush" not in str(found)


def test_another_region_is_found_and_named(stub: StubServer) -> None:
    stub.set(region="eu-west-1")
    found = look(stub.url("runs"))
    assert found["S3 write"].state == "ok"
    assert found["S3 endpoint"].advice.endswith("?region=eu-west-1")


def test_a_place_that_cannot_be_is_one_failed_line() -> None:
    found = look("s3://bucket/runs?colour=red")
    assert list(found) == ["S3 place"]
    assert "unknown S3 option 'colour'" in found["S3 place"].detail + found["S3 place"].advice


def test_a_service_that_never_answers_is_asked_once_and_said(
    tdcore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_s3, "_ANSWER", timedelta(seconds=0.2))
    monkeypatch.setattr(doctor_s3, "_PATIENCE", timedelta(seconds=0.1))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, but never answers
        port = silent.getsockname()[1]
        result = tdcore("doctor", f"s3://bucket/runs?endpoint_url=http://127.0.0.1:{port}", "--json")
    found = {check["name"]: check["state"] for check in result.json["checks"] if check["name"][:2] == "S3"}
    assert (found["S3 endpoint"], found["S3 write"]) == ("failed", "failed")
    assert "S3 list" not in found
    assert result.code == 3
    assert "tdcore doctor: checking s3://bucket/runs (at most 12 s without an answer)" in result.err


def test_the_doctor_waits_for_seconds_where_a_run_waits_for_a_minute() -> None:
    options = doctor_s3._hurried(parse_s3_url("s3://bucket/runs")).options
    assert options.connect_timeout + options.read_timeout <= timedelta(seconds=8)
    mine = doctor_s3._hurried(parse_s3_url("s3://bucket/runs?connect_timeout=1")).options
    assert mine.connect_timeout == timedelta(seconds=1)
