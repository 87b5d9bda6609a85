"""MLflow: an experiment in a folder with an SQLite store, with a run for each worker of an attempt.

    OUT/mlflow.db     for `mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db`
    OUT/artifacts/    findings, notes and histograms, which MLflow does not store as metrics

The step of a metric is the global step, and its name begins with the mode ("TRAIN/loss"). MLflow stores an
infinite number as the largest float64; the run has the tag `tdcore.infinities` with their number. Threads:
one per object.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from tdcore.errors import ConfigError
from tdcore.export.points import Naming, by_step
from tdcore.export.tables import SCHEMAS

if TYPE_CHECKING:
    from tdcore.export.source import Parameter, Part, Selection, Text

__all__ = ["open_target"]

_NAMING = Naming(allowed=r"[A-Za-z0-9_./ -]")
_METRICS_AT_ONCE = 1000  # limits of MlflowClient.log_batch
_PARAMETERS_AT_ONCE = 100
_HISTOGRAM_COLUMNS = (
    *(
        "mode",
        "mode_step",
        "step",
        "name",
        "call",
        "zero_count",
        "abs_min",
        "abs_max",
        "log2_first",
        "log2_counts",
    ),
)


class _MlflowTarget:
    """Runs of one experiment."""

    def __init__(self, folder: Path, selection: Selection) -> None:
        self._folder = folder.absolute()
        self._selection = selection
        self._client = MlflowClient(tracking_uri=f"sqlite:///{self._folder / 'mlflow.db'}")
        self._experiment = ""
        self._run = ""
        self._last_ms = 0
        self._infinities = 0
        self._histograms: pq.ParquetWriter | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="tdcore-export-")

    def begin(self, part: Part, parameters: Mapping[str, Parameter]) -> None:
        """See Target.begin."""
        if not self._experiment:
            artifacts = (self._folder / "artifacts").as_uri()
            name = part.run_name.strip() or "tdcore"
            if name == "Default":  # each store has an experiment with this name
                name = "tdcore Default"
            self._experiment = self._client.create_experiment(name, artifact_location=artifacts)
        tags = {
            "tdcore.run_id": part.run_id,
            "tdcore.attempt": str(part.attempt),
            "tdcore.worker": part.worker,
        }
        run = self._client.create_run(
            self._experiment, start_time=part.started_ms, tags=tags, run_name=part.label
        )
        self._run, self._last_ms, self._infinities = run.info.run_id, part.started_ms, 0
        every = [Param(_NAMING.tag(name), str(value)) for name, value in parameters.items()]
        for at in range(0, len(every), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=every[at : at + _PARAMETERS_AT_ONCE])

    def write(self, batch: pa.Table) -> int:
        """See Target.write."""
        metrics: list[Metric] = []
        histograms = 0
        for group in by_step(batch, self._selection, _NAMING):
            for point in group:
                time_ms = round(point.time * 1000)
                self._last_ms = max(self._last_ms, time_ms)
                metrics += [Metric(tag, number, time_ms, point.step) for tag, number in point.values]
                self._infinities += sum(math.isinf(number) for _, number in point.values)
                histograms += point.histogram is not None
        for at in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[at : at + _METRICS_AT_ONCE])
        if histograms:
            self._add_histograms(
                batch.filter(batch["log2_first"].is_valid()).select(list(_HISTOGRAM_COLUMNS))
            )
        return len(metrics) + histograms

    def end(self, texts: Sequence[Text]) -> None:
        """See Target.end."""
        findings = [text for text in texts if text.kind == "finding"]
        tags = {"tdcore.findings": str(len(findings)), "tdcore.infinities": str(self._infinities)}
        self._client.log_batch(self._run, tags=[RunTag(name, value) for name, value in tags.items()])
        if findings:
            lines = [json.dumps(text.document, default=str) for text in findings]
            self._client.log_text(self._run, "\n".join(lines) + "\n", "findings.jsonl")
        others = [f"{text.kind}: {text.name}\n{text.text}\n" for text in texts if text.kind != "finding"]
        if others:
            self._client.log_text(self._run, "\n".join(others), "notes.txt")
        if self._histograms is not None:
            self._histograms.close()
            self._client.log_artifact(self._run, str(self._histogram_file))
            self._histograms = None
        self._client.set_terminated(self._run, status="FINISHED", end_time=self._last_ms)

    def close(self) -> None:
        """Remove temporary files."""
        if self._histograms is not None:
            self._histograms.close()
        self._scratch.cleanup()

    @property
    def _histogram_file(self) -> Path:
        return Path(self._scratch.name) / "histograms.parquet"

    def _add_histograms(self, table: pa.Table) -> None:
        """Append to the file that becomes the artifact with the histograms of the part."""
        schema = SCHEMAS["statistics"]
        plain = table.cast(pa.schema([schema.field(name) for name in table.schema.names]))
        if self._histograms is None:
            self._histograms = pq.ParquetWriter(self._histogram_file, plain.schema, compression="zstd")
        self._histograms.write_table(plain)


@contextmanager
def open_target(place: Path, selection: Selection, name: str) -> Iterator[_MlflowTarget]:
    """See tdcore.export.target.open_target. Raises ConfigError for a folder that MLflow cannot open."""
    if "?" in str(place.absolute()):
        raise ConfigError(f"--out is {str(place)!r}, and a URL of SQLite ends at '?'; give another place")
    target = _MlflowTarget(place, selection)
    try:
        yield target
    finally:
        target.close()
