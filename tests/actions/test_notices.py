"""Recipients of messages: each notice key is sent once, and the content of a message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tdcore.actions import Notice, Notifier, Once, notice_key
from tdcore.errors import ActionError, ConfigError
from tests.actions.findings import Running, finding


class Kept(Notifier):
    """A notifier that keeps notices; its first calls fail or wait, as configured."""

    name = "kept"

    def __init__(self, failures: int = 0, waits: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.failures, self.waits = failures, waits
        self.notices: list[Notice] = []

    def send(self, notice: Notice) -> bool:
        if self.failures:
            self.failures -= 1
            raise ActionError("no network")
        if self.waits:
            self.waits -= 1
            return False
        self.notices.append(notice)
        return True


def test_a_notice_key_is_a_findings_key_without_its_step() -> None:
    assert notice_key(finding(step=1, kind="low")) == notice_key(finding(step=2, kind="low"))
    others = [finding(1), finding(tensor="b"), finding(rule="X"), finding(kind="high")]
    assert len({notice_key(each) for each in [finding(), *others]}) == 5


def test_a_key_is_told_once_however_many_steps_it_lasts() -> None:
    kept = Kept()
    for step in range(50):
        kept.act([finding(step=step), finding(step=step, tensor="b")], Running(), None)
    assert [[each.step for each in notice.findings] for notice in kept.notices] == [[0, 0]]


def test_findings_of_one_look_are_one_message() -> None:
    kept = Kept()
    kept.act([finding(step=step, tensor=f"w{step % 3}") for step in range(9)], Running(), None)
    assert [[each.tensor for each in notice.findings] for notice in kept.notices] == [["w0", "w1", "w2"]]


def test_a_key_may_be_told_again_after_a_while() -> None:
    now = [0.0]
    once = Once(timedelta(minutes=1), clock=lambda: now[0])
    once.told([finding()])
    now[0] = 59.9
    assert once.due([finding()]) == []
    now[0] = 60.0
    assert once.due([finding()]) == [finding()]


def test_what_failed_or_had_to_wait_is_told_with_the_next_message_whatever_that_is_about() -> None:
    kept = Kept(failures=1, waits=1)
    with pytest.raises(ActionError, match="no network"):
        kept.act([finding(step=1)], Running(), None)
    for step in range(2, 6):
        kept.act([finding(step=step, tensor="other")], Running(), None)
    assert [[(each.step, each.tensor) for each in notice.findings] for notice in kept.notices] == [
        [(1, "gradient/w"), (2, "other")]
    ]
    assert kept.untold() == []


def test_what_failed_is_told_by_a_call_without_news() -> None:
    kept = Kept(failures=1)
    with pytest.raises(ActionError):
        kept.act([finding(step=1)], Running(), None)
    assert [each.step for each in kept.untold()] == [1]
    kept.act([], Running(), None)
    kept.act([], Running(), None)
    assert [[each.step for each in notice.findings] for notice in kept.notices] == [[1]]


def test_what_must_not_be_repeated_is_told_once_though_it_failed() -> None:
    class Single(Kept):
        repeats = False

    single = Single(failures=1)
    with pytest.raises(ActionError):
        single.act([finding(step=1)], Running(), None)
    single.act([finding(step=2)], Running(), None)
    assert (single.notices, single.untold()) == ([], [])


def test_keys_that_an_earlier_start_has_told_are_not_told_again() -> None:
    kept = Kept()
    kept.prime([notice_key(finding(step=3))])
    kept.act([finding(step=4), finding(step=4, tensor="b")], Running(), None)
    assert [each.tensor for each in kept.notices[0].findings] == ["b"]


def test_a_message_lists_so_many_findings_and_counts_the_others() -> None:
    notice = Notice(run="runs/a", findings=tuple(finding(tensor=f"w{n}") for n in range(25)), max_listed=2)
    paragraphs = notice.text.split("\n\n")
    assert paragraphs[0] == "VanishingGradient fired in runs/a"
    assert paragraphs[1] == (
        "VanishingGradient (TDC101) at step 7 of attempt 0, worker_0: w0: too small. use ReLU"
    )
    assert paragraphs[2] == "VanishingGradient (TDC101) at step 7 of attempt 0, worker_0: w1: too small."
    assert paragraphs[3:] == ["and 23 more findings; `tdcore rules run` shows all of them"]
    document = notice.to_json()
    assert (document["count"], [each["tensor"] for each in document["findings"]]) == (25, ["w0", "w1"])


def test_the_subject_names_three_rules_at_most() -> None:
    notice = Notice(run="r", findings=tuple(finding(rule=f"R{n}") for n in range(5)))
    assert notice.subject == "R0, R1, R2 and 2 more rules fired in r"


def test_names_from_a_run_cannot_break_lines_or_drive_a_terminal() -> None:
    text = Notice(run="a\nb", findings=(finding(tensor="w\n\nVictim\x1b[2J\u202e"),)).text
    assert text.splitlines()[0] == "VanishingGradient fired in a b"
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(text.split("\n\n")) == 2


def test_no_message_ends_in_a_stray_none() -> None:
    text = Notice(run="r", findings=(finding(tensor=""), finding())).text
    assert "None" not in text


def test_a_bucket_is_named_without_its_options() -> None:
    kept = Kept()
    kept.act([finding()], Running(where="s3://b/run?profile=secret"), None)
    assert kept.notices[0].run == "s3://b/run"


@pytest.mark.parametrize(
    "options",
    [
        {"max_listed": 0}, {"max_listed": True}, {"again_after": timedelta()}, {"again_after": 60},
        {"again_after": timedelta.max},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options_say_what_is_right(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Kept(**options)
