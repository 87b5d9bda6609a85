"""tdcore export: a run for TensorBoard, Weights & Biases, MLflow, Trackio, and as tables."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from tdcore.cli.output import console, print_json, shown
from tdcore.errors import ConfigError

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = (
    "Exit codes: 0 the export is complete. 2 wrong usage, the output exists, or a package is missing. 3 the "
    "run cannot be read, or the tool has failed."
)
_HINTS = {
    "tensorboard": "tensorboard --logdir {out}",
    "wandb": "wandb sync {out}/wandb/offline-run-*",
    "mlflow": "mlflow ui --backend-store-uri sqlite:///{out}/mlflow.db",
    "trackio": "TRACKIO_DIR={out} trackio show",
    "duckdb": "duckdb {out}",
}


def command(
    run: Annotated[str, typer.Argument(help="Folder of the run, or s3://bucket/prefix.")],
    to: Annotated[str, typer.Option(help="tensorboard, wandb, mlflow, trackio, csv, parquet or duckdb.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder of the export; a file for duckdb.", show_default="RUN.<target>"
        ),
    ] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="Only this attempt; default: all.")] = None,
    tensors: Annotated[
        str | None, typer.Option(help="Only tensors in whose names this pattern is found.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only tensors of this kind, such as loss. May be repeated.")
    ] = None,
    statistics: Annotated[
        str | None,
        typer.Option(
            help="Statistics of tensors with several elements, with commas between them.",
            show_default="mean,std,l2,abs_max,non_finite",
        ),
    ] = None,
    histograms: Annotated[
        bool, typer.Option("--histograms/--no-histograms", help="Export histograms of magnitudes.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Export new steps until the attempt ends (tensorboard only). Continues an export.",
        ),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export numbers, histograms, hyper-parameters and findings of a run to another tool.

    Examples:

      [bold]tdcore export runs/demo --to tensorboard -o tb[/]

      [bold]tdcore export runs/demo --to parquet --kind loss --kind gradient[/]
    """
    from tdcore.export import DEFAULT_STATISTICS, Selection, export_run

    chosen = DEFAULT_STATISTICS if statistics is None else tuple(filter(None, statistics.split(",")))
    selection = Selection(
        attempt=attempt, tensors=tensors, kinds=kind or (), statistics=chosen, histograms=histograms
    )
    if follow:
        if to != "tensorboard":
            raise ConfigError("--follow needs --to tensorboard; the other targets export a run as it is")
        if force:
            raise ConfigError("--follow continues an export; remove the folder, or leave out --force")
        from tdcore.export.follow import follow_run

        place = Path("tensorboard") if out is None else out
        count = follow_run(run, place, selection=selection, wait=timedelta(0))
        if json_output:
            print_json({"out": str(place), "values": count})
        else:
            console().print(f"{shown(place)}: {count:,} values.", soft_wrap=True)
        return
    done = export_run(run, to, out, selection=selection, force=force)
    if json_output:
        print_json(asdict(done))
        return
    text = f"{done.values:,} values of {done.rows:,} rows, {done.parts} parts, {done.texts} texts"
    console().print(f"{shown(done.out)}: {text}.", soft_wrap=True)
    if done.without_statistics:
        console().print(f"{done.without_statistics:,} rows have no statistics.")
    if done.status == "running":
        console().print("The run is still being written; later steps are not in the export.")
    if to in _HINTS:
        console().print(
            f"Open it with: {shown(_HINTS[to].format(out=shlex.quote(done.out)))}", soft_wrap=True
        )
