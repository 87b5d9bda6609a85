"""Reading and judging runs of 10^5 to 10^8 rows: CPU time and peak memory of each question.

    python -m benchmarks scale                          runs of 10^5, 10^6 and 10^7 rows
    python -m benchmarks scale --rows 1e8 --no-rules    one run of 10^8 rows
    python -m benchmarks scale --axes                   runs of 10^6 rows: other names, workers, attempts

make.py writes the runs, questions.py has the questions, driver.py runs each question in a new process and
prints the tables. DuckDB and Polars answer the same questions from the same files. docs/scale.md explains.
"""

from __future__ import annotations


def main() -> None:
    """The command line; see driver.py."""
    from benchmarks.scale.driver import run

    run()
