"""Rows of a window in groups: results equal those of the rows one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdcore.rules.columns import Columns
from tdcore.rules.measures.series import group_codes, groups
from tdcore.rules.trace import Trace

NAMES = ("attempt", "worker", "mode", "name", "origin", "step")
FAR = 1 << 32  # the code does not count steps one by one over such distances

rows = st.fixed_dictionaries(
    {
        "step": st.sampled_from([0, 1, 2, 7, FAR, FAR + 1]),
        "name": st.sampled_from(["a", "b", "c"]),
        "mode": st.sampled_from(["TRAIN", "EVAL"]),
        "worker": st.sampled_from(["worker_1", "worker_0"]),
        "attempt": st.sampled_from([0, 3]),
        "origin": st.sampled_from([None, "torch.nn.Linear"]),
    }
)


def columns_of(given_rows: list[dict[str, Any]]) -> Columns:
    trace = Trace()
    for row in given_rows:
        trace.add(kind="weight", values=1.0, **row)
    return Columns(trace.table())


@given(
    st.lists(rows, min_size=1, max_size=30),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True),
    st.data(),
)
def test_groups_hold_the_rows_of_each_combination_in_their_order(
    given_rows: list[dict[str, Any]], names: list[str], data: st.DataObject
) -> None:
    columns = columns_of(given_rows)
    chosen = data.draw(st.lists(st.integers(0, len(given_rows) - 1), unique=True, max_size=len(given_rows)))
    wanted: dict[tuple[Any, ...], list[int]] = {}
    for at in chosen:
        key = tuple(given_rows[at][name] if given_rows[at][name] is not None else "" for name in names)
        wanted.setdefault(key, []).append(at)
    found = [
        (tuple(key), group.tolist())
        for *key, group in groups(columns, np.array(chosen, dtype=np.int64), *names)
    ]
    assert dict(found) == wanted
    assert len(found) == len(wanted)


@given(st.lists(rows, min_size=1, max_size=30))
def test_numbers_of_groups_ascend_as_their_values_do(given_rows: list[dict[str, Any]]) -> None:
    codes = group_codes(columns_of(given_rows), np.arange(len(given_rows)), "attempt", "step")
    order = np.argsort(codes, kind="stable")
    keys = [(row["attempt"], row["step"]) for row in given_rows]
    assert [keys[at] for at in order] == sorted(keys)


def test_more_groups_than_two_bytes_can_number_are_told_apart() -> None:
    few = columns_of([{"step": 0, "name": "a"}])
    number = (1 << 16) + 5
    table = few.table.take(np.zeros(2 * number, dtype=np.int64))
    steps = np.tile(np.arange(number), 2)[::-1].astype(np.int64)
    at = table.schema.get_field_index("step")
    columns = Columns(table.set_column(at, table.schema.field(at), [steps]))
    found = list(groups(columns, np.arange(2 * number), "step"))
    assert [step for step, _ in found] == list(range(number))
    assert all(group.size == 2 and np.all(steps[group] == step) for step, group in found)
