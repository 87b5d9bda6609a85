"""The order of a model's tensors: by kind, then by module, in the order of the modules in the model.

The position of a weight is its first step and its `seq`, which follows the definitions of the modules. The
position of a gradient or an optimizer state is that of its parameter. If a run has no weights, gradients
that were recorded in the order of the backward pass are reversed. Inputs and outputs are in the order of
execution.

A name is a path such as "Net_blocks", "10", "fc", "weight". Siblings in the tree of these paths are sorted by
their number, or by the lowest position below them. So the tensors of a module are always neighbours, and
"blocks.2" comes before "blocks.10" also if the first saved step contains only a part of the tensors. Pure
functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from tdcore.format.layout import TensorKind
from tdcore.text.natural_order import natural_key

__all__ = ["FirstRow", "in_model_order"]

_GROUPS = (
    (TensorKind.LOSS,),
    (TensorKind.METRIC,),
    (TensorKind.SCALAR,),
    (TensorKind.HYPERPARAMETER,),
    (TensorKind.WEIGHT, TensorKind.BIAS),
    (TensorKind.GRADIENT,),
    (TensorKind.INPUT, TensorKind.OUTPUT),
    (TensorKind.OUTPUT_GRADIENT,),
    (TensorKind.OPTIMIZER_STATE,),
    (TensorKind.CUSTOM,),
    (TensorKind.REDUCTION,),
)
_GROUP_OF = {kind.label: number for number, kinds in enumerate(_GROUPS) for kind in kinds}
_PARAMETER = frozenset({"weight", "bias"})
_OF_PARAMETER = frozenset({"gradient", "optimizer_state", "custom", "reduction"})
_BACKWARD = frozenset({"gradient", "output_gradient"})
_OF_CALL = re.compile(r"(.*)_((?:input|output)_[0-9]+)", re.ASCII | re.DOTALL)
_DIGIT = re.compile(r"[0-9]", re.ASCII)
_SEPARATORS = re.compile(r"[./]")

_Path: TypeAlias = "tuple[str, ...]"
_Position: TypeAlias = "tuple[int, int, int]"  # step, seq, number after this position


class FirstRow(NamedTuple):
    """Kind, step and `seq` of the first row of a tensor."""

    kind: str
    step: int
    seq: int


def in_model_order(names: Iterable[str], first_rows: Mapping[str, FirstRow]) -> list[str]:
    """Sort names of tensors in the order of the model.

    Args:
        names: Names to sort. A name without a first row is sorted to the end of the list.
        first_rows: First rows of all tensors of the run, by name. Parameters that are not in `names` are
            looked up here.
    """
    wanted = sorted(set(names))  # tensors of several workers may have equal positions
    groups: dict[int, list[str]] = {}
    for name in wanted:
        row = first_rows.get(name)
        number = len(_GROUPS) if row is None else _GROUP_OF.get(row.kind, len(_GROUPS))
        groups.setdefault(number, []).append(name)
    found: list[str] = []
    for number in sorted(groups):
        found += _by_path(groups[number], _positions(groups[number], first_rows))
    return found


def _positions(names: list[str], first_rows: Mapping[str, FirstRow]) -> dict[str, _Position]:
    """Position of each tensor of one group."""
    rows = {name: first_rows.get(name, FirstRow("", 0, 0)) for name in names}
    parameters = {
        name: (first_rows[parameter].step, first_rows[parameter].seq, 0)
        for name in names
        if rows[name].kind in _OF_PARAMETER and (parameter := _parameter(name, first_rows))
    }
    recorded: dict[str, _Position] = {name: (row.step, row.seq, 0) for name, row in rows.items()}
    if len(parameters) == len(names):
        return parameters
    if rows[names[0]].kind not in _BACKWARD:
        return recorded | parameters
    return _gradient_positions(recorded, parameters)


def _gradient_positions(
    recorded: Mapping[str, _Position], parameters: Mapping[str, _Position]
) -> dict[str, _Position]:
    """Position of each gradient: that of its parameter, else after the gradient before it.

    Frameworks record the gradients of a step in the order of the backward pass, or in the order of the
    parameters. The positions of parameters show which order it is, or else the numbers in names; without both
    it is the order of the backward pass.
    """
    known = list(parameters) if len(parameters) > 1 else [name for name in recorded if _DIGIT.search(name)]
    ranked = sorted(known, key=parameters.__getitem__ if len(parameters) > 1 else natural_key)
    is_backward = _is_reversed([recorded[name] for name in ranked])
    found: dict[str, _Position] = {}
    last: _Position = (-1, 0, 0)
    in_steps = sorted(recorded, key=lambda name: (recorded[name][0], -recorded[name][1]))
    for name in in_steps if is_backward else sorted(recorded, key=recorded.__getitem__):
        last = parameters[name] if name in parameters else (last[0], last[1], last[2] + 1)
        found[name] = last
    return found


def _is_reversed(positions: list[_Position]) -> bool:
    """Whether positions fall rather than rise along the list; also if they do neither."""
    middle = (len(positions) - 1) / 2
    ranks = sorted(range(len(positions)), key=positions.__getitem__)
    return sum((rank - middle) * (at - middle) for rank, at in enumerate(ranks)) <= 0


def _parameter(name: str, first_rows: Mapping[str, FirstRow]) -> str:
    """The parameter of "gradient/fc.weight" or "optimizer/exp_avg/fc.weight"; "" if there is no such row."""
    while "/" in name:
        name = name.partition("/")[2]
        row = first_rows.get(name)
        if row is not None and row.kind in _PARAMETER:
            return name
    return ""


def _by_path(names: list[str], positions: Mapping[str, _Position]) -> list[str]:
    paths = {name: _path(name) for name in names}
    lowest: dict[_Path, _Position] = {}
    for name, path in paths.items():
        position = positions[name]
        for length in range(1, len(path) + 1):
            node = path[:length]
            lowest[node] = min(position, lowest.get(node, position))

    keys = {node: _node_key(node[-1], position) for node, position in lowest.items()}

    def key(name: str) -> tuple[list[tuple[object, ...]], str]:
        path = paths[name]
        return [keys[path[: at + 1]] for at in range(len(path))], name

    return sorted(names, key=key)


def _node_key(part: str, position: _Position) -> tuple[object, ...]:
    if part.isascii() and part.isdigit() and len(part) < 10:
        return (0, int(part), (), part)
    return (1, position, natural_key(part), part)


def _path(name: str) -> _Path:
    of_call = _OF_CALL.fullmatch(name)
    if of_call is None:
        return tuple(_SEPARATORS.split(name))
    return (*_SEPARATORS.split(of_call[1]), of_call[2])
