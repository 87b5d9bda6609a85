"""Webhook: the posted content, retries, and that its URL is never shown."""

from __future__ import annotations

import json
import traceback
from datetime import timedelta
from typing import Any

import pytest

from tdcore.actions import Retrying, Webhook
from tdcore.errors import ActionError, ConfigError
from tests.actions.findings import Running, finding
from tests.actions.receiving import SECRET, receiving


def webhook(url: str, pauses: list[float] | None = None, **options: Any) -> Webhook:
    kept = [] if pauses is None else pauses
    return Webhook(url, retrying=Retrying(wait=kept.append, draw=lambda: 1.0), **options)


def failure(action: Webhook) -> ActionError:
    with pytest.raises(ActionError) as raised:
        action.act([finding()], Running(), None)
    shown = "".join(traceback.format_exception(raised.value)) + repr(action)
    for secret in (SECRET, "xyzzy", "more-secret"):
        assert secret not in shown
    return raised.value


def test_one_message_per_look_with_a_text_and_fields() -> None:
    with receiving() as receiver:
        webhook(receiver.url).act([finding(), finding(tensor="b")], Running(), None)
    ((path, kind, body),) = receiver.got
    assert path == f"/{SECRET}?key=more-secret"
    assert kind == "application/json; charset=utf-8"
    assert body["text"].startswith("VanishingGradient fired in runs/demo\n\n")
    assert (body["run"], body["count"]) == ("runs/demo", 2)
    assert [each["tensor"] for each in body["findings"]] == ["gradient/w", "b"]


def test_what_may_pass_is_tried_again_after_growing_pauses() -> None:
    pauses: list[float] = []
    with receiving((503, {}, b""), (500, {}, b""), (429, {"Retry-After": "7"}, b"")) as receiver:
        webhook(receiver.url, pauses).act([finding()], Running(), None)
    assert len(receiver.got) == 4
    assert pauses == [0.5, 1.0, 7.0]


def test_pauses_differ_by_chance_and_a_server_cannot_ask_for_hours() -> None:
    from tdcore.actions.retrying import PassingError

    pauses: list[float] = []
    answers = iter([PassingError("busy"), PassingError("busy", after=86400), None])

    def call() -> str:
        answer = next(answers)
        if answer is not None:
            raise answer
        return "done"

    assert Retrying(wait=pauses.append, draw=lambda: 0.0).call(call) == "done"
    assert pauses == [0.25, 10.0]


def test_what_will_not_pass_is_not_tried_again() -> None:
    with receiving((404, {}, f"no_service {SECRET}".encode())) as receiver:
        action = webhook(receiver.url)
        assert str(failure(action)) == f"{action.shown} answers 404: no_service ***"
    assert len(receiver.got) == 1


def test_after_the_last_try_the_failure_is_said() -> None:
    with receiving(*[(503, {}, b"")] * 9) as receiver:
        assert "answers 503" in str(failure(webhook(receiver.url)))
    assert len(receiver.got) == 4


@pytest.mark.parametrize("part", ["xyzzy-secret", "B0KEN/xyzzy-secret", "key=more-secret", "more-secret"])
def test_a_part_of_the_url_that_a_server_repeats_is_not_shown(part: str) -> None:
    with receiving((404, {}, f"there is no {part}!".encode())) as receiver:
        assert str(failure(webhook(receiver.url))).endswith("***!")


def test_a_short_path_leaves_the_message_readable() -> None:
    assert "Connection refused" in str(failure(webhook("https://127.0.0.1:1/e")))


@pytest.mark.parametrize("after", ["\xb2", "soon", "-1", "999999", "nan"])
def test_a_pause_that_is_none_is_passed_over(after: str) -> None:
    pauses: list[float] = []
    with receiving((429, {"Retry-After": after}, b"")) as receiver:
        webhook(receiver.url, pauses).act([finding()], Running(), None)
    assert pauses == [0.5]


def test_what_is_for_this_machine_does_not_go_to_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    with receiving() as proxy, receiving() as receiver:
        monkeypatch.setenv("http_proxy", proxy.url)
        webhook(receiver.url).act([finding()], Running(), None)
    assert (len(proxy.got), len(receiver.got)) == (0, 1)


@pytest.mark.parametrize("location", ["http://[bad", "", "//", "ftp://example.org", "\xff"])
def test_a_redirect_to_nowhere_is_a_refusal_too(location: str) -> None:
    with receiving((302, {"Location": location}, b"")) as receiver:
        assert "redirects are not followed" in str(failure(webhook(receiver.url)))
    assert len(receiver.got) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with receiving() as other, receiving((status, {"Location": other.url}, b"")) as receiver:
        message = str(failure(webhook(receiver.url)))
    assert "redirects are not followed" in message
    assert other.got == []


def test_a_server_that_is_not_there_is_a_failure_without_the_url() -> None:
    with receiving() as receiver:
        pass
    assert "does not answer" in str(failure(webhook(receiver.url)))


def test_a_server_that_does_not_answer_in_time_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def slow(request: object, *, timeout: float) -> object:
        given.append(timeout)
        raise TimeoutError("timed out")

    action = webhook(f"https://example.org/{SECRET}", timeout=timedelta(seconds=3))
    monkeypatch.setattr(action, "_open", slow)
    assert str(failure(action)) == "https://example.org/*** does not answer: timed out"
    assert given == [3.0] * 4


@pytest.mark.parametrize("host", ["hooks.slack.com", "example.org"])
def test_names_of_a_run_are_no_commands_to_slack(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, Any]] = []
    action = webhook(f"https://{host}/{SECRET}")
    monkeypatch.setattr(action, "_post", lambda body: bodies.append(json.loads(body)))
    action.act([finding(tensor="<!channel> & more")], Running(), None)
    assert ("&lt;!channel&gt; &amp; more" in bodies[0]["text"]) == (host == "hooks.slack.com")
    assert bodies[0]["findings"][0]["tensor"] == "<!channel> & more"


@pytest.mark.parametrize("timeout", [5, timedelta(), timedelta.max])
def test_a_time_out_that_nobody_can_wait_for_is_refused(timeout: Any) -> None:
    with pytest.raises(ConfigError, match=r"Webhook\.timeout must be"):
        webhook("https://example.org/x", timeout=timeout)


def test_plain_http_is_for_this_machine_unless_it_is_allowed() -> None:
    for url in ("http://127.0.0.1:8080/x", "http://localhost/x", "http://[::1]/x", "https://example.org/x"):
        Webhook(url)
    Webhook("http://example.org/x", allow_http=True)
    with pytest.raises(ConfigError, match="unencrypted"):
        Webhook(f"http://example.org/{SECRET}")


@pytest.mark.parametrize(
    "url",
    [
        "", f"ftp://example.org/{SECRET}", f"//example.org/{SECRET}", f"https:///{SECRET}",
        f"https://user:{SECRET}@example.org/", f"https://example.org/ {SECRET}",
        f"https://example.org:99999/{SECRET}", f"https://[::1/{SECRET}", f"https://example.org/\n{SECRET}",
        f"https://example.org/é{SECRET}",
    ],
)  # fmt: skip
def test_a_wrong_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Webhook(url)
    shown = "".join(traceback.format_exception(raised.value, limit=0))
    assert SECRET not in str(raised.value)
    assert "xyzzy" not in shown
