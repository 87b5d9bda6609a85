"""The recipes of docs/scale.md return the numbers of Trial."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.trial import create_trial
from tests.trial.writer import RunWriter, place

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
NAME = "gradient/fc.weight"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of two workers in runs/demo, whose files are merged on one worker."""
    random = np.random.default_rng(0)
    root = tmp_path / "runs" / "demo"
    for rank in range(2):
        writer = RunWriter(root, worker=f"worker_{rank}", world_size=2)
        for step in range(12):
            for name in (NAME, "fc.weight", "loss"):
                values = random.standard_normal(1 if name == "loss" else 50).astype(np.float32)
                if step == 7 and name == NAME:
                    values[3] = np.nan
                kind = "loss" if name == "loss" else "gradient"
                if name == "fc.weight":  # a copy on each worker, as under DistributedDataParallel
                    values, kind = np.full(50, step, dtype=np.float32), "weight"
                shard = place((50,), (0,)) if kind == "weight" else None
                for call in range(2 if name == "loss" else 1):
                    writer.add(name, values, step=step, kind=kind, call=call, payload=False, shard=shard)
            writer.flush()
        if rank == 0:
            writer.merge()
        writer.end()
    monkeypatch.chdir(tmp_path)
    return root


def recipe(title: str, **names: Any) -> dict[str, Any]:
    """Run the code with this title, which gets `names`; returns its names."""
    (code,) = re.findall(
        rf'^```python title="{title}"\n(.*?)^```', PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    exec(compile(code, title, "exec"), names)
    return names


@pytest.mark.full
def test_many_tasks_have_the_report_of_one_judgement(run: Path) -> None:
    from tdcore.rules import run as judge

    report = recipe("in_many_tasks.py", __name__="__main__")["report"]
    assert report == judge("runs/demo", "all")
    assert report.findings


def test_duckdb_returns_the_history_of_a_tensor(run: Path) -> None:
    pytest.importorskip("duckdb")
    found = recipe("with_duckdb.py")["history"].fetchall()
    wanted = create_trial(run).stats([NAME], columns=["step", "mean", "std"]).to_pylist()
    np.testing.assert_allclose(sorted(found), sorted(tuple(row.values()) for row in wanted), rtol=1e-12)


def test_polars_returns_the_history_of_a_tensor(run: Path) -> None:
    pytest.importorskip("polars")
    found = recipe("with_polars.py")["history"].rows()
    wanted = create_trial(run).stats([NAME], columns=["step", "mean", "abs_max"]).to_pylist()
    assert sorted(found) == sorted(tuple(row.values()) for row in wanted)


def test_duckdb_merges_the_statistics_of_all_workers(run: Path) -> None:
    pytest.importorskip("duckdb")
    found = recipe("merged.py")["merged"].fetchall()
    columns = ["name", "step", "call", "count", "min", "max", "mean", "l2"]
    wanted = create_trial(run).stats(merged=True, columns=columns).to_pylist()
    assert len(found) == len(wanted) == 48
    by_place = {tuple(row.values())[:3]: list(row.values())[3:] for row in wanted}
    for name, step, call, *numbers in found:
        assert numbers == pytest.approx(by_place[name, step, call], rel=1e-12)


def test_the_table_for_athena_has_columns_of_the_format_with_their_types(run: Path) -> None:
    from tdcore.format.layout import index_schema

    (text,) = re.findall(r"create external table demo \((.*?)\n\)", PAGE.read_text(), re.DOTALL)
    kinds = {"int": "int32", "bigint": "int64", "double": "double", "string": "string"}
    columns = [line.split() for line in text.replace("`", "").split(",")]
    assert len(columns) > 20
    for name, kind in columns:
        found = index_schema().field(name).type
        assert str(getattr(found, "value_type", found)) == kinds[kind], name
