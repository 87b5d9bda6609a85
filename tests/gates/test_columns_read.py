"""Gate: the number of column chunks that a query decodes of a merged file.

The time of a query over a long run is mainly the time to decode columns. A query that decodes a column twice,
or a column that its answer does not need, fails here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore.trial import Trial, create_trial
from tests.trial.large_files import EVERY_FILE, large_files, seal
from tests.trial.writer import RunWriter

_GROUPS = 10


def _run(root: Path) -> None:
    """A run of one merged file: 50 steps of 4 tensors in 10 row groups; a fifth tensor at the last step."""
    run = RunWriter(root)
    for step in range(50):
        for name in "abcd" if step < 49 else "abce":
            run.add(name, np.arange(3, dtype=np.float32) + step, step=step)
    run.flush()
    run.end()
    (path,) = run.index_files()
    seal(path, groups=200 // _GROUPS)


def _decoded(question: Callable[[Trial], Any], root: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of chunks of each column that are decoded for an answer."""
    found: Counter[str] = Counter()
    read_row_groups = pq.ParquetFile.read_row_groups

    def read(self: Any, groups: Any, *, columns: list[str], **how: Any) -> pa.Table:
        found.update({name: len(groups) for name in columns})
        return read_row_groups(self, groups, columns=columns, **how)

    with large_files(EVERY_FILE, piece=200 // _GROUPS), monkeypatch.context() as patch:
        trial = create_trial(root)
        patch.setattr(pq.ParquetFile, "read_row_groups", read)
        question(trial)
    return found


def test_one_tensor_decodes_the_columns_of_the_answer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path)
    columns = ["step", "mean", "std", "min", "max"]
    found = _decoded(lambda trial: trial.stats(["a"], columns=columns), tmp_path, monkeypatch)
    assert found == dict.fromkeys(("mean", "m2", "min", "max"), _GROUPS)


def test_a_tensor_of_one_step_decodes_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path)
    found = _decoded(lambda trial: trial.stats(["e"], columns=["step", "mean"]), tmp_path, monkeypatch)
    assert found == {"mean": 1}


def test_merged_statistics_decode_only_the_columns_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path)
    found = _decoded(
        lambda trial: trial.stats(merged=True, columns=["step", "l1", "max"]), tmp_path, monkeypatch
    )
    assert found == dict.fromkeys(("abs_sum", "max"), _GROUPS)


def test_show_decodes_one_statistic_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path)
    found = _decoded(lambda trial: trial.condensed("abcde", "abs_mean", 8), tmp_path, monkeypatch)
    of_last_rows = 2  # the last step, and that of the tensor d, which is in the same row group
    assert "name" not in found
    assert _GROUPS <= found["abs_sum"] <= _GROUPS + of_last_rows
    assert max(count for name, count in found.items() if name != "abs_sum") <= of_last_rows
