"""Runs in a bucket: the cost of uploads, and their effect on the training.

    python -m benchmarks s3                  all four questions, about 40 minutes on 2 cores
    python -m benchmarks s3 --quick          the same with very little data, to show that the benchmark works
    python -m benchmarks s3 --show FILE      the tables of an earlier run

put     CPU seconds per GB and MB/s, from the ring until the server has acknowledged the data, compared with
        other S3 clients that upload the same bytes
loop    iterations of a GIL-bound training loop, about 1 ms each, with and without uploads at 80 MB/s stall
time of the training thread in capture, with the run in a folder and in a bucket open    time to open a run of
many workers in a bucket that answers after 50 ms, also with Arrow's S3 file
        system

questions.py lists the measurements. driver.py runs them in rounds, each in its own process (worker.py:
put.py, loop.py, stall.py, opening.py). servers.py starts the S3 servers, and report.py prints the tables.
docs/benchmarks.md explains the method and its bias.
"""

from __future__ import annotations


def main() -> None:
    """The command line; see driver.py."""
    from benchmarks.s3.driver import run

    run()
