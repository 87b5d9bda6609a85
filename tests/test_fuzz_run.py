"""Damaged and hostile runs: readers raise an error of tdcore or return the right answer.

Never a crash, a wrong value, a read outside of the run or a huge allocation. Every file of a small run is
truncated, bit-flipped and overwritten, and rows and documents get absurd values. Each read must then raise a
TdcoreError, or return exactly what was written.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore.errors import TdcoreError
from tdcore.trial import Trial, create_trial
from tests.trial.writer import RunWriter, index_bytes

Array = npt.NDArray[Any]

_SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_VALUES: dict[str, Array] = {
    "x": np.linspace(-3, 3, 50, dtype=np.float32),
    "y": np.arange(20.0).reshape(4, 5),
    "flags": np.arange(16) % 2 == 0,
}
_COLLECTION = {"include_regex": [".*"], "tensor_names": ["x"]}
_MEMORY = 768 << 20  # limit for memory that reading a run of a few KiB may reserve, including thread stacks


def write_run(root: Path) -> RunWriter:
    run = RunWriter(root)
    for step in range(2):
        run.add("x", _VALUES["x"] + step, step=step)
        run.add("y", _VALUES["y"] + step, step=step, parts=3, kind="gradient")
        run.add("flags", _VALUES["flags"], step=step, origin="Mask")
        run.add("absent", None, step=step, status="absent")
        run.flush()
    run.put(
        "collections.json",
        {
            "format": 1,
            "attempts": {"0": {"collections": {"all": {"include_regex": [".*"], "tensor_names": ["x"]}}}},
        },
    )
    run.write("findings/rule.jsonl", b'{"step": 1}\n')
    run.end(last_step=1)
    return run


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz") / "run"
    write_run(root)
    return root


@contextmanager
def little_memory() -> Iterator[None]:
    """Limit the address space, so that a huge allocation is a MemoryError, which fails the test."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def attempt(question: Callable[[], Any]) -> Any:
    """Return the answer, or None for an error of tdcore. Any other error fails the test."""
    try:
        return question()
    except TdcoreError as error:
        message = str(error)
    assert 0 < len(message) < 3000
    return None


def ask_everything(root: Path, *, statistics: bool = True) -> None:
    """Read everything of a run; each read must be right or raise an error of tdcore."""
    trial: Trial | None = attempt(lambda: create_trial(root))
    if trial is None:
        return
    for question in (
        trial.steps, trial.modes, trial.workers, trial.collections, trial.findings, trial.ends, trial.rows,
        trial.index.poll, trial.next_complete, lambda: trial.status, lambda: trial.gaps,
        lambda: trial.tensor_names(collection="all"), trial.attempt_info, lambda: trial.mode(1),
    ):  # fmt: skip
        attempt(question)
    table = attempt(trial.stats)
    if statistics and table is not None:
        check_statistics(table)
    for name in attempt(trial.tensor_names) or []:
        tensor = attempt(lambda name=name: trial.tensor(name))  # type: ignore[misc]
        for step in (attempt(tensor.steps) or [])[:4] if tensor else []:
            check_value(name, step, attempt(lambda: tensor.value(step)))  # noqa: B023 -- called at once
            attempt(lambda: tensor.shape(step))  # noqa: B023
            attempt(lambda: tensor.reduction_values(step))  # noqa: B023
            attempt(lambda: tensor.reduction_value(step, "prod"))  # noqa: B023


def check_value(name: str, step: int, value: Array | None) -> None:
    if value is None or name not in _VALUES or step not in (0, 1):
        return
    want = _VALUES[name] if name == "flags" else _VALUES[name] + step
    assert value.tobytes() == want.tobytes()


def check_statistics(table: pa.Table) -> None:
    """Check statistics.

    Checksums of Parquet's pages guarantee that damage does not silently change a number.
    """
    for row in table.to_pylist():
        if row["name"] in _VALUES and row["step"] in (0, 1):
            want = _VALUES[row["name"]] + (row["step"] if row["name"] != "flags" else 0)
            assert row["status"] == "lost" or row["mean"] == pytest.approx(np.mean(want, dtype=np.float64))


def files_of(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def copied(pristine: Path, tmp_path: Path) -> Path:
    root = tmp_path / "copy"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(pristine, root)
    return root


@_SETTINGS
@given(data=st.data())
def test_cut_files_give_errors_or_right_values(pristine: Path, tmp_path: Path, data: st.DataObject) -> None:
    root = copied(pristine, tmp_path)
    path = root / data.draw(st.sampled_from(files_of(root)))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with little_memory():
        ask_everything(root)


@_SETTINGS
@given(data=st.data())
def test_flipped_bytes_give_errors_or_right_values(
    pristine: Path, tmp_path: Path, data: st.DataObject
) -> None:
    root = copied(pristine, tmp_path)
    path = root / data.draw(st.sampled_from(files_of(root)))
    content = bytearray(path.read_bytes())
    # The end of a Parquet file is its footer, where a flip has most effect: half of the flips are there.
    near_end = st.integers(max(0, len(content) - 3000), len(content) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1) | near_end)
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(content))
    with little_memory():
        ask_everything(root)


