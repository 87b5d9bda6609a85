"""Plain values as bytes and back; and nothing else."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.rules import Finding
from tdcore.rules.measures.series import Points
from tdcore.rules.plain_pickle import UnreadableError, UnsaveableError, dump, load
from tdcore.rules.window import Coverage
from tests.rules import a_rule_of_mine

_KEYS = st.one_of(st.integers(), st.text(), st.tuples(st.integers(), st.text()))
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(_KEYS, inner), st.sets(_KEYS)
    ),
)


@given(_VALUES)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    assert load(dump(value)) == value


@pytest.mark.parametrize("dtype", ["bool", "i1", "<i8", ">i4", "f2", "f8", "c16", "U3", "datetime64[ns]"])
def test_arrays_and_numbers_of_numpy_come_back_with_their_type(dtype: str) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    back = load(dump({"all": array, "one": array[1, 2], "none": array[:0]}))
    assert back["all"].dtype == array.dtype
    np.testing.assert_array_equal(back["all"], array)
    assert type(back["one"]) is type(array[1, 2])
    assert back["one"] == array[1, 2]
    assert back["none"].shape == (0, 3)
    back["all"][0, 0] = array[1, 1]  # its own memory


def test_containers_of_the_standard_library_come_back() -> None:
    value = {
        "deque": deque([1, 2], maxlen=2), "counter": Counter("aab"), "ordered": OrderedDict(a=1),
        "default": defaultdict(list, {1: [2]}), "frozen": frozenset({3}),
    }  # fmt: skip
    back = load(dump(value))
    assert back == value
    assert back["deque"].maxlen == 2
    assert back["default"]["new"] == []


def test_dataclasses_of_rules_come_back_without_their_init() -> None:
    finding = Finding(
        rule="R", code="TDC1", step=1, mode="TRAIN", mode_step=1, worker="worker_0", attempt=0, tensor="w",
        numbers={"mean": np.float64(2.0), "kind": "x"}, why="why", do="do",
    )  # fmt: skip
    points = Points(unit=np.arange(2), step=np.arange(2), mode_step=np.arange(2), value=np.ones(2))
    coverage = Coverage(judged=3, missing={"why": 2})
    back = load(dump([finding, points, coverage]))
    assert back[0] == finding
    np.testing.assert_array_equal(back[1].value, points.value)
    assert back[2] == coverage


def test_dataclasses_of_a_users_rules_come_back_only_where_that_module_is_named() -> None:
    data = dump(a_rule_of_mine.Seen(count=3))
    assert load(data, {a_rule_of_mine.__name__}) == a_rule_of_mine.Seen(count=3)
    with pytest.raises(UnreadableError, match="no dataclass of these rules"):
        load(data)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (lambda: 1, "function"), (Path("x"), "Path"), (np.array([object()]), "ndarray"), (print, "builtin"),
        (defaultdict(lambda: 1), "defaultdict"), (os, "module"), (io.BytesIO(), "BytesIO"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_when_it_is_saved(value: object, named: str) -> None:
    with pytest.raises(UnsaveableError, match=named):
        dump({"memory": [value]})


class _Calls:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "call",
    [
        (os.system, ("true",)),
        (eval, ("1",)),
        (getattr, (1, "real")),
        (np.frombuffer, (b"12345678",)),
        (np.dtype, ("O",)),
        (list, ((1,),)),
    ],
)
def test_a_file_that_names_a_function_is_refused_before_it_is_called(call: Any) -> None:
    with pytest.raises(UnreadableError, match="names"):
        load(pickle.dumps({"a": _Calls(*call)}))


def _forged(name: str, *arguments: object) -> bytes:
    """A pickle that calls one of the reader's own makers."""
    called = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02ctdcore.rules.plain_pickle\n" + name.encode() + b"\n" + called + b"R."


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("_array", ("O", (1,), b"12345678", False)),
        ("_array", ("<f8", (10**9,), b"12345678", False)),
        ("_container", ("eval", "1", None)),
        ("_container", ("defaultdict", {}, "eval")),
        ("_instance", ("os", "stat_result", {})),
        ("_instance", ("tdcore.rules.base", "ConfigError", {})),
        ("_instance", ("tdcore.rules.window", "Coverage", {"judged": 1})),
        ("_instance", ("tdcore.rules.nothing", "Coverage", {})),
        ("load", (b"",)),
        ("np.fromfile", ("x",)),
    ],
)
def test_the_makers_refuse_what_is_none_of_theirs(name: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(UnreadableError):
        load(_forged(name, *arguments))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_pickle_are_refused(data: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        load(b"\x80\x05" + data)
