"""State files from other users: a short error message, immediately."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest

from tdcore._version import __version__
from tdcore.errors import ConfigError
from tdcore.rules import run, state
from tests.test_fuzz_run import write_run

pytestmark = pytest.mark.timeout(60)


def write_state(place: Path, content: Any) -> Path:
    """Write a state file with a valid checksum."""
    body = pickle.dumps(content, protocol=5)
    place.write_bytes(state._MAGIC + hashlib.sha256(body).digest() + body)
    return place


def test_nested_shared_lists_give_a_short_message(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    shared: list[Any] = ["x"]
    for _ in range(60):
        shared = [shared, shared]
    content = {"version": __version__, "identity": shared, "position": shared, "engine": shared}
    place = write_state(tmp_path / "a.state", content)
    assert place.stat().st_size < 1000
    (problem,) = run(tmp_path / "run", ["all_zero"], state=place).problems
    assert "it contains the same parts again and again" in problem
    assert len(problem) < 500


@pytest.mark.parametrize(
    "identity",
    [
        None, [], {"attempt": 1}, {"attempt": None, "rules": [[1, 2, 3]]}, {"attempt": [[]], "rules": []},
        {"attempt": None, "rules": [["x" * 100_000, "y", []]] * 50},
        {"attempt": None, "rules": [["\x1b[2J", "y", [["a", "b\n"]]]]},
        {"attempt": "z" * 10_000, "rules": 5},
    ],
)  # fmt: skip
def test_a_state_of_odd_rules_is_refused_in_a_few_words(tmp_path: Path, identity: Any) -> None:
    write_run(tmp_path / "run")
    content = {"version": __version__, "identity": identity, "position": {}, "engine": {}}
    with pytest.raises(ConfigError, match=r"of other rules or parameters|cannot be taken over") as caught:
        run(tmp_path / "run", ["all_zero"], state=write_state(tmp_path / "a.state", content))
    assert len(str(caught.value)) < 1500
    assert "\x1b" not in str(caught.value)
