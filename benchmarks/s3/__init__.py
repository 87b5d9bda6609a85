"""A bucket as the run's home: what uploading costs, and what the training feels of it.

    python -m benchmarks s3                  all four questions, about 40 minutes on 2 cores
    python -m benchmarks s3 --quick          the same with next to no data: shows that it works, no more
    python -m benchmarks s3 --show FILE      the tables of an earlier run

put     CPU seconds per GB and MB/s from ring to acknowledged, and the usual clients putting the same bytes
loop    iterations of a GIL-bound training loop, about 1 ms each, with and without uploads at 80 MB/s
stall   time of the training thread in capture: the run in a folder and in a bucket
open    opening a run of many workers in a bucket that answers after 50 ms, and Arrow's S3 file system

questions.py says what is measured, driver.py runs it in rounds, each measurement in a process of its own
(worker.py: put.py, loop.py, stall.py, opening.py), servers.py starts the S3 servers, report.py shows the
tables. docs/benchmarks.md explains the method and what is unfair to whom.
"""

from __future__ import annotations


def main() -> None:
    """The command line; see driver.py."""
    from benchmarks.s3.driver import run

    run()
