"""The steps of a run in words, as the training loop counts them: by mode if there are several modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["spans_text"]


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
