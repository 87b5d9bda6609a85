"""Safe pickles: plain values become bytes and the same values again; everything else is refused."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.rules import Finding
from tdcore.rules.measures.series import Points
from tdcore.rules.safe_pickle import UnreadableError, UnsaveableError, dump, load
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
    two = np.arange(2)
    points = Points(unit=two, step=two, own_step=two, mode_step=two, value=np.ones(2))
    coverage = Coverage(judged=3, missing={"why": 2})
    back = load(dump([finding, points, coverage]))
    assert back[0] == finding
    np.testing.assert_array_equal(back[1].value, points.value)
    assert back[2] == coverage


def test_dataclasses_of_a_users_rules_come_back_only_where_that_module_is_named() -> None:
    data = dump(a_rule_of_mine.Seen(count=3))
    assert load(data, {a_rule_of_mine.__name__}) == a_rule_of_mine.Seen(count=3)
    with pytest.raises(UnreadableError, match="not a dataclass of these rules"):
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


def _part(value: object) -> bytes:
    """Return the operations that create a value, without the frame around them."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=3)
    pickler.fast = True
    pickler.dump(value)
    return buffer.getvalue()[2:-1]


def _made(name: str, *arguments: object) -> bytes:
    """Return operations that call one of the reader's constructors."""
    return _part("tdcore.rules.safe_pickle") + _part(name) + b"\x93" + _part(arguments) + b"R"


def _forged(name: str, *arguments: object) -> bytes:
    """Return a pickle that calls one of the reader's constructors."""
    return b"\x80\x05" + _made(name, *arguments) + b"."


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


def test_the_makers_make_what_is_theirs() -> None:
    np.testing.assert_array_equal(load(_forged("_array", "<i8", (1,), bytes(8), False)), [0])
    assert load(_forged("_container", "Counter", {"a": 2}, None)) == Counter("aa")


def test_what_a_file_has_made_cannot_be_called(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: ...\n")
    settings = {"attempt": None, "ended": False, "write_findings": False, "max_findings": 1}
    task = _made(
        "_instance", "tdcore.rules.sweep_task", "SweepTask", {"rules": [f"{module}::Mine"], **settings}
    )
    with pytest.raises(UnreadableError, match="the file calls a SweepTask"):
        load(b"\x80\x05" + task + _part((str(tmp_path),)) + b"R.")
    assert not (tmp_path / "ran").exists()


@dataclass
class _Greedy:
    """Raises when one of its methods is called."""

    items: list[object]

    def append(self, item: object) -> None:
        raise AssertionError("append was called")

    extend = add = __setstate__ = append

    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError("__setitem__ was called")


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        (b"Na", "adds items to a _Greedy"), (b"(Ne", "adds items to a _Greedy"),
        (b"NNs", "adds items to a _Greedy"), (b"(NNu", "adds items to a _Greedy"),
        (b"(N\x90", "adds items to a _Greedy"), (b"Nb", "KeyError"), (b")\x81", "KeyError"),
    ],
)  # fmt: skip
def test_no_method_of_what_a_file_has_made_is_called(operations: bytes, message: str) -> None:
    greedy = _made("_instance", __name__, "_Greedy", {"items": []})
    assert load(b"\x80\x05" + greedy + b".", {__name__}) == _Greedy([])
    with pytest.raises(UnreadableError, match=message):
        load(b"\x80\x05" + greedy + operations + b".", {__name__})


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"Nr\xff\xff\xff\xff.", "KeyError"),  # index 2**32 - 1 of the memo
        (b"\x96" + (1 << 40).to_bytes(8, "little") + b"x.", "EOFError"),
        (b"\x8e" + (1 << 40).to_bytes(8, "little") + b"x.", "EOFError"),
        (
            _part(bytes(800)) + b"\x94" + (_part("tdcore.rules.safe_pickle") + _part("_array") + b"\x93("
            + _part("<i8") + _part((100,)) + b"h\x00\x89tR") * 20 + b".",
            "copies its own parts",
        ),
    ],
)  # fmt: skip
def test_a_small_file_takes_little_memory(program: bytes, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        load(b"\x80\x05" + program)


def test_values_that_stand_in_several_places_are_one_value_again() -> None:
    shared: list[object] = [np.arange(100)]
    shared.append((shared,))
    back = load(dump({"a": shared, "b": shared, "c": bytearray(b"abc")}))
    assert back["a"] is back["b"] is back["a"][1][0]
    assert back["c"] == bytearray(b"abc")


@pytest.mark.parametrize("empty", [np.str_(), np.bytes_()])
def test_empty_texts_of_numpy_come_back(empty: np.generic) -> None:
    back = load(dump([empty]))
    assert back == [empty]
    assert type(back[0]) is type(empty)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_pickle_are_refused(data: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        load(b"\x80\x05" + data)


def nested(kind: type[list[Any]] | type[tuple[Any, ...]], depth: int = 60) -> Any:
    """Return a pickle of a few hundred bytes that has 2 to the power of `depth` parts when it is expanded."""
    value: Any = kind(("x",))
    for _ in range(depth):
        value = kind((value, value))
    return value


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shape", ["list", "tuple", "key", "member", "values"])
def test_parts_that_are_there_again_and_again_are_refused_at_once(shape: str) -> None:
    value: Any = nested(list if shape in ("list", "values") else tuple)
    data = pickle.dumps(value, protocol=5)
    if shape != "list":  # as pickle writes it, but without hashing the value here
        head, stop = data[:-1], data[-1:]
        put = {"key": b"K\x01s", "member": b"\x90", "values": b"s", "tuple": b""}[shape]
        before = {"key": b"}", "member": b"\x8f(", "values": b"}K\x01", "tuple": b""}[shape]
        data = head[:2] + before + head[11:] + put + stop
    with pytest.raises(UnreadableError, match="again and again") as caught:
        load(data)
    assert len(str(caught.value)) < 200


def test_a_value_that_is_nested_very_deep_is_refused() -> None:
    value: list[Any] = []
    for _ in range(150):
        value = [value]
    with pytest.raises(UnreadableError, match="nested deeper"):
        load(pickle.dumps(value, protocol=5))


def test_a_value_may_be_there_several_times() -> None:
    key, points = (0, "worker_0"), [1.0] * 100
    value = {"ended": frozenset({key}), "delivered": [key] * 5000, "a": points, "b": points}
    assert load(dump(value)) == value
