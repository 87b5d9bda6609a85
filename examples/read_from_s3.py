"""Read a run in a bucket with tdcore, pyarrow, DuckDB and Polars.

    python examples/read_from_s3.py s3://bucket/prefix
    python examples/read_from_s3.py "s3://bucket/prefix?endpoint_url=http://127.0.0.1:9000&region=us-east-1"

Credentials come from the environment or the files of the AWS command line. docs/reading.md explains the code.
"""

from __future__ import annotations

import sys
from typing import Any

import duckdb
import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

import tdcore as td
from tdcore.sinks.s3 import S3Options, parse_s3_url


def with_tdcore(url: str) -> None:
    """Read the status, statistics and a value, as from a run in a folder."""
    run = td.create_trial(url)  # works while the training runs
    print(run.status, run.steps()[-3:], run.workers())
    print(run.stats(kinds="gradient", steps=range(0, 100, 10)).num_rows, "rows of gradients")
    name = run.tensor_names(regex="weight$")[0]
    print(name, run.tensor(name).value(run.steps()[-1]).shape)
    run.close()


def open_index(bucket: str, prefix: str, options: S3Options) -> ds.Dataset:
    """The index as one table, read by Arrow's own S3 client."""
    s3 = fs.S3FileSystem(region=options.region, endpoint_override=options.endpoint_url)
    return ds.dataset(f"{bucket}/{prefix}/index", filesystem=s3, format="parquet")


def with_pyarrow(index: ds.Dataset) -> None:
    """Read all losses. Only the needed columns are fetched, and only from files that may contain losses."""
    losses = index.to_table(columns=["step", "mean"], filter=pc.field("kind") == "loss")
    print(losses.num_rows, "losses with pyarrow")


def with_duckdb(index: ds.Dataset) -> None:
    """Query the largest gradients. DuckDB finds the dataset by the name of the variable."""
    rows = duckdb.execute("""
        SELECT name, max(abs_max) AS largest FROM index
        WHERE kind = 'gradient' GROUP BY name ORDER BY largest DESC LIMIT 5
    """).fetchall()
    print(len(rows), "gradients with DuckDB")


def with_polars(bucket: str, prefix: str, options: S3Options) -> None:
    """Compute the mean loss. Polars has its own S3 client."""
    places = {"aws_region": options.region, "aws_endpoint_url": options.endpoint_url}
    storage: dict[str, Any] = {name: value for name, value in places.items() if value}
    if storage.get("aws_endpoint_url", "").startswith("http://"):
        storage["aws_allow_http"] = "true"
    index = pl.scan_parquet(f"s3://{bucket}/{prefix}/index/**/*.parquet", storage_options=storage)
    means = index.filter(pl.col("kind") == "loss").select(pl.col("mean").mean()).collect()
    print(f"mean loss {means.item():.3f} with Polars")


def main(url: str) -> None:
    """Read the run with each of the four tools."""
    place = parse_s3_url(url)
    with_tdcore(url)
    index = open_index(place.bucket, place.prefix, place.options)
    with_pyarrow(index)
    with_duckdb(index)
    with_polars(place.bucket, place.prefix, place.options)


if __name__ == "__main__":
    main(sys.argv[1])
