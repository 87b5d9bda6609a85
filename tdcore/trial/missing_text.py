"""Data that is missing in a run, as lines of text. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tdcore.text.numbers import human_bytes
from tdcore.trial.left_out import left_out_text

if TYPE_CHECKING:
    from tdcore.trial.missing import Missing

__all__ = ["missing_lines"]


def missing_lines(missing: Iterable[Missing], modes: int = 1) -> Iterator[str]:
    """One line per missing item. modes: number of modes of the run; a gap has only global step numbers."""
    kind = "step" if modes < 2 else "global step"
    for each in missing:
        who = f"{each.worker} of attempt {each.attempt}"
        if each.gap is not None:
            gap = each.gap
            which = "of unknown steps"
            if gap.last_step is not None:
                first = f"up to {kind} " if gap.first_step is None else f"of {kind}s {gap.first_step}.."
                which = f"{first}{gap.last_step}"
            tensors = "tensors" if gap.tensors is None else f"{gap.tensors:,} tensors"
            size = "" if gap.bytes is None else f" ({human_bytes(gap.bytes)})"
            kept = "; their statistics are" if gap.statistics_kept else ""
            what = "values of " if gap.statistics_kept else ""
            yield f"{what}{tensors}{size} {which} of {who} are not in the run{kept}: {each.advice}"
        elif each.left_out is not None:
            yield f"{left_out_text(each.left_out)}: their tensors are not in the run of {who}: {each.advice}"
        elif each.what == "rows":
            yield f"rows of {who} are missing from the index: {each.advice}"
        else:
            yield f"{who} has not ended, and it has written nothing for a while: {each.advice}"