@_SETTINGS
@given(data=st.data(), junk=st.binary(max_size=300))
def test_files_of_junk_give_errors(pristine: Path, tmp_path: Path, data: st.DataObject, junk: bytes) -> None:
    root = copied(pristine, tmp_path)
    path = root / data.draw(st.sampled_from(files_of(root)))
    if data.draw(st.booleans()):
        junk = b"PAR1" + junk + len(junk).to_bytes(4, "little") + b"PAR1"
    path.write_bytes(junk)
    with little_memory():
        ask_everything(root)


_INTS = st.sampled_from(
    [-(2**63), -1, 0, 1, 2, 7, 4096, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1]
) | st.integers(-9, 99)
_SMALL_INTS = _INTS.filter(lambda value: -(2**31) <= value < 2**31)
_WORDS = ["", "x", "../x", "/etc/passwd", "a\0b", "F32", "F64", "BOOL", "C128", "BF16", "n" * 70_000]
_TEXTS = st.sampled_from(_WORDS) | st.text()
_SEGMENTS = st.sampled_from(
    [
        "../../../../etc/passwd",
        "0000-000000000000-000000000000.safetensors",
        "0000-000000000000-000000000005.safetensors",
        "0000-999999999999-000000000000.safetensors",
        "../0000-000000000000-000000000005.safetensors",
        "0000-000000000000-000000000005.safetensors\n",
        "\u0660000-000000000000-000000000005.safetensors",
    ]
)
_SHAPES = st.none() | st.lists(_INTS, max_size=6) | st.just([1] * 100) | st.just([2**32, 2**32, 0])
_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "ticket": _INTS, "step": _INTS, "mode_step": _INTS, "seq": _SMALL_INTS, "call": _SMALL_INTS,
    "part": _SMALL_INTS, "parts": _SMALL_INTS, "element_offset": _INTS, "elements": _INTS,
    "offset": st.none() | _INTS, "nbytes": st.none() | _INTS, "name": _TEXTS, "kind": _TEXTS,
    "dtype": st.none() | _TEXTS, "mode": _TEXTS,
    "status": st.sampled_from(["ok", "absent", "skipped", "lost", "?"]), "reason": st.none() | _TEXTS,
    "segment": st.none() | _SEGMENTS | _TEXTS, "shape": _SHAPES, "count": st.none() | _INTS,
    "nan_count": st.none() | _INTS,
    "mean": st.none() | st.floats(), "m2": st.none() | st.floats(), "min": st.none() | st.floats(),
    "abs_sum": st.none() | st.floats(), "square_sum": st.none() | st.floats(),
    "log2_first": st.none() | st.integers(-128, 127), "log2_counts": st.none() | st.lists(_INTS, max_size=80),
    "time_ns": _INTS, "attempt": _SMALL_INTS, "worker": _TEXTS,
}  # fmt: skip
# Fields that a payload's checksum does not cover: if they change, values may be returned under other names.
_RENAMING = {"name", "step", "dtype", "shape", "ticket", "call", "seq", "part", "parts", "mode", "mode_step"}


@settings(_SETTINGS, max_examples=60)
@given(data=st.data())
def test_rows_that_say_absurd_things_are_refused(pristine: Path, tmp_path: Path, data: st.DataObject) -> None:
    root = copied(pristine, tmp_path)
    path = sorted((root / "index/worker_0").iterdir())[0]
    rows = pq.read_table(path).to_pylist()
    changed: set[str] = set()
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0, len(rows) - 1))
        column = data.draw(st.sampled_from(sorted(_COLUMNS)))
        rows[row][column] = data.draw(_COLUMNS[column])
        changed.add(column)
    path.write_bytes(index_bytes(rows))
    with little_memory():
        if changed & _RENAMING:
            ask_anything(root)
        else:
            ask_everything(root, statistics=False)


def ask_anything(root: Path) -> None:
    """Read like ask_everything, without checks of values, because rows may have been renamed."""
    trial: Trial | None = attempt(lambda: create_trial(root))
    if trial is None:
        return
    for question in (trial.steps, trial.stats, trial.rows, trial.next_complete, trial.modes):
        attempt(question)
    for name in attempt(trial.tensor_names) or []:
        tensor = attempt(lambda name=name: trial.tensor(name))  # type: ignore[misc]
        for step in (attempt(tensor.steps) or [])[:4] if tensor else []:
            attempt(lambda: tensor.value(step))  # noqa: B023 -- called at once
            attempt(lambda: tensor.reduction_values(step))  # noqa: B023


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_DOCUMENTS = ["run.json", "collections.json", "end/worker_0/0000.json", "findings/rule.jsonl"]


@_SETTINGS
@given(key=st.sampled_from(_DOCUMENTS), replacement=_JSON, data=st.data())
def test_documents_with_absurd_fields_are_refused(
    pristine: Path, tmp_path: Path, key: str, replacement: Any, data: st.DataObject
) -> None:
    root = copied(pristine, tmp_path)
    document = json.loads((root / key).read_text())
    place: Any = document
    while True:  # walk down to a random field
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        field = data.draw(st.sampled_from(keys))
        inner = place[field]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[field] = replacement
    (root / key).write_text(json.dumps(document) + "\n")
    with little_memory():
        ask_everything(root)


def test_links_and_odd_things_in_the_run_are_refused(pristine: Path, tmp_path: Path) -> None:
    root = copied(pristine, tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(5000))
    for path in (root / "data/worker_0").iterdir():
        path.unlink()
        path.symlink_to(secret)
    trial = create_trial(root)
    for name in ("x", "y"):
        with pytest.raises(TdcoreError, match="outside the run"):
            trial.tensor(name).value(0)
