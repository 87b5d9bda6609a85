"""The steps of a run in words, as the training loop counts them: by mode if there are several modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["spans_of_tensors", "spans_text"]

Span = dict[str, int]  # first, last: steps of the mode; steps: how many were saved
_ORDER = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")


def spans_of_tensors(rows: pa.Table) -> dict[tuple[str, ...], dict[str, Span]]:
    """(name, kind) -> mode -> its span. The rows also have the columns name and kind."""
    return _grouped(rows, ["name", "kind"])


def _grouped(rows: pa.Table, keys: list[str]) -> dict[tuple[str, ...], dict[str, Span]]:
    rows = rows.select([*keys, "mode", "mode_step"])
    for name in (*keys, "mode"):
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).cast("string"))
    grouped = rows.group_by([*keys, "mode"]).aggregate(
        [("mode_step", "min"), ("mode_step", "max"), ("mode_step", "count_distinct")]
    )
    found: dict[tuple[str, ...], dict[str, Span]] = {}
    for row in sorted(grouped.to_pylist(), key=lambda row: _ORDER.index(row["mode"])):
        found.setdefault(tuple(row[key] for key in keys), {})[row["mode"]] = {
            "first": row["mode_step_min"],
            "last": row["mode_step_max"],
            "steps": row["mode_step_count_distinct"],
        }
    return found


def _span_text(span: Mapping[str, Any]) -> str:
    """A span as text: "0..170 (18)", or only the step if there is one."""
    if span["steps"] == 1:
        return str(span["first"])
    return f"{span['first']}..{span['last']} ({span['steps']:,})"


def spans_text(spans: Mapping[str, Mapping[str, Any]], between: str = ", ") -> str:
    """ "0..170 (18)" if only TRAIN occurs, else "TRAIN 0..170 (18), EVAL 10..40 (5)"."""
    if list(spans) in (["TRAIN"], ["GLOBAL"]):
        return _span_text(next(iter(spans.values())))
    return between.join(f"{mode} {_span_text(span)}" for mode, span in spans.items())
