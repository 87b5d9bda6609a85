"""Slowdown of training against save interval: tdcore, its peers, and the limit. docs/benchmarks.md explains.

    python -m benchmarks slowdown            the whole table, about 40 minutes on 2 cores
    python -m benchmarks slowdown --quick    ResNet-18 and two tools, a few minutes

driver.py runs the cells (cells.py) in separate processes (worker.py, with one of tools/). machine.py measures
CPU time and load, and limits.py measures physical limits. costs.py converts times to slowdowns and a cost
model; report.py and plot.py show the results. worker.py, machine.py, limits.py, cells.py and tools/ run in
the environments of the peers. They import neither tdcore nor its dependencies.
"""

from __future__ import annotations


def main() -> None:
    """The command line; see driver.py."""
    from benchmarks.slowdown.driver import run

    run()
