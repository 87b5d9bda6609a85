"""Slowdown and stall of trainings on a GPU, by save interval. docs/benchmarks.md explains.

    python -m benchmarks gpu                       a few minutes, half of them for compiling; see --seconds
    python -m benchmarks gpu --device simulated    runs without a GPU, to show that the benchmark works

driver.py starts a worker for each model and execution mode (eager, compiled), and reports. worker.py trains
with one tool after another (tools.py), in alternating blocks. plan.py lists the measurements, and report.py
prints the results.
"""

from __future__ import annotations


def main() -> None:
    """The command line; see driver.py."""
    from benchmarks.gpu.driver import run

    run()
