"""What a call of an operator costs that does nothing, by how it is registered: microseconds, best of rounds.

`python -m benchmarks.operator_cost` prints a JSON object. The operator of hooks/pytorch/operator.py is
registered as "library"; the other ways are what was tried beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter

import torch

_CALLS, _ROUNDS = 2000, 5


def _nothing(order: torch.Tensor, value: torch.Tensor) -> None:
    pass


def _microseconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        start = perf_counter()
        for _ in range(_CALLS):
            call()
        best = min(best, (perf_counter() - start) / _CALLS * 1e6)
    return round(best, 2)


def main() -> None:
    """Measures and prints."""
    library = torch.library.Library("tdcore_cost", "DEF")
    library.define("library(Tensor(a!) order, Tensor value) -> ()")
    library.impl("library", _nothing, "CompositeExplicitAutograd")
    custom = torch.library.custom_op("tdcore_cost::custom", _nothing, mutates_args=("order",))
    registered = torch.ops.tdcore_cost.library.default
    order, value = torch.zeros((), dtype=torch.uint8), torch.zeros(4)
    with torch.no_grad():
        found = {
            "python call": _microseconds(lambda: _nothing(order, value)),
            "library": _microseconds(lambda: registered(order, value)),
            "custom_op": _microseconds(lambda: custom(order, value)),
            "aten add_": _microseconds(lambda: torch.ops.aten.add_.Scalar(value, 0)),
        }
    print(json.dumps({"torch": str(torch.__version__), "microseconds": found}, indent=1))


if __name__ == "__main__":
    main()
