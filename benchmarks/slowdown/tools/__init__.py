"""One module per tool; each is imported only in the environment that has it.

TOOLS says where a tool lives (its environment under .venvs, or "" for tdcore's own), its module, and which
collections it can record. What a tool cannot record is not measured: a missing cell is said in the report.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import cast

from benchmarks.slowdown.tools.base import Job, Tool

__all__ = ["TOOLS", "Job", "Tool", "ToolEntry", "load_tool"]


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """A tool of the benchmark. records: what a saved step leaves, for the report."""

    title: str
    environment: str
    module: str
    collections: tuple[str, ...]
    records: str


TOOLS = {
    "none": ToolEntry(
        title="no tool", environment="", module="none", collections=("losses",), records="nothing"
    ),
    "tdcore": ToolEntry(
        title="tdcore",
        environment="",
        module="with_tdcore",
        collections=("all", "weights", "gradients", "losses", "statistics"),
        records="values and statistics; 'statistics': statistics alone",
    ),
    "tdcore-s3": ToolEntry(
        title="tdcore, S3 bucket",
        environment="",
        module="with_tdcore_s3",
        collections=("all", "statistics"),
        records="as tdcore, into a bucket of a server on this machine",
    ),
    "smdebug": ToolEntry(
        title="smdebug 1.0.34",
        environment="smdebug",
        module="with_smdebug",
        collections=("all", "weights", "gradients", "losses", "statistics"),
        records="values; 'statistics': min, max, mean, std, l1, l2",
    ),
    "tensorboard": ToolEntry(
        title="TensorBoard histograms",
        environment="tensorboard",
        module="with_tensorboard",
        collections=("weights", "gradients", "losses", "statistics"),
        records="histograms, never values",
    ),
    "wandb": ToolEntry(
        title="wandb.watch, offline",
        environment="wandb",
        module="with_wandb",
        collections=("weights", "gradients", "losses", "statistics"),
        records="histograms of weights, biases and gradients, never activations or values",
    ),
    "numpy": ToolEntry(
        title="tensor.cpu().numpy() and np.save",
        environment="",
        module="by_hand",
        collections=("all", "weights", "gradients", "losses"),
        records="values, one file per tensor and step",
    ),
}


def load_tool(name: str, job: Job) -> Tool:
    """The tool, attached to the job's model."""
    module = importlib.import_module(f"benchmarks.slowdown.tools.{TOOLS[name].module}")
    return cast(Tool, module.make(job))
