"""Gate: the number of queries of a rule does not grow with the number of workers or steps.

A query is a call that converts or searches the columns of a window, whose time grows with the rows. Rules
make them for all rows of a window at once. One query per worker and step would make the time of a rule grow
faster than the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tdcore.rules import RULES
from tdcore.rules.columns import Columns
from tdcore.rules.engine import Engine
from tdcore.rules.loading import load_rules
from tdcore.rules.measures.histogram import Histograms
from tdcore.rules.table_source import TableSource
from tests.trial.writer import RunWriter, index_table

_METHODS = ("where", "histograms")


def _run(tmp_path: Any, workers: int, steps: int) -> pa.Table:
    """Rows of a training with weights, gradients, inputs of a ReLU and a loss on each worker."""
    rows: list[dict[str, Any]] = []
    random = np.random.default_rng(0)
    for rank in range(workers):
        run = RunWriter(tmp_path / f"{workers}-{steps}", worker=f"worker_{rank}", world_size=workers)
        for step in range(steps):
            run.add("loss", np.float32(1 / (1 + step)), step=step, kind="loss")
            for layer in range(2):
                values = random.standard_normal((6, 5)).astype(np.float32)
                name = f"layer{layer}.weight"
                run.add(name, values, step=step, kind="weight", payload=False)
                run.add(f"gradient/{name}", values, step=step, kind="gradient", payload=False)
                run.add(f"relu{layer}_relu_input_0", values, step=step, kind="input", payload=False)
        rows += [each.row for each in run._pending]
    return index_table(rows)


def _queries(rule: str, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of calls of each kind while a rule judges the rows."""
    counts: Counter[str] = Counter()

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in _METHODS:
            patch.setattr(Columns, name, counted(name, getattr(Columns, name)))
        patch.setattr(Histograms, "of", counted("of", Histograms.of))
        Engine(TableSource(table), load_rules([rule]), write_findings=False).step()
    return counts


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], pa.Table]:
    folder = tmp_path_factory.mktemp("runs")
    return {shape: _run(folder, *shape) for shape in ((2, 3), (9, 3), (2, 12))}


@pytest.mark.parametrize("rule", list(RULES))
def test_the_number_of_queries_of_a_rule_does_not_grow_with_workers_and_steps(
    rule: str, tables: dict[tuple[int, int], pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = _queries(rule, tables[2, 3], monkeypatch)
    for shape in ((9, 3), (2, 12)):
        many = _queries(rule, tables[shape], monkeypatch)
        for kind, number in many.items():
            limit = max(few[kind], 2) + 6
            assert number <= limit, f"{rule}: {number} calls of {kind} for {shape}, {few[kind]} for (2, 3)"
