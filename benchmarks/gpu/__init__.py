"""Slowdown and stall of trainings on a GPU, by save interval. docs/benchmarks.md explains.

    python -m benchmarks gpu                            some minutes, half of them for compiling; --seconds
    python -m benchmarks gpu --device simulated         shows that it works where there is no GPU

driver.py starts a worker for each model and way of running it (eager, compiled) and reports; worker.py trains
with one tool after another (tools.py) in blocks that take turns; plan.py says what is measured; report.py
shows it.
"""

from __future__ import annotations


def main() -> None:
    """The command line; see driver.py."""
    from benchmarks.gpu.driver import run

    run()
