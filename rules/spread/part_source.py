"""PartSource: reads a part of a run, in the batches of the whole run.

The files of other workers are not opened. Threads: a source belongs to one engine.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.run_source import RunSource
from tdcore.rules.source import Ended
from tdcore.rules.spread.plan import Part
from tdcore.rules.survey import Survey

__all__ = ["PartSource"]


class PartSource(RunSource):
    """The rows of a part of a run. See RunSource."""

    def __init__(self, place: str | Path, part: Part, survey: Survey, *, attempt: int | str | None) -> None:
        super().__init__(place, attempt=attempt)
        self._part = part
        self._survey = survey
        self.resume(survey.position_of(part.workers))

    def _batches(self, complete: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """The batches of the survey; those without rows of this part are empty."""
        steps = self._index.stretches.column("step")[complete]
        order = np.argsort(steps, kind="stable")
        cuts = np.searchsorted(steps[order], self._survey.first_steps[1:])
        return np.split(complete[order], cuts)[::-1]

    def _in_attempts(self, stretches: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Leave out workers and attempts that began after the survey, which every part would judge."""
        every, texts = self._index.stretches, self._index.texts("worker")
        homes = np.stack([every.column(name)[stretches] for name in ("worker", "attempt")])
        distinct, which = np.unique(homes, axis=1, return_inverse=True)
        places = [(texts[worker], attempt) for worker, attempt in distinct.T.tolist()]
        known = np.array([place in self._survey.ends for place in places], dtype=np.bool_)
        found: npt.NDArray[np.bool_] = super()._in_attempts(stretches) & known[np.ravel(which)]
        return found

    def _rows_of(self, stretches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self._part.shares == 1 or not len(stretches):
            return super()._rows_of(stretches)
        index = self._index
        used = np.zeros(len(index.stretches), dtype=np.bool_)
        used[stretches] = True
        texts = index.texts("name")
        mine = index.among("name", (code for code, text in enumerate(texts) if self._has(text)))
        return index.find({"name": mine}, used)

    def _has(self, name: Any) -> bool:
        """Whether tensors of this name belong to the part."""
        return zlib.crc32(str(name).encode()) % self._part.shares == self._part.share

    def _ended(self) -> Ended:
        return self._survey.ended
