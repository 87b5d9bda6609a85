"""Saved steps in a timeline: slices from the first to the last capture of a step. Threads: any; no state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tdcore.format.layout import TensorKind
from tdcore.modes import ModeKeys
from tdcore.timeline.events import Event, counter, time_slice

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROW_COLUMNS", "SavedStep", "saved_step_events", "saved_steps"]

ROW_COLUMNS = ("attempt", "worker", "mode", "mode_step", "kind", "time_ns")
_GROUPS = {
    TensorKind.WEIGHT: "weights captured",
    TensorKind.BIAS: "weights captured",
    TensorKind.OPTIMIZER_STATE: "weights captured",
    TensorKind.INPUT: "outputs captured",
    TensorKind.OUTPUT: "outputs captured",
    TensorKind.LOSS: "loss captured",
    TensorKind.GRADIENT: "gradients captured",
    TensorKind.OUTPUT_GRADIENT: "gradients captured",
}
_OTHER = "other tensors captured"


class SavedStep(NamedTuple):
    """A saved step: the times of its first and last capture, and spans of captures of the same group."""

    worker: str
    attempt: int
    mode: str
    mode_step: int
    tensors: int
    first_ns: int
    last_ns: int
    spans: list[tuple[str, int]]  # group, time of its first capture


def saved_steps(rows: pa.Table) -> Iterator[SavedStep]:
    """The saved steps, by worker, attempt, mode and number."""
    if not rows.num_rows:
        return
    words = {name: _codes(rows.column(name)) for name in ("worker", "mode", "kind")}
    step, attempt = rows.column("mode_step").to_numpy(), rows.column("attempt").to_numpy()
    time = rows.column("time_ns").to_numpy()
    (workers, worker), (modes, mode), (kinds, kind) = words["worker"], words["mode"], words["kind"]
    order = np.lexsort((time, step, mode, attempt, worker))
    keys = [worker[order], attempt[order], mode[order], step[order]]
    groups, names = _group_codes(kinds)
    group, time = groups[kind[order]], time[order]
    starts = _starts(keys)
    changes = _starts([*keys, group])
    ends = np.append(starts[1:], len(order))
    of_step = np.searchsorted(changes, starts)
    for at, end, first, last in zip(
        starts.tolist(), ends.tolist(), of_step.tolist(), [*of_step[1:].tolist(), len(changes)], strict=True
    ):
        yield SavedStep(
            worker=workers[keys[0][at]],
            attempt=int(keys[1][at]),
            mode=modes[keys[2][at]],
            mode_step=int(keys[3][at]),
            tensors=end - at,
            first_ns=int(time[at]),
            last_ns=int(time[end - 1]),
            spans=[(names[group[change]], int(time[change])) for change in changes[first:last].tolist()],
        )


def _codes(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Texts, and the number of each row's text."""
    encoded = column.cast("string").combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices, dtype=np.int64)


def _group_codes(kinds: list[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """For each kind the number of its group, and the names of the groups."""
    names = list(dict.fromkeys([*_GROUPS.values(), _OTHER]))
    of_kind = {kind.label: group for kind, group in _GROUPS.items()}
    return np.array([names.index(of_kind.get(kind, _OTHER)) for kind in kinds], dtype=np.int64), names


def _starts(keys: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.intp]:
    """Positions at which one of the keys differs from the position before."""
    new = np.zeros(len(keys[0]), dtype=np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def saved_step_events(steps: list[SavedStep], workers: dict[str, int], start: int) -> Iterator[Event]:
    """Slices of the steps, which are sorted by worker, mode and time. start: time 0 of the timeline."""
    for at, each in enumerate(steps):
        after = steps[at + 1] if at + 1 < len(steps) else None
        if after is not None and (after.worker, after.mode) != (each.worker, each.mode):
            after = None
        # Captures of a step can end after the next step has begun, but slices of a track must not overlap.
        end = each.last_ns if after is None else min(each.last_ns, after.first_ns)
        process, track = workers[each.worker], ModeKeys[each.mode].value
        yield time_slice(
            f"{each.mode} {each.mode_step}",
            process,
            track,
            (each.first_ns, end, start),
            {"attempt": each.attempt, "step": each.mode_step, "tensors": each.tensors},
        )
        bounds = [min(time, end) for _, time in each.spans] + [end]
        for (name, _), first, last in zip(each.spans, bounds, bounds[1:], strict=False):
            yield time_slice(name, process, track, (first, last, start), {})
        if after is not None and after.attempt == each.attempt and after.mode_step > each.mode_step:
            seconds = (after.first_ns - each.first_ns) / 1e9 / (after.mode_step - each.mode_step)
            yield from counter(
                f"ms per {each.mode} step", process, each.first_ns, start, {"mean": seconds * 1000}
            )
