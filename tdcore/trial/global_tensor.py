"""GlobalTensor: a sharded tensor at one step, assembled from the parts that several workers saved.

The column `shard` has the box of each part. Equal boxes of several workers are copies: one copy is used, and
copies that differ raise an error. If some elements are in no part, the error names them and the workers that
have them. Parts whose sum over workers is the tensor ("partial") are reduced. Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import TensorUnavailableForStep
from tdcore.modes import ModeKeys
from tdcore.trial.assemble import assembled, difference, reduced
from tdcore.trial.captures import resolve
from tdcore.trial.index import Rows
from tdcore.trial.shard_boxes import COPY_OF, Box, Shard, UncoveredCells, box_text, intersection, shard_of
from tdcore.trial.tensor_history import TensorHistory
from tdcore.trial.worker_order import worker_order

__all__ = ["GlobalTensor", "WorkerShard"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShard:
    """The part of a tensor that one worker saved at one step. rows: in order of their parts in the file."""

    worker: str
    rows: Rows
    shard: Shard | None


class GlobalTensor:
    """A tensor at one step of a mode. Raises the errors of TensorHistory.capture if no worker saved it."""

    __slots__ = ("_history", "step", "worker_shards")

    def __init__(self, history: TensorHistory, step: int, mode: ModeKeys, call: int | None) -> None:
        self._history = history
        self.step = step
        self.worker_shards = _worker_shards(history, step, mode, call)

    @property
    def shards(self) -> list[Shard]:
        """The shards of all workers whose rows have one."""
        return [share.shard for share in self.worker_shards if share.shard is not None]

    @property
    def rows(self) -> Rows:
        """The rows of all workers."""
        return np.concatenate([share.rows for share in self.worker_shards])

    @property
    def what(self) -> str:
        """Tensor and step, for messages."""
        return self._history.at(self.step)

    def value(self) -> Array:
        """The values of the whole tensor, read-only.

        Raises TensorUnavailableForStep if the values cannot be assembled. Its reason is "incomplete",
        "copies_differ", "partial", "disagree", or the reason why the values of a part are missing.
        """
        shards = self.shards
        if not shards:
            return self._of_one_worker()
        self._check_agreement(shards)
        reduction = _reduction(shards[0])
        if reduction is not None:
            return self._reduced(reduction)
        values: dict[Box, tuple[Shard, Array, WorkerShard]] = {}
        lacking: list[tuple[WorkerShard, TensorUnavailableForStep]] = []
        for share in self.worker_shards:
            assert share.shard is not None
            known = values.get(share.shard.box)
            if known is not None and self._same_bytes(known[2], share):
                continue
            try:
                array = self._history.value(share.rows, self.step)
            except TensorUnavailableForStep as error:
                lacking.append((share, error))
                continue
            if known is None:
                values[share.shard.box] = share.shard, array, share
            elif text := difference(known[1], array):
                raise self._copies_differ(known[0], share.worker, text)
        self._check_cover(list(values), lacking)
        return assembled([(shard, array) for shard, array, _ in values.values()], self.what)

    def _of_one_worker(self) -> Array:
        if len(self.worker_shards) > 1 and len(self._history.reader.saved(self.rows)):
            raise TensorUnavailableForStep(
                f"{self.what} was saved by {_listed([each.worker for each in self.worker_shards])}, each "
                "with values that are not parts of one tensor; value(step, worker=...) returns each",
                reason="disagree",
            )
        return self._history.value(self.worker_shards[0].rows, self.step)

    def _check_agreement(self, shards: Sequence[Shard]) -> None:
        """Raise TensorUnavailableForStep unless all are parts of one tensor."""
        bare = [share.worker for share in self.worker_shards if share.shard is None]
        if bare:
            raise self._disagree(f"{_listed(bare)} saved no position in a tensor, and others saved parts")
        first = shards[0]
        dtype = self._dtype(self.worker_shards[0])
        for share, shard in zip(self.worker_shards, shards, strict=True):
            if (shard.global_shape, _reduction(shard)) != (first.global_shape, _reduction(first)):
                raise self._disagree(
                    f"{first.worker} has a part{_of(first)}, {share.worker} has a part{_of(shard)}"
                )
            other = self._dtype(share)
            if other != dtype and None not in (other, dtype):
                raise self._disagree(f"{first.worker} has {dtype}, {share.worker} has {other}")

    def _dtype(self, share: WorkerShard) -> str | None:
        return self._history.reader.index.text("dtype", int(share.rows[0]))

    def _disagree(self, text: str) -> TensorUnavailableForStep:
        return TensorUnavailableForStep(
            f"{self.what} is not one tensor: {text}; value(step, worker=...) returns each", reason="disagree"
        )

    def _copies_differ(self, first: Shard, worker: str, text: str) -> TensorUnavailableForStep:
        return TensorUnavailableForStep(
            f"{self.what}: {first.worker} and {worker} have copies of {box_text(first.box)}, and {text}; "
            "value(step, worker=...) returns each",
            reason="copies_differ",
        )

    def _same_bytes(self, one: WorkerShard, other: WorkerShard) -> bool:
        """Whether two copies have equal checksums; the values are not read."""
        index = self._history.reader.index
        if len(one.rows) != len(other.rows) or not len(one.rows):
            return False
        ok = index.dictionaries["status"].code("ok")
        for share in (one, other):
            complete = len(share.rows) == int(index.column("parts")[share.rows[0]])
            saved = (index.column("segment")[share.rows] >= 0).all()
            if not complete or not saved or not (index.column("status")[share.rows] == ok).all():
                return False
        return all(
            np.array_equal(index.column(name)[one.rows], index.column(name)[other.rows])
            for name in ("crc32c", "nbytes")
        )

    def _check_cover(
        self, boxes: Sequence[Box], lacking: Sequence[tuple[WorkerShard, TensorUnavailableForStep]]
    ) -> None:
        """Raise an error unless the boxes cover the tensor. The error names the workers that lack values."""
        shape = self.shards[0].global_shape
        cover = UncoveredCells(shape)
        for box in boxes:
            cover.add(box)
        if not cover.left:
            return
        missing = ", ".join(map(box_text, cover.left[:4])) + (", ..." if len(cover.left) > 4 else "")
        for share, error in lacking:
            assert share.shard is not None
            if any(intersection(share.shard.box, box) for box in cover.left):
                raise TensorUnavailableForStep(
                    f"{self.what} lacks {missing} of its shape {list(shape)}: {share.worker} has "
                    f"{box_text(share.shard.box)}; {error}",
                    reason=error.reason,
                    has_statistics=all(error.has_statistics for _, error in lacking),
                )
        raise TensorUnavailableForStep(
            f"{self.what} lacks {missing} of its shape {list(shape)}: {self._owners(cover.left)}; "
            "value(step, worker=...) returns the existing parts",
            reason="incomplete",
        )

    def _owners(self, missing: Sequence[Box]) -> str:
        """A clause about the workers that have the missing elements at other steps."""
        there = {share.worker for share in self.worker_shards}
        shape = self.shards[0].global_shape
        owners = [
            f"{shard.worker} has {box_text(shard.box)} at other steps, and no value at this one"
            for shard in self._last_shards()
            if shard.worker not in there
            and shard.global_shape == shape
            and any(intersection(shard.box, box) for box in missing)
        ]
        if owners:
            return ", ".join(owners[:4]) + (", ..." if len(owners) > 4 else "")
        return f"no worker saved them, and {_listed(sorted(there, key=worker_order))} saved the rest"

    def _last_shards(self) -> list[Shard]:
        """The newest shard of each worker, at any step."""
        index, rows = self._history.reader.index, self._history.rows()
        rows = rows[
            index.wide("shape", rows).is_valid().to_numpy()
        ]  # an absent value has no shape and no shard
        workers = index.column("worker")[rows]
        last = [int(rows[workers == code].max()) for code in np.unique(workers).tolist()]
        found = _parts(self._history, np.array(last, dtype=np.int64), self.what)
        return sorted(
            (shard for shard in found if shard is not None), key=lambda shard: worker_order(shard.worker)
        )

    def _reduced(self, reduction: str) -> Array:
        """The reduction over workers, box by box."""
        self._check_all_workers()
        boxes: dict[Box, list[tuple[Shard, Array]]] = {}
        for share in self.worker_shards:
            assert share.shard is not None
            if share.shard.partial != reduction:
                continue  # a copy of the part of another worker
            array = self._history.value(share.rows, self.step)
            boxes.setdefault(share.shard.box, []).append((share.shard, array))
        self._check_cover(list(boxes), [])
        parts = [
            (each[0][0], reduced(reduction, [array for _, array in each], self.what))
            for each in boxes.values()
        ]
        return assembled(parts, self.what)

    def _check_all_workers(self) -> None:
        """Raise an error if the part of a worker is missing, because the sum would be wrong."""
        progress = self._history.reader.progress
        there = {share.worker for share in self.worker_shards}
        attempt = int(self._history.reader.index.column("attempt")[self.worker_shards[0].rows[0]])
        members = progress.workers(attempt)
        away = [
            shard.worker
            for shard in self._last_shards()
            if shard.worker not in there and shard.worker in members
        ]
        row = int(self.worker_shards[0].rows[0])
        if attempt == progress.latest_attempt:
            waited = set(progress.waiting_for(attempt, self.step, row))
            away += sorted(waited - there - set(away), key=worker_order)
        unsaved = progress.world_size(attempt) - len(progress.workers(attempt))
        if away or unsaved > 0:
            who = _listed(away) if away else f"{unsaved} of {progress.world_size(attempt)} workers"
            raise TensorUnavailableForStep(
                f"{self.what} is a {_reduction(self.shards[0])} over workers, and the contribution of {who} "
                "was not saved; value(step, worker=...) returns the contribution of each worker",
                reason="incomplete",
            )


def _worker_shards(history: TensorHistory, step: int, mode: ModeKeys, call: int | None) -> list[WorkerShard]:
    """The captures of all workers at a step (the last one with this number), sorted by rank."""
    index = history.reader.index
    rows = history.rows_at(step, mode)
    if len(rows) == 0:
        raise history.nothing(step, mode, None)
    rows = rows[index.column("step")[rows] == index.column("step")[rows].max()]
    calls = index.column("call")[rows]
    there = calls[np.isin(rows, history.reader.saved(rows))]
    wanted = call if call is not None else int((there if len(there) else calls).min())
    if not (calls == wanted).any():
        raise history.no_call(step, wanted, calls)
    captures = resolve(index, rows[calls == wanted])
    first = captures.first_rows
    shards = _parts(history, first, history.at(step))
    has_shape = index.wide("shape", first).is_valid().to_pylist()  # an absent tensor has no shape
    shares = [
        WorkerShard(worker=index.text("worker", int(row)) or "", rows=captures.parts(at), shard=shards[at])
        for at, row in enumerate(first.tolist())
        if has_shape[at] or not any(has_shape)
    ]
    return sorted(shares, key=lambda share: worker_order(share.worker))


def _parts(history: TensorHistory, rows: Rows, what: str) -> list[Shard | None]:
    index = history.reader.index
    columns, shapes = (index.wide(name, rows).to_pylist() for name in ("shard", "shape"))
    return [
        None
        if shapes[at] is None
        else shard_of(index.text("worker", row) or "", columns[at], shapes[at], what)
        for at, row in enumerate(rows.tolist())
    ]


def _reduction(shard: Shard) -> str | None:
    return None if shard.partial is None else shard.partial.removeprefix(COPY_OF)


def _of(shard: Shard) -> str:
    partial = f", to be reduced by {_reduction(shard)}" if shard.partial else ""
    return f" of shape {list(shard.global_shape)}{partial}"


def _listed(workers: Sequence[str]) -> str:
    return ", ".join(workers[:8]) + (f" and {len(workers) - 8} more" if len(workers) > 8 else "")
