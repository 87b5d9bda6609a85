"""Plan of the measurements: a cell is one tool on one model, one collection and one save interval.

A worker trains in alternating blocks: a block in which the tool saves at its interval, and a block in which
it saves nothing. Both blocks train the same model in the same process within seconds, so a slow drift of a
shared machine affects both. Between blocks the worker waits until the tool has finished its work.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

COLLECTIONS = {
    "all": "weights, biases, gradients, inputs, outputs and losses",
    "weights": "weights of layers and the loss",
    "gradients": "gradients and the loss",
    "losses": "the loss alone",
    "statistics": "statistics of all, no values",
}
_LEAD_IN = 2
INTERVALS = (1, 2, 5, 10, 50, 100, 200, 500)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement. pairs: number of pairs of blocks, with and without saving."""

    model: str
    tool: str
    collection: str
    interval: int
    pairs: int
    block: int  # number of steps of a block with saving, a multiple of the interval
    plain: int = 6  # number of steps of a block without saving
    warm_up: int = 4  # number of pairs of a saved and an unsaved step before the first block
    threads: int = 1  # number of threads of torch
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.interval < 1 or self.block < 1 or self.block % self.interval:
            raise ValueError(
                f"block must be a multiple of interval, got block={self.block}, interval={self.interval}"
            )
        if self.collection not in COLLECTIONS:
            raise ValueError(f"collection must be one of {', '.join(COLLECTIONS)}, got {self.collection!r}")

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """The identity of the cell, equal for all its runs."""
        return self.model, self.tool, self.collection, self.interval, self.threads

    def to_json_dict(self) -> dict[str, Any]:
        """Plain values; Cell(**...) is the inverse."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Steps [start, end) of a worker's training, after lead_in steps that are not counted.

    saved: the steps that the tool saves. The lead-in is needed because an idle processor is slow at first.
    """

    start: int
    end: int
    saved: tuple[int, ...]
    lead_in: int = 0


def schedule(cell: Cell) -> list[Block]:
    """Warm-up, then pairs of blocks, the one with saving first in every other pair. All workers of the cell
    train by it.
    """
    blocks = [Block(start=0, end=2 * cell.warm_up, saved=tuple(range(0, 2 * cell.warm_up, 2)))]
    for pair in range(cell.pairs):
        for saving in (True, False) if pair % 2 == 0 else (False, True):
            start = blocks[-1].end + _LEAD_IN
            end = start + (cell.block if saving else cell.plain)
            saved = tuple(range(start, end, cell.interval)) if saving else ()
            blocks.append(Block(start=start, end=end, saved=saved, lead_in=_LEAD_IN))
    return blocks


def saved_steps(blocks: list[Block]) -> list[int]:
    """All steps that the tool saves, in order."""
    return [step for block in blocks for step in block.saved]
