"""Names of the files of a run, and the selection of files to read."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.format import layout
from tdcore.format.layout import FileRange
from tdcore.modes import ModeKeys, modes

TICKETS = st.integers(0, 10**12 - 1)


@given(st.sampled_from(["worker_0", "rank-3", "a.b"]), st.integers(0, 9999), TICKETS, TICKETS)
def test_a_key_says_what_it_was_made_from(worker: str, attempt: int, a: int, b: int) -> None:
    place = FileRange(worker, attempt, min(a, b), max(a, b))
    assert layout.parse_index_key(place.index_key) == place
    assert layout.parse_data_key(place.data_key) == place
    assert layout.parse_index_key(place.data_key) is None
    name = layout.segment_name(attempt, place.first, place.last)
    assert layout.segment_key(worker, name) == place.data_key
    assert layout.parse_segment_name(name) == (attempt, place.first, place.last)


def test_keys_are_what_the_format_says() -> None:
    assert layout.index_key("worker_0", 1, 2, 30) == "index/worker_0/0001-000000000002-000000000030.parquet"
    assert layout.data_key("worker_0", 1, 2, 30) == "data/worker_0/0001-000000000002-000000000030.safetensors"
    assert layout.end_key("worker_0", 7) == "end/worker_0/0007.json"
    assert layout.stop_key(7) == "control/stop-0007.json"
    assert layout.capture_key(7, 12) == "control/capture-0007-0012.json"
    assert layout.findings_key("vanishing_gradient") == "findings/vanishing_gradient.jsonl"
    assert layout.worker_name(3) == "worker_3"
    assert layout.parse_end_key("end/worker_0/0007.json") == ("worker_0", 7)


@pytest.mark.parametrize(
    "key",
    [
        "index/worker_0/0001-000000000002-000000000001.parquet",  # the last ticket is before the first one
        "index/worker_0/0001-000000000002-000000000030.parquet\n",
        "index/worker_0/0001-00000000002-000000000030.parquet",
        "index/../0001-000000000002-000000000030.parquet",
        "index/worker_0/x/0001-000000000002-000000000030.parquet",
        "index/worker_0/0001-000000000002-00000000003\u0663.parquet",  # a digit that is not ASCII
        "run.json",
        "",
    ],
)
def test_other_keys_are_not_index_files(key: str) -> None:
    assert layout.parse_index_key(key) is None


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "0001-000000000000-000000000001.safetensors/x", "", "x"]
)
def test_a_segment_name_that_is_not_one_is_refused(name: str) -> None:
    assert layout.parse_segment_name(name) is None
    with pytest.raises(ValueError, match="is not a segment name"):
        layout.segment_key("worker_0", name)


def test_values_that_do_not_fit_into_a_key_are_refused() -> None:
    with pytest.raises(ValueError, match="attempt must be 0 to 9999"):
        layout.index_key("worker_0", 10_000, 0, 1)
    with pytest.raises(ValueError, match="tickets must be"):
        layout.index_key("worker_0", 0, 2, 1)
    with pytest.raises(ValueError, match="worker"):
        layout.index_key("../other", 0, 0, 1)
    with pytest.raises(ValueError, match="rule name"):
        layout.findings_key("a/b")
    with pytest.raises(ValueError, match="rank"):
        layout.worker_name(-1)


def test_a_file_that_contains_others_supersedes_them() -> None:
    def place(first: int, last: int, worker: str = "worker_0", attempt: int = 0) -> FileRange:
        return FileRange(worker, attempt, first, last)

    small = [place(0, 4), place(5, 9), place(10, 14)]
    assert layout.live_ranges([*small, place(0, 9)]) == [place(0, 9), place(10, 14)]
    assert layout.live_ranges([*small, place(0, 14), place(0, 9)]) == [place(0, 14)]
    assert layout.live_ranges(small) == small
    assert layout.live_ranges([place(0, 4), place(0, 4)]) == [place(0, 4)]
    others = [place(0, 9, worker="worker_1"), place(0, 9, attempt=1)]
    assert set(layout.live_ranges([*small, *others])) == {*small, *others}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12))
def test_every_ticket_stays_covered_by_the_live_files(pairs: list[tuple[int, int]]) -> None:
    ranges = [FileRange("worker_0", 0, min(pair), max(pair)) for pair in pairs]
    live = layout.live_ranges(ranges)
    assert {t for r in ranges for t in range(r.first, r.last + 1)} == {
        t for r in live for t in range(r.first, r.last + 1)
    }
    assert not any(a is not b and a.contains(b) for a in live for b in live)


def test_kinds_and_modes_keep_their_codes() -> None:
    assert [kind.label for kind in layout.TensorKind] == [
        *("weight", "bias", "gradient", "output", "input", "loss", "scalar", "optimizer_state"),
        *("hyperparameter", "custom", "metric", "reduction", "output_gradient"),
    ]
    assert [int(kind) for kind in layout.TensorKind] == list(range(1, 14))
    assert [(mode.name, mode.value) for mode in ModeKeys] == [
        ("TRAIN", 1),
        ("EVAL", 2),
        ("PREDICT", 3),
        ("GLOBAL", 4),
    ]
    assert modes is ModeKeys


def test_importing_the_layout_does_not_import_arrow_until_the_schema_is_asked_for() -> None:
    code = (
        "import sys, tdcore.flusher, tdcore.sinks; from tdcore.format import layout\n"
        "assert 'pyarrow' not in sys.modules\n"
        "assert layout.INDEX_SCHEMA is layout.index_schema(); assert 'pyarrow' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        layout.nothing  # type: ignore[attr-defined]  # noqa: B018
