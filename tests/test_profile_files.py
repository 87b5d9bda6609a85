"""Files of profiles from untrusted runs: each is read, or refused with an error that names it."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcore as td
from tdcore.errors import RunCorrupt, TdcoreError, UnsafeFile
from tdcore.format import kineto, profiles
from tdcore.format.profiles import operators_schema, parse_profile, parse_profile_key, profile_key
from tdcore.maintenance.remove import remove_run
from tdcore.session.operator_totals import operator_totals
from tests.test_cli import Command, write
from tests.test_cli_hostile import EVIL, assert_plain

KEY = profile_key("worker_0", 0, 0)
BASE = 1_700_000_000_000_000_000


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


def event(name: str, ts: Any, dur: float, **more: Any) -> dict[str, Any]:
    """An event of a trace, of an operator unless `more` has another category."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} | more


def trace_text(events: list[dict[str, Any]], **head: Any) -> bytes:
    return json.dumps({"baseTimeNanoseconds": BASE, **head, "traceEvents": events}, indent=1).encode()


def run_id(root: Path) -> str:
    return str(json.loads((root / "run.json").read_text())["run_id"])


def add_profile(root: Path, trace: bytes, **fields: Any) -> Path:
    """Add a profile with a trace and totals to a run, as the writer does. Return the path of its document."""
    own = run_id(root)
    table = operator_totals([event("aten::mm", 0, 5)]).replace_schema_metadata(
        {b"tdcore": json.dumps({"run_id": own}).encode()}
    )
    operators = io.BytesIO()
    pq.write_table(table, operators)
    files = {"trace": gzip.compress(trace), "operators": operators.getvalue()}
    for name, data in files.items():
        path = root / profile_key("worker_0", 0, 0, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    document = {
        "format": 1, "run_id": own, "worker": "worker_0", "attempt": 0, "number": 0, "state": "complete",
        "reason": "", "framework": "pytorch", "request": None, "mode": "TRAIN", "first_step": 3,
        "last_step": 4, "begin_ns": BASE, "end_ns": BASE + 10**9, "base_ns": BASE, "messages": [],
        "files": {name: len(data) for name, data in files.items()}, **fields,
    }  # fmt: skip
    (root / KEY).write_text(json.dumps(document))
    return root / KEY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "run")


def test_a_profile_is_read(root: Path) -> None:
    add_profile(root, trace_text([event("aten::mm", 0, 5)]))
    (profile,) = td.create_trial(root).profiles()
    assert repr(profile) == "<Profile 0 of worker_0 in attempt 0: TRAIN steps 3 to 4, complete>"
    assert profile.operators().column("cpu_self_ns").to_pylist() == [5000]
    assert [each["name"] for each in profile.trace_events()] == ["aten::mm"]
    assert profile.keys["trace"] == "profiles/worker_0/0000-0000.trace.json.gz"
    assert td.create_trial(root).profiles(workers="worker_1") == []
    with pytest.raises(TdcoreError, match="has no functions: they were not requested"):
        profile.functions()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 2}, "is of format '2'"), ({"run_id": "other"}, "is of another run"),
        ({"worker": "worker_1"}, "about another profile"), ({"number": 1}, "about another profile"),
        ({"state": "good"}, "state is 'good', expected one of complete, partial, failed"),
        ({"begin_ns": -1}, "begin_ns is -1"), ({"base_ns": "now"}, "base_ns is 'now'"),
        ({"first_step": 1.5}, r"first_step is 1\.5"), ({"messages": "no"}, "messages is 'no'"),
        ({"files": []}, "files is a list"), ({"files": {"trace": "big"}}, "trace is 'big'"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_refused(root: Path, fields: dict[str, Any], message: str) -> None:
    add_profile(root, trace_text([]), **fields)
    with pytest.raises(RunCorrupt, match=message):
        td.create_trial(root).profiles()


_ANY: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
)


