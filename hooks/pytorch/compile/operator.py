"""The operator `tdcore::observe`, with which compiled code calls tdcore, and its observers.

A compiled graph contains only operators. This operator changes a state tensor (`order`), so the compiler
neither removes nor reorders its calls. The operator passes its tensors to the observer whose number is in the
tensor `who`. Because the number is in a tensor and not in the code, equal blocks of a model share one
compiled variant.

The operator is registered with torch.library's `Library`, which is public since torch 2.0 and needs no build
against torch. An empty call costs a tenth of a call through `custom_op` (`python -m benchmarks
operator-cost`). An empty C++ kernel, registered through libtorch's stable C functions without headers or
linking, costs four fifths of this call, because most of the time is PyTorch's dispatch from compiled Python
to an operator. A C++ kernel is not used, because it cannot pass tensors to Python, and lists and texts as its
arguments need torch 2.10.

Threads: any. Keeps no observer and no tensor alive. An observer that was deleted is not called.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = [
    "OMITTED",
    "Observer",
    "is_compiling",
    "never_trace",
    "observe",
    "observer_of",
    "plain_tensors",
    "register_observer",
    "skip_frame",
    "skip_frames",
]

# True only in code that is being compiled. If torch has no such function (before 2.3), capture in compiled
# code is not possible, and the compiler handles the hooks like other Python code.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)


class Observer(Protocol):
    """Receiver of calls from compiled code."""

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """Handle a call from compiled code at this site. Never raises."""

    def report_uncaptured(self, operator: str) -> None:
        """Handle the compilation of code in which the call cannot be inserted. Never raises."""


OMITTED = "\t"  # precedes the suffix of a name whose tensor is not passed on

_observers: weakref.WeakValueDictionary[int, Observer] = weakref.WeakValueDictionary()
_numbering = itertools.count()


def register_observer(observer: Observer) -> torch.Tensor:
    """Register an observer. Return its number as the tensor that compiled code passes to the operator."""
    number = next(_numbering)
    _observers[number] = observer
    with torch.inference_mode(False):
        return torch.tensor(number, dtype=torch.int64, device="cpu")


def observer_of(number: int) -> Observer | None:
    """The observer with this number, while it exists."""
    return _observers.get(number)


def _call(order: torch.Tensor, who: torch.Tensor, values: list[torch.Tensor], what: str) -> None:
    observer = _observers.get(who.item())  # type: ignore[arg-type]  # the number is an integer
    if observer is not None:
        observer.observed(values, what)


def _trace(order: torch.Tensor, who: torch.Tensor, values: list[torch.Tensor], what: str) -> None:
    """Implement the operator for tensors that have shapes but no values."""


_library = torch.library.Library("tdcore", "DEF")
# With mode="reduce-overhead" the compiler records CUDA graphs, whose replays call no Python code. The tag
# (since torch 2.9) makes the compiler divide the code at the operator, so that each run calls the operator.
_tag = getattr(torch._C.Tag, "cudagraph_unsafe", None)
_library.define(
    "observe(Tensor(a!) order, Tensor who, Tensor[] values, str what) -> ()",
    **({"tags": (_tag,)} if _tag is not None else {}),
)
_library.impl("observe", _call, "CompositeExplicitAutograd")
_library.impl("observe", _trace, "Meta")
_order = torch.zeros((), dtype=torch.uint8, device="cpu")
_operator: Any = torch.ops.tdcore.observe.default


def observe(who: torch.Tensor, values: list[torch.Tensor], what: str = "") -> None:
    """Insert a call of an observer into the code that is being compiled, after all earlier calls."""
    _operator(_order, who, [value.detach() for value in values], what)


def plain_tensors(found: list[tuple[str, torch.Tensor]]) -> tuple[list[torch.Tensor], list[str]]:
    """Return tensors for observe(), and the suffixes of their names. Called while code is compiled.

    For a tensor of another class (a DTensor) only the suffix of the name is passed on, with a mark, because
    an operator that is unknown to the class would end the training.
    """
    values: list[torch.Tensor] = []
    suffixes: list[str] = []
    for suffix, tensor in found:
        if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
            values.append(tensor)
            suffixes.append(suffix)
        else:
            suffixes.append(OMITTED + suffix)
    return values, suffixes


def never_trace(*functions: Any) -> None:
    """Exclude functions of a backward or an optimizer from compilation, so that they run between two graphs.

    Without this exclusion the compiler also calls them between two graphs, but first logs a warning.
    """
    for function in functions:
        function._torchdynamo_disable = True  # as torch.compiler.disable() does, without its wrapper


def skip_frames(*functions: Any) -> None:
    """Run these functions, and all functions that they call, uncompiled if they are called outside a graph.

    Otherwise the compiler tries to compile each hook of a root module separately.
    """
    for function in functions:
        _set_strategy(function, recursive=True)


def skip_frame(function: Any) -> None:
    """Run this function uncompiled. The functions that it calls are compiled as without it."""
    _set_strategy(function, recursive=False)


def _set_strategy(function: Any, *, recursive: bool) -> None:
    compiler = getattr(torch._C, "_dynamo", None)
    frames = getattr(compiler, "eval_frame", None)
    action = getattr(frames, "_FrameAction", None)
    if action is not None:
        below = action.SKIP if recursive else action.DEFAULT
        strategy = frames._FrameExecStrategy(action.SKIP, below)  # type: ignore[union-attr]
        frames.set_code_exec_strategy(function.__code__, strategy)  # type: ignore[union-attr]
