"""One module per tool; each is imported only in the environment that has it.

TOOLS has the environment of each tool (under .venvs, or "" for tdcore's own), its module, and the collections
that it can record. Other collections are not measured with the tool, and the report lists missing cells.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import cast

from benchmarks.slowdown.tools.base import Job, Tool

__all__ = ["TOOLS", "Job", "Tool", "ToolEntry", "load_tool"]


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """A tool of the benchmark. records: the data of a saved step, as text for the report."""

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
    """Load a tool and attach it to the model of the job."""
    module = importlib.import_module(f"benchmarks.slowdown.tools.{TOOLS[name].module}")
    return cast(Tool, module.make(job))
