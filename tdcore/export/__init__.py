"""Exports of a run to other tools: TensorBoard, Weights & Biases, MLflow, Trackio, CSV, Parquet and DuckDB.

    from tdcore.export import export_run
    export_run("runs/demo", "tensorboard", "tb")

source       reads a run in batches: statistics, parameters, texts
points       numbers of a batch under the names that a tool accepts
histograms   stored counts by powers of two as buckets
target       the interface of all targets, and their table
output       the folder or file of an export
follow       export of a run that is still being written, by a process of its own
tensorboard, wandb, mlflow, trackio, tables   the targets

A target uses the tool's own library, which is imported when it is needed. Nothing here runs in a training
process.
Threads: any; an export uses one thread.
"""

from tdcore.export.run import Exported, export_run
from tdcore.export.source import DEFAULT_STATISTICS, STATISTICS, Selection
from tdcore.export.target import TARGETS

__all__ = ["DEFAULT_STATISTICS", "STATISTICS", "TARGETS", "Exported", "Selection", "export_run"]
