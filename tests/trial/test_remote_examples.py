"""The examples of reading from a bucket run, and the page about reading contains them unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.s3.servers import Server
from tests.trial.test_remote_s3 import fill, upload
from tests.trial.writer import RunWriter

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "read_from_s3.py"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_a_run_in_a_bucket_reads_with_tdcore_pyarrow_duckdb_and_polars(
    run: RunWriter, moto: Server, s3_prefix: str
) -> None:
    fill(run, 0, 20)
    run.end()
    url = moto.url(f"{s3_prefix}/runs/example")
    upload(run, url)
    done = subprocess.run([sys.executable, str(EXAMPLE), url], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ended [17, 18, 19] ['worker_0']",
        "2 rows of gradients",
        "Net_fc.weight (3, 4)",
        "20 losses with pyarrow",
        "1 gradients with DuckDB",
        "mean loss 0.180 with Polars",
    ]


def test_the_page_shows_the_examples_as_they_are() -> None:
    section = (ROOT / "docs/reading.md").read_text().split("## Runs in a bucket", 1)[1]
    example = "\n".join(line.strip() for line in EXAMPLE.read_text().splitlines())
    blocks = BLOCK.findall(section)
    assert len(blocks) == 4
    for block in blocks:
        lines = [line.strip() for line in dedent(block).splitlines() if line.strip()]
        assert "\n".join(lines) in re.sub(r"\n+", "\n", example)
