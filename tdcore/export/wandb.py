"""Weights & Biases: an offline run for each worker of an attempt, for `wandb sync`.

The run belongs to the group with the id of tdcore's run. Its step is the global step, names begin with the
mode ("TRAIN/loss"), and TRAIN/step is the step of the mode. Findings are alerts. Threads: one thread per
object.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb

from tdcore.export.points import Naming, by_step

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.export.source import Parameter, Part, Selection, Text

__all__ = ["open_target"]

_MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")
_NAMING = Naming(allowed=r"[A-Za-z0-9_./@-]", reserved=frozenset(f"{mode}/step" for mode in _MODES))
_LEVELS = {"error": "ERROR", "warning": "WARN", "info": "INFO"}


class _WandbTarget:
    """Offline runs below a folder."""

    def __init__(self, folder: Path, selection: Selection) -> None:
        self._folder = folder
        self._selection = selection
        self._run: Any = None

    def begin(self, part: Part, parameters: Mapping[str, Parameter]) -> None:
        """See Target.begin."""
        self._run = wandb.init(
            mode="offline",
            dir=str(self._folder),
            project=re.sub(r"[/\\#?%:]", "_", part.run_name)[:128] or "tdcore",
            id=secrets.token_hex(8),  # not $WANDB_RUN_ID, which all parts would share
            group=part.run_id,
            name=part.label,
            config=dict(parameters),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )

    def write(self, batch: pa.Table) -> int:
        """See Target.write."""
        count = 0
        for group in by_step(batch, self._selection, _NAMING):
            values: dict[str, Any] = {"_timestamp": min(point.time for point in group)}
            for point in group:
                values.update(point.values)
                values[f"{point.mode}/step"] = point.mode_step
                count += len(point.values)
                if point.histogram is not None:
                    tag, buckets = point.histogram
                    edges = [*buckets[:, 0].tolist(), float(buckets[-1, 1])]
                    values[tag] = wandb.Histogram(np_histogram=(buckets[:, 2].astype(int).tolist(), edges))
                    count += 1
            self._run.log(values, step=group[0].step)
        return count

    def end(self, texts: Sequence[Text]) -> None:
        """See Target.end. Findings and missing data are alerts, notes are in the summary."""
        for text in texts:
            if text.kind == "note":
                self._run.summary[f"note/{text.name}"] = text.text
            else:
                self._run.alert(
                    title=text.name, text=text.text, level=_LEVELS[text.severity], wait_duration=0
                )
        self.close(0)

    def close(self, exit_code: int) -> None:
        """End the run of the part, which writes its file."""
        if self._run is not None:
            self._run.finish(exit_code=exit_code)
            self._run = None


@contextmanager
def open_target(place: Path, selection: Selection, name: str) -> Iterator[_WandbTarget]:
    """See tdcore.export.target.open_target.

    wandb writes the end of its files after finish() has returned, so its service is ended, which waits for
    the files. If the caller itself uses a run of wandb, the service continues, and the files are complete a
    moment later.
    """
    target = _WandbTarget(place, selection)
    try:
        yield target
    finally:
        target.close(1)
        if wandb.run is None:
            wandb.teardown()
