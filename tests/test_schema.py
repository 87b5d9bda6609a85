"""The schema layer of configuration readers: documents, objects, kinds of values, and places in errors."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tdcore.config.schema import (
    FLAG,
    NUMBER,
    SECONDS,
    TEXT,
    WHOLE,
    Kind,
    check_keys,
    items,
    kind_of,
    mapping,
    parse_document,
    read_text,
    unknown_keys,
    within,
)
from tdcore.errors import ConfigError, UnsupportedFeature


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (FLAG, " Yes ", True),
        (FLAG, False, False),
        (FLAG, 0, False),
        (WHOLE, " 12 ", 12),
        (WHOLE, 12, 12),
        (NUMBER, "1e-6", 1e-6),
        (SECONDS, "1.5", timedelta(seconds=1.5)),
        (TEXT, "a", "a"),
    ],
)
def test_a_kind_reads_texts_and_values_of_documents(kind: Kind, value: object, found: object) -> None:
    assert kind(value, "x") == found


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (FLAG, "maybe", "x must be true or false, got 'maybe'"),
        (FLAG, None, "x must be true or false, got None"),
        (WHOLE, True, "x must be a whole number, got True"),
        (WHOLE, 2.0, "x must be a whole number, got 2.0"),
        (WHOLE, "2.0", "x must be a whole number, got '2.0'"),
        (NUMBER, [], "x must be a number, got []"),
        (SECONDS, "nan", "x must be a number of seconds, got 'nan'"),
        (SECONDS, "1e99", "x must be a number of seconds, got '1e99'"),
        (Kind("a number", float, (int, float)), True, "x must be a number, got True"),
        (Kind("a number", float, (int, float)), "3", "x must be a number, got '3'"),
    ],
)
def test_the_error_of_a_kind_has_the_place_the_valid_values_and_the_value(
    kind: Kind, value: object, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(value, "x")
    assert str(caught.value) == message


def test_a_reader_words_the_error_of_a_kind_and_may_leave_a_secret_out() -> None:
    with pytest.raises(ConfigError, match=r"^{x}: expected a whole number, got 'a'$"):
        WHOLE("a", "{x}", "{where}: expected {expected}, got {got!r}")
    with pytest.raises(ConfigError, match=r"^x does not fit$"):
        WHOLE("secret", "x", "{where} does not fit")


def test_a_kind_may_raise_an_error_of_its_own() -> None:
    outer = Kind("a number of GiB", lambda value: NUMBER(value, "the size"))
    with pytest.raises(ConfigError, match=r"^the size must be a number, got 'x'$"):
        outer("x", "x")


@pytest.mark.parametrize(
    ("hint", "text", "found"),
    [
        (bool, "no", False),
        (int, "3", 3),
        (float, "3", 3.0),
        (int | float, "3", 3),
        (int | None, "None", None),
        (float | None, "", None),
        (float | None, "2", 2.0),
        (str | None, "none", None),
        (str | list[str], "a,b", "a,b"),
        (str, "none", "none"),
    ],
)
def test_a_type_hint_is_a_kind(hint: object, text: str, found: object) -> None:
    value = kind_of(hint)(text, "x")
    assert (type(value), value) == (type(found), found)


@pytest.mark.parametrize("text", ['{"a": {"b": 1, "b": 2}}', "a: {b: 1, b: 2}"])
def test_a_key_that_is_given_twice_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="'b' is given twice") as caught:
        parse_document(text, as_json=text.startswith("{"))
    assert "not JSON" not in str(caught.value)


@pytest.mark.parametrize(("as_json", "message"), [(True, "not JSON: "), (False, "not YAML: ")])
def test_a_document_that_is_nested_too_deeply_is_an_error_of_the_configuration(
    as_json: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_document("[" * 100_000, as_json=as_json)


@pytest.mark.parametrize(("data", "why"), [(None, "No such file"), (b"\xff\xfe\xff", "can't decode")])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, data: bytes | None, why: str
) -> None:
    path = tmp_path / "file.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"a sort of file {path} cannot be read: .*{why}"):
        read_text(path, "a sort of file")


def test_nothing_is_an_empty_object_and_an_empty_list() -> None:
    assert (mapping("x", None), items("x", None)) == ({}, [])


def test_a_value_that_is_no_object_or_list_is_named_by_its_type() -> None:
    with pytest.raises(ConfigError, match=r"^x must be a mapping of names to values, got str$"):
        mapping("x", "secret")
    with pytest.raises(ConfigError, match=r"^x must be some steps, got a secret$"):
        items("x", "secret", "be some steps", lambda value: "a secret")


def test_an_unknown_key_is_named_with_the_most_similar_one_or_with_all() -> None:
    assert list(unknown_keys("x", ["stepps", "zz", "steps", 3], ("steps", "level"))) == [
        "x has an unknown key 'stepps'; did you mean 'steps'?",
        "x has an unknown key 'zz'; known keys: steps, level",
        "x has an unknown key 3; known keys: steps, level",
    ]
    assert list(unknown_keys("", ["leve"], ["level"])) == ["unknown key 'leve'; did you mean 'level'?"]
    check_keys("x", ["steps"], ("steps", "level"))
    with pytest.raises(ConfigError, match="did you mean 'level'"):
        check_keys("x", ["steps", "levle"], ("steps", "level"))


def test_places_are_put_in_front_of_an_error_whose_class_stays() -> None:
    with pytest.raises(UnsupportedFeature) as caught, within("file"), within("list[0]"):
        raise UnsupportedFeature("why")
    assert str(caught.value) == "file: list[0]: why"
