"""Interface of a tool for the worker, and the tensors that all tools record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training that a tool records."""

    model: nn.Module
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    collection: str
    interval: int
    saved_steps: list[int]
    folder: Path


class Tool:
    """A tool that does nothing. step_begins, backward_done and step_ends run in the timed part of a step."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def offset(self) -> int:
        """Position of the saved step in each interval; 0 for the first step."""
        return 0

    def block_begins(self, saving: bool) -> None:
        """Called before a block with or without saving. Not timed."""

    def step_begins(self, step: int) -> None:
        """Called before the forward pass."""

    def backward_done(self, step: int, loss: torch.Tensor) -> None:
        """Called after the backward pass, before the optimizer."""

    def step_ends(self, step: int) -> None:
        """Called after the optimizer."""

    def close(self) -> dict[str, Any]:
        """End the recording. Returns the counters of the tool: "drops", and others."""
        return {}


class Collector:
    """The tensors of a collection, collected by hand, as by a user without a tool.

    Forward hooks store activations while `active` is set; tensors() returns them with the other tensors.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, collection: str) -> None:
        self.active = False
        self._model = model
        self._collection = collection
        self._activations: dict[str, torch.Tensor] = {}
        self._calls: dict[str, int] = {}
        self._handles = []
        if collection in ("all", "statistics"):
            for name, module in model.named_modules():
                self._handles.append(module.register_forward_hook(self._keep(name or "model")))
            self._handles.append(criterion.register_forward_hook(self._keep("criterion", output=False)))

    def _keep(self, name: str, output: bool = True) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        """Clone an activation, because the next layer may change the tensor in place."""

        def hook(module: nn.Module, inputs: tuple[Any, ...], result: Any) -> None:
            if not self.active:
                return
            call = self._calls[name] = self._calls.get(name, -1) + 1  # a module may be called several times
            for i, tensor in enumerate(inputs):
                if isinstance(tensor, torch.Tensor):
                    self._activations[f"{name}_input_{i}.{call}"] = tensor.detach().clone()
            if output and isinstance(result, torch.Tensor):
                self._activations[f"{name}_output_0.{call}"] = result.detach().clone()

        return hook

    def tensors(self, loss: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of everything in the collection, after backward."""
        everything = self._collection in ("all", "statistics", "parameters")
        for name, parameter in self._model.named_parameters():
            is_weight = parameter.dim() > 1
            if everything or (self._collection == "weights" and is_weight):
                yield name, parameter.detach()
            if parameter.grad is not None and (everything or self._collection == "gradients"):
                yield f"gradient/{name}", parameter.grad
        yield from self._activations.items()
        yield "loss", loss.detach()
        self._activations.clear()
        self._calls.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


class Collecting(Tool):
    """A tool that gets the tensors of saved steps, collected by hand."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._collector = Collector(job.model, job.criterion, job.collection)
        self._saved = set(job.saved_steps)

    def step_begins(self, step: int) -> None:
        """Activate the hooks for a saved step."""
        self._collector.active = step in self._saved

    def backward_done(self, step: int, loss: torch.Tensor) -> None:
        """Record the tensors of a saved step."""
        if step in self._saved:
            self.record(step, self._collector.tensors(loss))

    def record(self, step: int, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Store the tensors of a saved step."""
        raise NotImplementedError

    def close(self) -> dict[str, Any]:
        """Close the collector. No tensors are dropped."""
        self._collector.close()
        return {"drops": 0}
