"""Cost of a call of an empty operator, by the way it is registered: microseconds, best of several rounds.

All operators have the arguments of hooks/pytorch/compile/operator.py and are called as by code of inductor.
Rounds alternate, so that a slow second of the machine affects all operators.

python           the function itself, no operator
library          torch.library.Library with a Python kernel, as in hooks/pytorch/compile/operator.py
native           the same schema with an empty kernel in C++, through libtorch's stable C functions, found by
                 name at run time (operator_cost.cpp; needs a compiler, no headers of torch). These functions
                 accept tensor lists and strings since torch 2.10
native, tensors  the same with only the two tensors
custom_op        torch.library.custom_op
observe          the operator of hooks/pytorch/compile/operator.py, with an observer that does nothing
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.environment import add_out, save
from tdcore.hooks.pytorch.compile.operator import register_observer

_CALLS, _ROUNDS = 2000, 7
_ARGUMENTS = "(Tensor(a!) order, Tensor who, Tensor[] values, str what) -> ()"


def _nothing(order: torch.Tensor, who: torch.Tensor, values: Sequence[torch.Tensor], what: str) -> None:
    pass


class _Deaf:
    def observed(self, values: list[torch.Tensor], what: str) -> None:
        pass

    def report_uncaptured(self, operator: str) -> None:
        pass


def _native(folder: str) -> bool:
    """Register the kernels in C++. Returns whether there is a compiler and a torch that supports them."""
    built = str(Path(folder) / "operator_cost.so")
    source = str(Path(__file__).with_suffix(".cpp"))
    try:
        subprocess.run(["c++", "-std=c++20", "-O2", "-shared", "-fPIC", source, "-o", built], check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    library = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    return bool(ctypes.CDLL(built).tdcore_cost_register(str(library).encode()) == 0)


_DEAF = _Deaf()


def _ways(library: torch.library.Library, folder: str) -> dict[str, Callable[[], object]]:
    library.define("library" + _ARGUMENTS)
    library.impl("library", _nothing, "CompositeExplicitAutograd")
    custom = torch.library.custom_op("tdcore_cost::custom", _nothing, mutates_args=("order",))
    order, value = torch.zeros((), dtype=torch.uint8), torch.zeros(4)
    who, values = torch.tensor(3), [value]
    ours: Any = torch.ops.tdcore.observe.default
    of: Any = torch.ops.tdcore_cost
    ways: dict[str, Callable[[], object]] = {
        "python": partial(_nothing, order, who, values, "0"),
        "library": partial(of.library.default, order, who, values, "0"),
        "custom_op": partial(custom, order, who, values, "0"),
        "observe": partial(ours, order, register_observer(_DEAF), values, "0"),
    }
    if _native(folder):
        ways["native"] = partial(of.native.default, order, who, values, "0")
        ways["native, tensors"] = partial(of.native_tensors.default, order, who)
    return ways


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    for _ in range(_CALLS):
        call()
    return perf_counter() - start


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_out(parser)
    folder = parser.parse_args().out
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        library = torch.library.Library("tdcore_cost", "DEF")
        ways = _ways(library, scratch)
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(_ROUNDS):
            for name, call in ways.items():
                best[name] = min(best[name], _seconds(call))
    found = {name: round(seconds / _CALLS * 1e6, 2) for name, seconds in best.items()}
    method = f"best of {_ROUNDS} rounds of {_CALLS} calls, one thread, gradients off; microseconds per call"
    for name, microseconds in found.items():
        print(f"{name:16} {microseconds:7.2f} us")
    print(save("operator_cost", {"method": method, "microseconds": found}, folder))


if __name__ == "__main__":
    main()
