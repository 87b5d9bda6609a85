"""Trackio: a project in a folder, with a run for each worker of an attempt.

`TRACKIO_DIR=OUT trackio show` shows it.

The step is the global step, names begin with the mode ("TRAIN/loss"), and TRAIN/step and TRAIN/time are the
step of the mode and the time of the capture. Findings are alerts. Trackio only warns if it loses data, so
this target counts the stored rows. Threads: one thread per object, and one process per folder.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError, ExportError
from tdcore.export.points import Naming, by_step

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.export.source import Parameter, Part, Selection, Text

__all__ = ["open_target"]

_MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")
_RESERVED = frozenset(f"{mode}/{name}" for mode in _MODES for name in ("step", "time"))
_NAMING = Naming(allowed=r"[^\x00-\x1f\x7f\ud800-\udfff]", reserved=_RESERVED)
_LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}


class _TrackioTarget:
    """Runs of one project. trackio: the module, which uses the folder."""

    def __init__(self, trackio: Any, selection: Selection) -> None:
        self._trackio = trackio
        self._selection = selection
        self._run: Any = None
        self._project = ""
        self._steps = 0

    def begin(self, part: Part, parameters: Mapping[str, Parameter]) -> None:
        """See Target.begin."""
        self._project = re.sub(r"[^A-Za-z0-9_-]", "_", part.run_name) or "tdcore"
        self._steps = 0
        with redirect_stdout(io.StringIO()):
            self._run = self._trackio.init(
                project=self._project,
                name=part.label,
                group=part.run_id,
                config={_NAMING.tag(name).lstrip("_"): value for name, value in parameters.items()},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def write(self, batch: pa.Table) -> int:
        """See Target.write."""
        count = 0
        for group in by_step(batch, self._selection, _NAMING):
            values: dict[str, Any] = {}
            for point in group:
                values.update(point.values)
                values[f"{point.mode}/step"], values[f"{point.mode}/time"] = point.mode_step, point.time
                count += len(point.values)
                if point.histogram is not None:
                    tag, buckets = point.histogram
                    edges = [*buckets[:, 0].tolist(), float(buckets[-1, 1])]
                    values[tag] = self._trackio.Histogram(
                        np_histogram=(buckets[:, 2].astype(int).tolist(), edges)
                    )
                    count += 1
            self._run.log(values, step=group[0].step)
            self._steps += 1
        return count

    def end(self, texts: Sequence[Text]) -> None:
        """See Target.end. Raises ExportError if Trackio has not stored every step."""
        levels = self._trackio.AlertLevel
        with redirect_stdout(io.StringIO()):
            for text in texts:
                self._run.alert(
                    title=f"{text.kind}: {text.name}",
                    text=text.text,
                    level=levels[_LEVELS[text.severity]],
                    **({} if text.step is None else {"step": text.step}),
                )
        run_id = self._run.id
        self.close()
        stored = self._stored(run_id)
        if stored != self._steps:
            raise ExportError(f"Trackio has stored {stored:,} of {self._steps:,} steps; export again")

    def _stored(self, run_id: str) -> int:
        from trackio.sqlite_storage import SQLiteStorage

        return int(SQLiteStorage.get_log_count(self._project, run_id=run_id))

    def close(self) -> None:
        """End the run of the part."""
        if self._run is not None:
            with redirect_stdout(io.StringIO()):
                self._trackio.finish()
            self._run = None


@contextmanager
def open_target(place: Path, selection: Selection, name: str) -> Iterator[_TrackioTarget]:
    """See tdcore.export.target.open_target.

    Raises:
        ConfigError: This process has imported Trackio before, with another folder.
    """
    folder = place.absolute()
    if "trackio" not in sys.modules:
        os.environ["TRACKIO_DIR"] = str(folder)
    import trackio
    from trackio.utils import TRACKIO_DIR

    if Path(TRACKIO_DIR) != folder:
        raise ConfigError(
            f"this process uses Trackio with the folder {str(TRACKIO_DIR)!r}; "
            "export to Trackio in another process"
        )
    target = _TrackioTarget(trackio, selection)
    try:
        yield target
    finally:
        target.close()
