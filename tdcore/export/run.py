"""export_run: one export of a run, from its first to its last row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tdcore.errors import ConfigError, ExportError, TdcoreError
from tdcore.export.output import output_place
from tdcore.export.source import Part, Selection, Text, parts, run_texts
from tdcore.export.target import TARGETS, Target, open_target
from tdcore.trial import Trial, create_trial
from tdcore.trial.refresh import no_refresh

__all__ = ["Exported", "export_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export.

    Attributes:
        out: The folder or file.
        parts: Number of (attempt, worker) pairs.
        rows: Number of rows with statistics.
        values: Number of values that were written.
        texts: Number of findings, notes and sentences about missing data.
        without_statistics: Number of rows without statistics, which have no values.
        status: Status of the run when it was read: "running", "ended" or "died".
    """

    out: str
    parts: int
    rows: int
    values: int
    texts: int
    without_statistics: int
    status: str


def export_run(
    run: str | os.PathLike[str],
    to: str,
    out: str | os.PathLike[str] | None = None,
    *,
    selection: Selection | None = None,
    force: bool = False,
) -> Exported:
    """Export a run to another tool. A run that is being written is exported as it is now.

    Args:
        run: Folder or URL of the run.
        to: A key of TARGETS: "tensorboard", "wandb", "mlflow", "trackio", "csv", "parquet" or "duckdb".
        out: The folder, or the file for "duckdb". None: the name of the run with the target as suffix, in the
            working directory.
        selection: The attempt, tensors and statistics that are exported. None: all attempts and tensors.
        force: Replace an earlier export.

    Raises:
        ConfigError: An argument is invalid, the output exists, or a package is missing.
        RunError, SinkError: The run cannot be read.
    """
    if to not in TARGETS:
        raise ConfigError(f"{to!r} is not a target of an export; use {', '.join(TARGETS)}")
    info, chosen = TARGETS[to], selection or Selection()
    with closing(create_trial(run)) as trial:
        every = list(parts(trial, chosen))
        place = Path(f"{trial.name}{info.suffix}" if out is None else out)
        about = {"run_id": trial.run_id, "to": to}
        with (
            output_place(place, is_file=info.is_file, force=force, about=about) as written,
            _errors_of(to),
            open_target(to, written, chosen) as target,
            no_refresh(trial),
        ):
            return _exported(trial, chosen, every, target, place)


@contextmanager
def _errors_of(tool: str) -> Iterator[None]:
    """Convert the exceptions of the tool's library."""
    try:
        yield
    except (TdcoreError, OSError):
        raise
    except Exception as error:
        raise ExportError(f"the export to {tool} failed: {type(error).__name__}: {error}") from error


def _exported(trial: Trial, selection: Selection, every: list[Part], target: Target, place: Path) -> Exported:
    texts = run_texts(trial, selection)
    of_part = _assigned(texts, every)
    rows = values = without = 0
    for part in every:
        target.begin(part, part.parameters())
        for batch in part.batches():
            empty = batch["count"].null_count
            rows, without = rows + batch.num_rows - empty, without + empty
            values += target.write(batch)
        target.end(of_part[part.label])
    return Exported(
        out=str(place),
        parts=len(every),
        rows=rows,
        values=values,
        texts=len(texts) if every else 0,
        without_statistics=without,
        status=trial.status,
    )


def _assigned(texts: list[Text], every: list[Part]) -> dict[str, list[Text]]:
    """The texts of each part. Other texts belong to the first part of their attempt, or of the run."""
    found: dict[str, list[Text]] = {part.label: [] for part in every}
    for text in texts:
        of_attempt = [part for part in every if part.attempt == text.attempt] or every
        part = next((each for each in of_attempt if each.worker == text.worker), None) or next(
            iter(of_attempt), None
        )
        if part is not None:
            found[part.label].append(text)
    return found