@given(
    st.dictionaries(
        st.sampled_from(["state", "files", "messages", "first_step", "request", "base_ns", "mode", "run_id"]),
        _ANY,
    )
)
def test_any_document_is_a_profile_or_refused(fields: dict[str, Any]) -> None:
    document = {
        "format": 1, "run_id": "a", "worker": "worker_0", "attempt": 0, "number": 0, "state": "failed",
        "begin_ns": 1, "end_ns": 2, **fields,
    }  # fmt: skip
    try:
        found = parse_profile(json.dumps(document).encode(), KEY, "a")
    except RunCorrupt as error:
        assert KEY in str(error)  # noqa: PT017 -- either may come
    else:
        assert found.state in profiles.STATES


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b'{"traceEvents": {}}', b'{"traceEvents": [', b'{"traceEvents": [1]}',
        b'{"traceEvents": [{"ph": "X"', b'{"traceEvents": [{} {}]}', b"\xff" * 100,
        b'{"traceEvents": [' + b'{"a":' * 100_000, b'{"traceEvents": [{"a": "' + b"x" * 3_000_000,
        b"x" * 3_000_000,
    ],
    ids=range(12),
)  # fmt: skip
def test_a_text_that_is_not_a_trace_is_refused(root: Path, text: bytes) -> None:
    add_profile(root, text)
    (profile,) = td.create_trial(root).profiles()
    with pytest.raises(RunCorrupt, match=r"trace\.json\.gz is not a trace of torch\.profiler"):
        list(profile.trace_events())


def test_a_damaged_archive_is_refused(root: Path) -> None:
    add_profile(root, trace_text([event("x", 0, 1)]))
    path = root / profile_key("worker_0", 0, 0, "trace")
    for data in (b"not gzip", path.read_bytes()[:-12], b"\x1f\x8b\x08" + b"\xff" * 60):
        path.write_bytes(data)
        (profile,) = td.create_trial(root).profiles()
        with pytest.raises(RunCorrupt, match="is not a trace"):
            list(profile.trace_events())


def test_an_archive_that_expands_without_end_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "MAX_TRACE_JSON_BYTES", 1 << 22)
    add_profile(root, b'{"traceEvents": [' + b"{},\n" * (1 << 21))
    (profile,) = td.create_trial(root).profiles()
    with pytest.raises(RunCorrupt, match="more than 4,194,304 bytes"):
        list(profile.trace_events())


def test_too_many_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "MAX_TRACE_EVENTS", 3)
    assert len(list(kineto.trace_events(io.BytesIO(trace_text([{}] * 3)), "t"))) == 3
    with pytest.raises(RunCorrupt, match="t has more than 3 events"):
        list(kineto.trace_events(io.BytesIO(trace_text([{}] * 4)), "t"))


