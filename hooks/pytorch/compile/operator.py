"""The operator through which compiled code calls back: `tdcore::observe`, and who it calls.

A compiled graph keeps only operators. This one changes a state tensor (`order`), so it is neither removed nor
moved past another one. It passes its tensors to the observer whose number `who` holds. A number in a tensor,
and not in the code, lets twenty blocks of a model share one compiled variant.

Registered with torch.library's `Library`: it is public since torch 2.0, needs no build against torch, and an
empty call costs a tenth of one through `custom_op` (`python -m benchmarks operator-cost`). An empty kernel in
C++, put in through libtorch's stable C functions without header or link, costs four fifths of it: most of the
time is PyTorch's way from the Python of compiled code to any operator. Such a kernel has no way to hand
tensors to Python, and its lists and texts need torch 2.10, so it was left.
Threads: any. Keeps no observer and no tensor alive. An observer that is gone is not called.
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
    "skip_frames",
]

# True only in code that is being compiled. Where torch has no such function (before 2.3), capture in
# compiled code is not possible, and hooks behave as they always did there.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)


class Observer(Protocol):
    """What compiled code may call."""

    def observed(self, values: list[torch.Tensor], what: str) -> None:
        """Compiled code has come to this place. Never raises."""

    def report_uncaptured(self, operator: str) -> None:
        """Code is compiled that cannot hold the call, inside of an operator. Never raises."""


OMITTED = "\t"  # before the end of a name whose tensor is not handed on

_observers: weakref.WeakValueDictionary[int, Observer] = weakref.WeakValueDictionary()
_numbering = itertools.count()


def register_observer(observer: Observer) -> torch.Tensor:
    """A new number for an observer, in the form that compiled code hands on."""
    number = next(_numbering)
    _observers[number] = observer
    with torch.inference_mode(False):
        return torch.tensor(number, dtype=torch.int64, device="cpu")


def observer_of(number: int) -> Observer | None:
    """The observer that has this number, while it is there."""
    return _observers.get(number)


def _call(order: torch.Tensor, who: torch.Tensor, values: list[torch.Tensor], what: str) -> None:
    observer = _observers.get(who.item())  # type: ignore[arg-type]  # it is an integer
    if observer is not None:
        observer.observed(values, what)


def _trace(order: torch.Tensor, who: torch.Tensor, values: list[torch.Tensor], what: str) -> None:
    """What the operator does to tensors that have shapes and no values."""


_library = torch.library.Library("tdcore", "DEF")
_library.define("observe(Tensor(a!) order, Tensor who, Tensor[] values, str what) -> ()")
_library.impl("observe", _call, "CompositeExplicitAutograd")
_library.impl("observe", _trace, "Meta")
_order = torch.zeros((), dtype=torch.uint8, device="cpu")
_operator: Any = torch.ops.tdcore.observe.default


def observe(who: torch.Tensor, values: list[torch.Tensor], what: str = "") -> None:
    """Puts a call of the observer into the code that is being compiled, behind all earlier ones."""
    _operator(_order, who, [value.detach() for value in values], what)


def plain_tensors(found: list[tuple[str, torch.Tensor]]) -> tuple[list[torch.Tensor], list[str]]:
    """Return tensors for observe(), and the suffixes of their names. Called while code is compiled.

    Of a tensor of another class (a DTensor) only the end of the name is handed on, marked: an operator that
    it does not know would end the training.
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
    """The compiler calls these from between two graphs, where it meets them in a backward or an optimizer.

    What it would do otherwise is the same, after a warning that it cannot trace what they call.
    """
    for function in functions:
        function._torchdynamo_disable = True  # as torch.compiler.disable() does, without its wrapper


def skip_frames(*functions: Any) -> None:
    """These run as they are when compiled code calls them from outside a graph, and so does what they call.

    Hooks of a root module run so: the compiler would otherwise try to compile each for itself.
    """
    compiler = getattr(torch._C, "_dynamo", None)
    frames = getattr(compiler, "eval_frame", None)
    action = getattr(frames, "_FrameAction", None)
    if action is not None:
        for function in functions:
            strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP)  # type: ignore[union-attr]
            frames.set_code_exec_strategy(function.__code__, strategy)  # type: ignore[union-attr]
