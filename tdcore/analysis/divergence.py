"""The chain of a divergence: all tensors that became NaN or infinite, in the order in which they did.

The rule FirstNonFinite (TDC123) reports the first tensor. The chain shows the path of the fault through the
model, and the growth of each tensor before. Only statistics are needed. Threads: those of the Trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tdcore.text.step_text import step_text

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.trial import Trial

__all__ = ["BadTensor", "chain_of_bad_tensors"]

_COUNTS = ("nan_count", "pos_inf_count", "neg_inf_count")
_COLUMNS = ("name", "kind", "mode", "mode_step", "step", "seq", "count", "abs_max", *_COUNTS)
_AGE = {"optimizer_state": 2, "weight": 1, "bias": 1}  # values that are older than the outputs of their step


@dataclass(frozen=True, slots=True, kw_only=True)
class BadTensor:
    """A tensor, at the first saved step at which it has elements that are NaN or infinite.

    Attributes:
        name, kind: Name and kind of the tensor.
        step, mode, mode_step: Global step, mode, and step of the mode.
        nan, infinite, elements: Numbers of elements.
        sizes: Largest magnitudes at the last saved steps before, oldest first; empty if there are none.
    """

    name: str
    kind: str
    step: int
    mode: str
    mode_step: int
    nan: int
    infinite: int
    elements: int
    sizes: tuple[float, ...]

    @property
    def growth(self) -> float:
        """The newest of `sizes`, divided by the oldest one; NaN if there are fewer than two."""
        if len(self.sizes) < 2 or not self.sizes[0] > 0:
            return float("nan")
        return self.sizes[-1] / self.sizes[0]

    @property
    def text(self) -> str:
        """The tensor in one line."""
        counts = ((self.nan, "NaN"), (self.infinite, "infinite"))
        bad = " and ".join(f"{count} {word}" for count, word in counts if count)
        before = f", before at most {self.sizes[-1]:.3g}" if self.sizes else ""
        grown = f" (grown {self.growth:.1f} times)" if self.growth > 1 else ""
        at = step_text(self.step, self.mode, self.mode_step)
        return f"{at}: {self.name}: {bad} of {self.elements}{before}{grown}"


def chain_of_bad_tensors(trial: Trial, *, worker: str | None = None, history: int = 5) -> list[BadTensor]:
    """All tensors with NaN or infinite elements, in the order in which they got them.

    The order is that of the steps. Within a step, optimizer state and weights come first, because the step
    began with them; outputs, losses and gradients follow in the order of their computation.

    Args:
        trial: The run.
        worker: Name of the worker. None: the first worker by rank.
        history: Maximum number of saved steps in BadTensor.sizes, 1 or more.

    Returns:
        One entry per tensor; empty if all values are finite. Inputs that contain only zeros and -Inf are
        attention masks, and are left out.

    Raises:
        InvalidWorker: The run has no such worker.
        ValueError: history is less than 1.
    """
    if history < 1:
        raise ValueError(f"history is {history}; use 1 or more")
    workers = trial.workers()[:1] if worker is None else [worker]
    sizes: dict[str, list[float]] = {}
    found: dict[str, BadTensor] = {}
    for table in trial.stats_batches(workers=workers, columns=_COLUMNS) if workers else ():
        _add_rows(table, history, sizes, found)
    return list(found.values())


def _add_rows(
    table: pa.Table, history: int, sizes: dict[str, list[float]], found: dict[str, BadTensor]
) -> None:
    """Add the rows of some whole steps, which follow the steps of the rows before."""
    columns = {name: table.column(name).to_pylist() for name in ("name", "kind", "mode")}
    numbers = {
        name: np.nan_to_num(table.column(name).to_numpy(zero_copy_only=False).astype(np.float64), nan=0.0)
        for name in _COLUMNS
        if name not in columns
    }
    bad = np.sum([numbers[name] for name in _COUNTS], axis=0)
    masks = (numbers["neg_inf_count"] == bad) & (numbers["abs_max"] == 0)
    masks &= np.array([kind == "input" for kind in columns["kind"]])
    age = np.array([_AGE.get(kind, 0) for kind in columns["kind"]])
    for row in np.lexsort((numbers["seq"], -age, numbers["step"])).tolist():
        name = columns["name"][row]
        if name in found or not numbers["count"][row] or masks[row]:
            continue
        if not bad[row]:
            sizes[name] = [*sizes.get(name, ()), float(numbers["abs_max"][row])][-history:]
            continue
        found[name] = BadTensor(
            name=name,
            kind=columns["kind"][row],
            mode=columns["mode"][row],
            **{each: int(numbers[each][row]) for each in ("step", "mode_step")},
            nan=int(numbers["nan_count"][row]),
            infinite=int(bad[row] - numbers["nan_count"][row]),
            elements=int(numbers["count"][row]),
            sizes=tuple(sizes.get(name, ())),
        )
