"""Request files in control/: each content becomes either a request or a ConfigError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.format.control import LEVELS, MAX_REQUEST_BYTES, CaptureRequest, request_object
from tdcore.format.profile_request import ProfileRequest

GOOD = {"format": 1, "attempt": 0, "tensors": ["a"], "steps": 3}


def test_a_request_survives_its_document() -> None:
    request = CaptureRequest(
        tensors=("gradient/ü", "b"), steps=7, level="statistics", modes=("EVAL",), by="rule X", reason="why"
    )
    assert CaptureRequest.parse(request.document(attempt=2).decode()) == request


def test_what_is_left_out_has_a_default() -> None:
    assert CaptureRequest.parse(json.dumps(GOOD)) == CaptureRequest(tensors=("a",), steps=3, level="values")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format is 2"), ({"format": None}, "format"), ({"tensors": "a"}, "list of strings"),
        ({"tensors": []}, "1 to 64"), ({"tensors": [1]}, "list of strings"), ({"tensors": [""]}, "name"),
        ({"tensors": [str(n) for n in range(65)]}, "1 to 64"), ({"tensors": ["x" * 1025]}, "1024"),
        ({"steps": 0}, "steps"), ({"steps": True}, "steps"), ({"steps": 1e9}, "steps"),
        ({"steps": 1001}, "steps"),
        ({"level": "everything"}, "level"), ({"level": ["values"]}, "level"), ({"modes": ["train"]}, "modes"),
        ({"modes": {}}, "modes"), ({"too_large": 9000}, "9000 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CaptureRequest.parse(json.dumps(GOOD | change))


@pytest.mark.parametrize("text", ["", "stop!", "[]", "3", "null", "[" * 100_000, '"' + "x" * 10_000 + '"'])
def test_a_foreign_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        CaptureRequest.parse(text)
    assert len(str(raised.value)) < 300


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(LEVELS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys([*GOOD, "level", "modes", "by", "reason"], _ANY)))
def test_any_object_is_a_request_or_refused(document: dict[str, Any]) -> None:
    try:
        request = CaptureRequest.parse(json.dumps({**GOOD, **document}))
    except ConfigError as error:
        assert len(str(error)) < 300  # noqa: PT017 -- either may come
    else:
        assert 1 <= request.steps <= 1000
        assert len(request.document(attempt=0)) <= MAX_REQUEST_BYTES


def test_a_document_that_would_not_be_passed_on_is_refused() -> None:
    with pytest.raises(ConfigError, match="name fewer tensors"):
        CaptureRequest(tensors=tuple(f"{n}" + "x" * 500 for n in range(30)), steps=1).document(attempt=0)


PROFILE = {"format": 1, "attempt": 0, "kind": "profile", "steps": 3}


def test_a_request_to_profile_survives_its_document() -> None:
    request = ProfileRequest(
        steps=7, python=True, operators=False, workers=("worker_1",), by="me", reason="why"
    )
    text = request.document(attempt=2).decode()
    assert ProfileRequest.from_object(request_object(text)) == request


def test_a_version_without_profiles_refuses_a_request_to_profile() -> None:
    with pytest.raises(ConfigError, match="a request names 1 to 64 tensors, got 0"):
        CaptureRequest.parse(ProfileRequest(steps=1).document(attempt=0).decode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be 1 to 1000"), ({"steps": "3"}, "steps must be 1 to 1000"),
        ({"operators": "no"}, "operators must be true or false"), ({"python": 1}, "python must be"),
        ({"operators": False}, "both false"), ({"workers": "worker_0"}, "list of strings"),
        ({"workers": ["../x"]}, "workers must be names"),
        ({"workers": [f"w{n}" for n in range(65)]}, "at most 64"),
    ],
)  # fmt: skip
def test_a_request_to_profile_that_cannot_be_followed_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ProfileRequest.from_object(PROFILE | change)


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys([*PROFILE, "operators", "python", "workers", "by"], _ANY)
    )
)
def test_any_object_is_a_request_to_profile_or_refused(document: dict[str, Any]) -> None:
    try:
        request = ProfileRequest.from_object({**PROFILE, **document})
    except ConfigError as error:
        assert len(str(error)) < 300  # noqa: PT017 -- either may come
    else:
        assert 1 <= request.steps <= 1000
        assert len(request.document(attempt=0)) <= MAX_REQUEST_BYTES
