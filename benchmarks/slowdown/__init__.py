"""Slowdown of training against save interval: tdcore, its peers, and the limit. docs/benchmarks.md explains.

    python -m benchmarks slowdown            the whole table, about 40 minutes on 2 cores
    python -m benchmarks slowdown --quick    ResNet-18 and two tools, some minutes

driver.py runs the cells (cells.py) in processes of their own (worker.py, with one of tools/), watches the
machine (machine.py) and measures limits (limits.py); costs.py turns times into slowdowns and a cost model;
report.py and plot.py show them. worker.py, machine.py, limits.py, cells.py and tools/ run in the peers' own
environments and import neither tdcore nor what it needs.
"""

from __future__ import annotations


def main() -> None:
    """The command line; see driver.py."""
    from benchmarks.slowdown.driver import run

    run()