@given(
    st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.integers() | st.booleans())),
    st.integers(1, 50),
)
def test_events_are_the_same_for_any_size_of_the_pieces(events: list[dict[str, Any]], size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            return super().read(size)

    text = json.dumps({"traceEvents": events}, indent=1, ensure_ascii=False).encode()
    assert list(kineto.trace_events(Slow(text), "t")) == events


@pytest.mark.parametrize("value", ["x", None, -1, 1.5, 1 << 70])
def test_a_wrong_base_time_is_refused(value: object) -> None:
    with pytest.raises(RunCorrupt, match="baseTimeNanoseconds is not a time"):
        kineto.base_time(io.BytesIO(trace_text([], baseTimeNanoseconds=value)), "t")


def test_a_link_and_a_huge_file_are_refused(root: Path) -> None:
    document = add_profile(root, trace_text([]))
    trace = root / profile_key("worker_0", 0, 0, "trace")
    (profile,) = td.create_trial(root).profiles()
    os.truncate(trace, 20 << 30)
    with pytest.raises(UnsafeFile, match="trace"):
        profile.trace()
    trace.unlink()
    with pytest.raises(RunCorrupt, match="is missing, although"):
        profile.trace()
    target = document.rename(document.with_name("real"))
    document.symlink_to(target)
    with pytest.raises(UnsafeFile, match=KEY):
        td.create_trial(root).profiles()


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_damaged_totals_are_refused(root: Path, data: bytes) -> None:
    add_profile(root, trace_text([]))
    (root / profile_key("worker_0", 0, 0, "operators")).write_bytes(data)
    (profile,) = td.create_trial(root).profiles()
    with pytest.raises(RunCorrupt, match=r"operators\.parquet"):
        profile.operators()


def test_totals_of_another_run_or_with_other_columns_are_refused(root: Path) -> None:
    add_profile(root, trace_text([]))
    path = root / profile_key("worker_0", 0, 0, "operators")
    (profile,) = td.create_trial(root).profiles()
    about = {b"tdcore": json.dumps({"run_id": "other"}).encode()}
    pq.write_table(operators_schema().empty_table().replace_schema_metadata(about), path)
    with pytest.raises(RunCorrupt, match="other"):
        profile.operators()
    about = {b"tdcore": json.dumps({"run_id": run_id(root)}).encode()}
    pq.write_table(pa.table({"name": [1]}).replace_schema_metadata(about), path)
    with pytest.raises(RunCorrupt, match=r"operators\.parquet"):
        profile.operators()


def test_texts_of_a_profile_reach_the_terminal_without_escape_sequences(root: Path, tdcore: Command) -> None:
    trace = trace_text([event(EVIL, 0, 5, args={EVIL: EVIL})])
    add_profile(root, trace, reason=EVIL, mode=EVIL, messages=[EVIL], state="failed")
    found = tdcore("profile", root, "--list")
    assert found.code == 0
    assert_plain(found.out)
    assert tdcore("profile", root, "--list", "--json").json["profiles"][0]["reason"] == EVIL


def test_a_trace_with_wrong_times_is_refused_by_the_timeline(root: Path, tdcore: Command) -> None:
    for wrong in ("soon", None, True):
        add_profile(root, trace_text([event("x", wrong, 1)]))
        found = tdcore("trace", root, "-o", root.parent / "t.json")
        assert found.code == 3
        assert "ts of an event is" in found.err


def test_kernels_of_a_gpu_are_tracks_of_their_own_and_belong_to_their_operator(
    root: Path, tdcore: Command
) -> None:
    events = [
        event("outer", 0, 100, args={"External id": 1}),
        event("aten::mm", 10, 50, args={"External id": 2}),
        event("gemm", 40, 30, cat="kernel", pid=0, tid=7, args={"External id": 2, "device": 0, "stream": 7}),
        {"ph": "s", "id": 9, "pid": 1, "tid": 1, "ts": 11, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 9, "pid": 0, "tid": 7, "ts": 40, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        event("PyTorch Profiler (0)", 0, 9, cat="Trace"),
    ]  # fmt: skip
    rows = {row["name"]: row for row in operator_totals(events).to_pylist()}
    assert (rows["outer"]["device_total_ns"], rows["outer"]["device_self_ns"]) == (30_000, 0)
    assert (rows["aten::mm"]["device_total_ns"], rows["aten::mm"]["device_self_ns"]) == (30_000, 30_000)
    assert (rows["outer"]["cpu_total_ns"], rows["outer"]["cpu_self_ns"]) == (100_000, 50_000)
    assert rows["gemm"]["category"] == "kernel"
    add_profile(root, trace_text(events))
    found = tdcore("trace", root, "-o", root.parent / "t.json")
    assert found.code == 0, found
    written = json.loads((root.parent / "t.json").read_text())["traceEvents"]
    tracks = {each["tid"]: each["args"]["name"] for each in written if each["name"] == "thread_name"}
    of = {
        each["name"]: tracks[each["tid"]] for each in written if each.get("ph") == "X" and each["tid"] >= 1000
    }
    assert of == {
        "outer": "operators of thread 1", "aten::mm": "operators of thread 1", "gemm": "GPU 0 stream 7",
    }  # fmt: skip
    arrows = {each["id"] for each in written if each["ph"] in "sf"}
    assert arrows == {1}  # Perfetto shows no arrow whose id is a text


def test_a_removed_run_has_no_profiles_left_and_links_stay(root: Path, tmp_path: Path) -> None:
    add_profile(root, trace_text([]))
    victim = tmp_path / "victim"
    victim.write_text("not yours")
    (root / "profiles" / "worker_0" / "0000-0001.json").symlink_to(victim)
    removed = remove_run(root)
    assert removed.kept == ["profiles/worker_0/0000-0001.json"]
    left = [path.name for path in root.rglob("*") if not path.is_dir()]
    assert left == ["0000-0001.json"]
    assert victim.read_text() == "not yours"


def test_keys_are_parsed() -> None:
    assert parse_profile_key(KEY) == ("worker_0", 0, 0)
    for key in (
        "profiles/worker_0/0000-0000.trace.json.gz",
        "profiles/a/b/0000-0000.json",
        "x/y/0000-0000.json",
    ):
        assert parse_profile_key(key) is None
    for worker, number in (("../x", 0), ("worker_0", -1), ("worker_0", 10_000)):
        with pytest.raises(ValueError, match="no profile has"):
            profile_key(worker, 0, number)
