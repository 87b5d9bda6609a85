"""Settings of S3 clients: credentials, regions, certificates, configuration; also when they change."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tdcore.errors import ConfigError, SinkError
from tdcore.sinks.s3 import S3Sink
from tdcore.sinks.s3.aws_chain import no_credentials
from tests.s3.fixtures import use
from tests.s3.servers import StubServer, moto_server, rclone_server, stub_server


def test_wrong_credentials_are_told_without_showing_them(
    stub: StubServer, opened: Callable[..., S3Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    with pytest.raises(SinkError, match="check the secret key") as caught:
        opened().put("a", [b"x"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKUNKNOWN")
    with pytest.raises(SinkError, match="AWS chain") as unknown:
        opened().put("a", [b"x"])
    for error in (caught.value, unknown.value):
        assert error.kind == "denied"
        assert "hush" not in str(error)
        assert "AK" not in str(error)


def test_no_credentials_at_all_are_told(
    stub: StubServer, opened: Callable[..., S3Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(SinkError, match="the AWS chain has no credentials") as caught:
        opened().put("a", [b"x"])
    assert caught.value.kind == "denied"
    assert stub.log() == []


def test_expired_credentials_are_read_anew_once(
    stub: StubServer, opened: Callable[..., S3Sink], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another program writes new credentials into the credentials file."""
    keys = stub.keys
    file = tmp_path / "credentials"

    def write(token: str) -> None:
        file.write_text(
            f"[default]\naws_access_key_id={keys.access_key}\n"
            f"aws_secret_access_key={keys.secret_key}\naws_session_token={token}\n"
        )

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write("first")
    sink = opened()
    sink.put("a", [b"1"])
    stub.set(expired_tokens=["first"])
    with pytest.raises(SinkError, match="ExpiredToken") as caught:
        sink.put("a", [b"2"])
    assert caught.value.kind == "denied"
    write("second")
    sink.put("a", [b"3"])
    assert stub.objects() == {"p/a": b"3"}


@pytest.mark.parametrize("reply", ["malformed", "redirect"])
def test_a_bucket_in_another_region_is_found(
    reply: str, stub: StubServer, opened: Callable[..., S3Sink]
) -> None:
    stub.set(region="eu-west-1", wrong_region=reply)
    sink = opened(patience=0)
    sink.put("a", [b"x"])
    before = len(stub.log())
    assert sink.get("a") == b"x"
    assert len(stub.log()) == before + 1


@pytest.mark.parametrize("start", [stub_server, moto_server, rclone_server], ids=lambda each: each.__name__)
def test_over_tls_with_a_bundle_of_certificates(
    start: Callable[..., Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tls=True) as server:
        use(monkeypatch, server)
        sink = S3Sink(server.url("p", engine=engine))
        sink.put("a", [b"data"])
        assert sink.get("a") == b"data"
        sink.close()
        stranger = S3Sink(server.url("p", engine=engine, ca_bundle=None), patience=timedelta(0))
        with pytest.raises(SinkError, match="certificate is not trusted"):
            stranger.put("a", [b"data"])
        stranger.close()
        if isinstance(server, StubServer):
            server.set(region="eu-west-1", wrong_region="redirect")
            sink = S3Sink(server.url("p", engine=engine), patience=timedelta(0))
            assert sink.get("a") == b"data"
            sink.close()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, r"ca_bundle .* '/.*/ca.pem': No such file or directory$"),
        ("", "no certificates"),
        ("a note", "no certificates"),
        ("-----BEGIN CERTIFICATE-----\nxx", "no certificates"),
    ],
)
def test_a_bundle_that_cannot_be_read_is_a_configuration_error(
    content: str | None, match: str, stub: StubServer, opened: Callable[..., S3Sink], tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    with pytest.raises(ConfigError, match=match):
        opened(ca_bundle=str(tmp_path / "ca.pem")).put("a", [b"x"])


def test_a_bundle_beside_the_program_is_refused_with_a_hint(opened: Callable[..., S3Sink]) -> None:
    with pytest.raises(ConfigError, match="give the absolute path"):
        opened(ca_bundle="no-such.pem").put("a", [b"x"])


def _break_configuration(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Write half of an AWS configuration file, as another program may."""
    file.write_text("[default]\nx")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))


def test_a_half_written_configuration_file_passes(
    stub: StubServer, opened: Callable[..., S3Sink], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sink = opened()
    sink.put("a", [b"1"])
    _break_configuration(monkeypatch, tmp_path / "config")
    stub.set(expired=True)
    waiting = sink.loop.submit(sink.store.put("a", [b"2"]))
    while not sink.report()["retries"].get("settings"):
        time.sleep(0.01)
    stub.set(expired=False)
    (tmp_path / "config").write_text("[default]\n")
    waiting.result(timeout=30)
    assert stub.objects() == {"p/a": b"2"}


def test_a_configuration_that_stays_broken_is_a_sink_error_once_it_was_good(
    stub: StubServer, opened: Callable[..., S3Sink], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sink = opened(patience=0.3)
    sink.put("a", [b"1"])
    _break_configuration(monkeypatch, tmp_path / "config")
    stub.set(expired=True)
    for _ in range(2):
        with pytest.raises(SinkError, match="configuration files cannot be read") as caught:
            sink.put("a", [b"2"])
        assert caught.value.kind == "transient"
    with pytest.raises(ConfigError, match="configuration files cannot be read"):
        opened().put("a", [b"2"])


def test_a_configuration_that_breaks_before_the_bucket_is_looked_for_is_a_sink_error(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sink = S3Sink(stub.url("p", engine="obstore"))  # the other engine finds the region of the bucket itself
    sink.put("a", [b"1"])
    _break_configuration(monkeypatch, tmp_path / "config")
    stub.set(region="eu-west-1")
    with pytest.raises(SinkError, match="another region"):
        sink.put("a", [b"2"])
    sink.close()


@pytest.mark.parametrize("botocore", [True, False])
def test_without_botocore_the_files_that_are_not_read_are_named(
    botocore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.sinks.s3.aws_chain.has_botocore", lambda: botocore)
    for error in (None, OSError("hush")):
        text = str(no_credentials(error))
        assert ("~/.aws are read only with botocore" in text) is not botocore
        assert "hush" not in text
