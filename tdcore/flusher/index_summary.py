"""IndexSummary: totals of one index file, stored in the metadata of its Parquet schema.

A restarted flusher adds up the summaries of all files to get the totals of the earlier flushers.
Plain values, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tdcore.format.layout import SUMMARY_KEY

__all__ = ["IndexGap", "IndexSummary", "coalesce"]

_MAX_GAPS = 64  # per index file; if there are more, gaps are joined by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexGap:
    """Tensors that were captured and lost. trial.gaps.Gap is the equivalent for readers.

    Attributes:
        first_step, last_step: Global steps, inclusive; None if unknown.
        tensors, bytes: Number of tensors and bytes; None if unknown.
        reason: Why the tensors were lost.
        statistics_kept: Whether the rows exist, with status "lost".
    """

    first_step: int | None
    last_step: int | None
    tensors: int | None
    bytes: int | None
    reason: str
    statistics_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSummary:
    """Totals of one index file. Sums of summaries are exact, even for merged files.

    Attributes:
        rows: Number of rows.
        records: Number of tickets of the ring that the file covers.
        payload_bytes: Bytes that the rows refer to.
        last_step: Highest global step; -1 without rows.
        last_mode_steps: Highest step of each mode.
        gaps: Tensors that were lost.
        segments: Size of each segment that the rows refer to.
        level: 0 for a flush; increased by 1 with each merge.
        whole_step: The last step that a record in this file marks as complete; None if there is none.
        run_id: Id of the run; "" if unknown.
    """

    rows: int = 0
    records: int = 0
    payload_bytes: int = 0
    last_step: int = -1
    last_mode_steps: dict[str, int] = field(default_factory=dict)
    gaps: tuple[IndexGap, ...] = ()
    segments: dict[str, int] = field(default_factory=dict)
    level: int = 0
    whole_step: int | None = None
    run_id: str = ""

    def to_metadata(self) -> dict[bytes, bytes]:
        """The summary as metadata of a Parquet schema."""
        return {SUMMARY_KEY: json.dumps(asdict(self), separators=(",", ":")).encode()}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes] | None) -> IndexSummary:
        """The summary in the metadata. Raises ValueError if it is missing or invalid."""
        try:
            raw: dict[str, Any] = json.loads((metadata or {})[SUMMARY_KEY])
            gaps = tuple(IndexGap(**gap) for gap in raw.pop("gaps"))
            return cls(**raw, gaps=gaps)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no usable tdcore summary in the index file: {error!r}") from error

    @classmethod
    def total(cls, summaries: Iterable[IndexSummary]) -> IndexSummary:
        """The sum of summaries, with the highest level and whole_step."""
        rows = records = payload_bytes = level = 0
        whole: list[int] = []
        last_step = -1
        mode_steps: dict[str, int] = {}
        gaps: list[IndexGap] = []
        segments: dict[str, int] = {}
        run_id = ""
        for each in summaries:
            run_id = run_id or each.run_id
            rows += each.rows
            records += each.records
            payload_bytes += each.payload_bytes
            level = max(level, each.level)
            last_step = max(last_step, each.last_step)
            for mode, step in each.last_mode_steps.items():
                mode_steps[mode] = max(step, mode_steps.get(mode, step))
            gaps.extend(each.gaps)
            segments.update(each.segments)
            whole += [each.whole_step] if each.whole_step is not None else []
        return cls(
            rows=rows,
            records=records,
            payload_bytes=payload_bytes,
            last_step=last_step,
            last_mode_steps=mode_steps,
            gaps=tuple(coalesce(gaps)),
            segments=segments,
            level=level,
            whole_step=max(whole, default=None),
            run_id=run_id,
        )


def coalesce(gaps: Sequence[IndexGap]) -> list[IndexGap]:
    """Join neighbours of one kind with adjacent steps. If too many gaps remain, join all of each kind."""
    joined: list[IndexGap] = []
    for gap in gaps:
        if joined and _same_kind(joined[-1], gap) and _touch(joined[-1], gap):
            joined[-1] = _join(joined[-1], gap)
        else:
            joined.append(gap)
    if len(joined) <= _MAX_GAPS:
        return joined
    by_kind: dict[tuple[str, bool], IndexGap] = {}
    for gap in joined:
        kind = (gap.reason, gap.statistics_kept)
        by_kind[kind] = _join(by_kind[kind], gap) if kind in by_kind else gap
    return list(by_kind.values())


def _same_kind(a: IndexGap, b: IndexGap) -> bool:
    return (a.reason, a.statistics_kept) == (b.reason, b.statistics_kept)


def _touch(a: IndexGap, b: IndexGap) -> bool:
    if a.last_step is None or b.first_step is None:
        return a.last_step is None and b.first_step is None
    return b.first_step <= a.last_step + 1


def _join(a: IndexGap, b: IndexGap) -> IndexGap:
    return IndexGap(
        first_step=_pick(min, a.first_step, b.first_step),
        last_step=_pick(max, a.last_step, b.last_step),
        tensors=None if a.tensors is None or b.tensors is None else a.tensors + b.tensors,
        bytes=None if a.bytes is None or b.bytes is None else a.bytes + b.bytes,
        reason=a.reason,
        statistics_kept=a.statistics_kept,
    )


def _pick(choose: Any, a: int | None, b: int | None) -> int | None:
    known = [each for each in (a, b) if each is not None]
    return choose(known) if known else None
