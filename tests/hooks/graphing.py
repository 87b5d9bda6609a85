"""CUDA graphs without a card: the calls of torch that record and replay, on a simulated device.

`torch.cuda.make_graphed_callables` itself is torch's. A recording notes the work of the layers of this file,
which compute into static buffers; a replay repeats that work and the work of the simulated device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tests import _sim

Work = Callable[[], object]


class Card:
    """A simulated device that runs the work of torch's CUDA graphs.

    Attributes:
        device: The simulated device, whose tensors are in host memory.
        recording: Work of the graph that is being recorded; None outside of recordings.
        stream: Handle of the current stream.
        replays: Number of replays so far.
    """

    def __init__(self, hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = _sim.simulate_device(hook._ring, 0, host_tensors=True)
        assert hook._ring.prepare_device(0)
        self.recording: list[Work] | None = None
        self.stream = 0
        self.replays = 0
        card = self

        class CUDAGraph:
            """A graph: its work on the host, and its number on the device."""

            def __init__(self) -> None:
                self.work: list[Work] = []
                self.number = 0

            def replay(self) -> None:
                with torch.no_grad():
                    for work in self.work:
                        work()
                assert card.device.replay(self.number, card.stream)
                card.replays += 1

        @contextmanager
        def record(graph: CUDAGraph, **options: object) -> Iterator[None]:
            graph.number = card.device.begin_capture(card.stream)
            card.recording = graph.work
            try:
                yield
            finally:
                card.recording = None
                card.device.end_capture(card.stream)

        for name, value in {
            "is_initialized": lambda: True,
            "is_current_stream_capturing": lambda: card.recording is not None,
            "current_stream": lambda device=None: card,
            "CUDAGraph": CUDAGraph,
            "graph": record,
            "synchronize": lambda *options: None,
            "Stream": lambda *options: None,
            "stream": lambda *options: nullcontext(),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda.graphs, "graph_pool_handle", lambda: None)

    @property
    def cuda_stream(self) -> int:
        """The handle of the current stream, as of torch.cuda.Stream."""
        return self.stream

    @property
    def stream_id(self) -> int:
        """The number of the current stream, as of torch.cuda.Stream: a stream of torch."""
        return 0

    def run(self, work: Work) -> None:
        """Do work now, and note it if a graph is recorded."""
        work()
        if self.recording is not None:
            self.recording.append(work)


class Multiply(torch.autograd.Function):
    """Multiplication of a tensor by a parameter of one element, in static buffers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor, card: Card) -> torch.Tensor:
        output = torch.empty_like(x)
        card.run(lambda: torch.mul(x.detach(), factor.detach(), out=output))
        ctx.save_for_backward(x, factor)
        ctx.card = card
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, factor = ctx.saved_tensors
        of_x, of_factor = torch.empty_like(x), torch.empty_like(factor)
        ctx.card.run(lambda: torch.mul(gradient, factor.detach(), out=of_x))
        ctx.card.run(lambda: of_factor.copy_((gradient * x.detach()).sum()))
        return of_x, of_factor, None


class Scale(nn.Module):
    """A layer with one parameter, whose work a graph can repeat."""

    def __init__(self, card: Card, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.card = card

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Multiply.apply(x, self.factor, self.card)  # type: ignore[no-any-return, no-untyped-call]
