"""The part of a tensor that this rank holds, and where it lies in the whole.

A DTensor (FSDP2, tensor and expert parallel) is captured as its local part, under an id of its name that
says where the part lies (format/shard.py). The parameters of a model under DistributedDataParallel, their
gradients and optimizer state are whole on every rank, and say so. Everything else is the rank's own.

No operator of a DTensor is ever called here, since any may communicate: only attributes are read, and the
place is computed from the mesh. Nor is a collective waited for that the training has started and not
finished (an AsyncCollectiveTensor): what it waits for may depend on what this rank sends next. Such an
output is read once the training has waited (unfinished.py); any other leaves a row without values.
Threads: any. Keeps no tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from tdcore.format.layout import TensorKind
from tdcore.format.shard import NORM_OF, Shard
from tdcore.hooks.plan import Batch, NameTable
from tdcore.hooks.pytorch.loaded import is_a
from tdcore.hooks.pytorch.model import ModelView
from tdcore.hooks.pytorch.series import BACKWARD, RATIO, UPDATE
from tdcore.hooks.pytorch.unfinished import Unfinished
from tdcore.hooks.pytorch.wrappers import active_ddp, ddp_ranks, ignored_by_ddp
from tdcore.hooks.recorder import Recorder

__all__ = ["Part", "Parts", "box", "in_place", "part_of"]

_PLAIN = frozenset({torch.Tensor, nn.Parameter, type(None), np.ndarray, np.float64})
_OF_PARAMETERS = frozenset(
    {TensorKind.WEIGHT, TensorKind.BIAS, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE}
)
_COPIED_SERIES = tuple(f"{series}/" for series in (BACKWARD, UPDATE, RATIO))  # microbatch: the rank's own
_ASYNC = ("torch.distributed._functional_collectives", "AsyncCollectiveTensor")
_FLAT = (
    "FullyShardedDataParallel: each rank's part is a piece of flattened parameters, whose place is not told"
)
_UNFINISHED = (
    "was not finished: read later, or not at all when the training did not wait for it in the forward"
)
_PLACES = 1 << 16  # of tensors that are remembered


class Part(NamedTuple):
    """A tensor of this rank's own, and where it lies; trouble: why that is not known, if it should be."""

    tensor: Any
    shard: Shard | None = None
    trouble: str = ""


class Parts:
    """Puts this rank's parts in the place of what a capture is given. notes: of collections.json.

    copied: names of the parameters of which every rank has the whole.
    """

    def __init__(self, names: NameTable, notes: dict[str, Any], recorder: Recorder) -> None:
        self.unfinished = Unfinished(recorder.native)
        self.copied: frozenset[str] = frozenset()
        self._names = names
        self._notes = notes
        self._copies: dict[tuple[int, torch.Size], int] = {}
        self._view: ModelView | None = None  # that copied is about
        self._outer: frozenset[str] | None = None  # paths that a DDP around the root leaves out

    def look_at(self, root: nn.Module, view: ModelView) -> None:
        """The root's forward begins: which parameters every rank has in full, as far as that is told."""
        ddp = active_ddp()
        if view is self._view and (ddp is None or self._outer is not None):
            return
        if ddp is not None and ddp._modules.get("module") is root:
            self._outer = ignored_by_ddp(ddp)
        self._view, self.copied = view, view.copied
        if self._outer is not None:
            left_out = {f"{view.root_name}_{name}" for name in self._outer}
            self.copied |= {parameter.name for parameter in view.parameters} - left_out
        self._copies.clear()
        self._note_group(root if ddp is None else ddp)
        if view.flat and "flat_parameters" not in self._notes:
            self._notes["flat_parameters"] = _FLAT

    def _note_group(self, module: nn.Module) -> None:
        """Copies on some ranks only: another group may train other values under the same names."""
        ranks = ddp_ranks(module)
        if ranks is not None and self._notes.get("copied_over") != [ranks]:
            self._notes["copied_over"] = [ranks]  # a list of groups: other workers' are joined to it

    def __call__(
        self, tensors: list[Any], batch: Batch, when: tuple[int, int, int, int]
    ) -> tuple[list[Any], Batch]:
        """The same capture with parts and their ids. Costs next to nothing where all tensors are plain.

        when: step, mode, mode step, call. Nothing comes back of what is kept for later.
        """
        if self.unfinished.kept:
            self.unfinished.take(last=False)
        copied = self.copied
        if not copied and _PLAIN.issuperset(map(type, tensors)):
            return tensors, batch
        found = list(tensors)
        ids = array("I", batch.ids)
        for position, tensor in enumerate(tensors):
            if type(tensor) not in _PLAIN:
                found[position], ids[position] = self._part(tensor, ids[position])
            elif copied and isinstance(tensor, torch.Tensor):
                ids[position] = self._copy(ids[position], tensor.shape)
        placed = batch.under(ids)
        if len(found) == 1 and self._keep(tensors[0], found[0], placed, when):
            return [], placed
        return found, placed

    def end_forward(self) -> None:
        """The root's forward has ended: no tensor is kept any longer."""
        self.unfinished.take(last=True)

    def _keep(self, whole: Any, local: Any, batch: Batch, when: tuple[int, int, int, int]) -> bool:
        if not is_a(local, *_ASYNC) or isinstance(whole, Part):
            return False
        _, kind = self._names.named(batch.ids[0])
        return kind is TensorKind.OUTPUT and self.unfinished.keep(whole, local, batch, when)

    def _part(self, tensor: Any, tensor_id: int) -> tuple[Any, int]:
        part = part_of(tensor)
        if part.trouble:
            name, _ = self._names.named(tensor_id)
            notes = self._notes.setdefault("unplaced", {})
            if notes.get(name) != part.trouble:
                notes[name] = part.trouble
                self._names.changed = True
        if part.shard is not None:
            tensor_id = self._names.placed(tensor_id, part.shard)
        return part.tensor, tensor_id

    def _copy(self, tensor_id: int, shape: torch.Size) -> int:
        found = self._copies.get((tensor_id, shape))
        if found is None:
            name, kind = self._names.named(tensor_id)
            found = tensor_id
            of_one = kind in _OF_PARAMETERS or name.startswith(_COPIED_SERIES)
            if of_one and name.rpartition("/")[2] in self.copied:
                found = self._names.placed(tensor_id, Shard.whole(tuple(shape)))
            if len(self._copies) >= _PLACES:
                self._copies.clear()
            self._copies[tensor_id, shape] = found
        return found


def in_place(gradients: list[Any], parameters: Sequence[Any]) -> list[Any]:
    """The gradients; one that is not there says where it would lie, when its parameter is spread."""
    if not any(map(is_, gradients, repeat(None))):
        return gradients
    return [
        Part(None, part_of(parameter).shard)
        if gradient is None and type(parameter) not in _PLAIN
        else gradient
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


def part_of(tensor: Any) -> Part:
    """What this rank holds of the tensor. Of a tensor that is no DTensor: itself."""
    if isinstance(tensor, Part):
        return tensor
    if is_a(tensor, "torch.distributed.tensor", "DTensor"):
        local = getattr(tensor, "_local_tensor", None)
        if local is None:
            with torch.no_grad():  # with gradients to_local() would be a node of the graph
                local = tensor.to_local()
        part = _placed(tensor, _ready(local))
    else:
        part = Part(_ready(tensor))
    return part._replace(trouble=_UNFINISHED) if is_a(part.tensor, *_ASYNC) else part


def box(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]
) -> tuple[tuple[int, ...], Shard] | None:
    """Shape and place of the part at a coordinate of a mesh. None: the part is no box, or cannot be told.

    FSDP2 cuts last, though its dimension of the mesh comes first: its strided placement says how many cuts
    of the others (split_factor) went before.
    """
    sizes, offset = list(shape), [0] * len(shape)

    def cut(at: int, dim: int) -> None:
        piece = -(-sizes[dim] // mesh[at])  # as torch.chunk cuts: the last ones may be smaller, or empty
        start = min(piece * coordinate[at], sizes[dim])
        offset[dim] += start
        sizes[dim] = min(piece, sizes[dim] - start)

    waiting: list[tuple[int, int, int]] = []  # (place in the mesh, dimension, cuts that go before)
    partial = None
    copy = False
    for at, placement in enumerate(placements):
        if placement.is_replicate():
            copy = copy or coordinate[at] > 0
        elif placement.is_partial():
            operation = _reduction(placement)
            partial = operation if partial in (None, operation) else "mixed"
        elif hasattr(placement, "split_factor"):
            waiting.append((at, placement.dim, int(placement.split_factor)))
        elif placement.is_shard():
            cut(at, placement.dim)
        else:
            return None
    for at, dim, factor in reversed(waiting):
        before = [mesh[i] for i in range(at + 1, len(mesh)) if getattr(placements[i], "dim", None) == dim]
        if int(np.prod(before)) != factor:
            return None  # an operator's result, interleaved
        cut(at, dim)
    if partial is not None and copy:
        partial = f"copy of {partial}"  # another rank has the same summand
    return tuple(sizes), Shard(tuple(shape), tuple(offset), partial)


def _placed(whole: Any, local: Any) -> Part:
    placements = tuple(whole.placements)
    coordinate = whole.device_mesh.get_coordinate()
    if coordinate is None:
        return Part(None)  # the mesh is of other ranks
    found = box(tuple(whole.shape), tuple(whole.device_mesh.shape), tuple(coordinate), placements)
    if found is None or found[0] != tuple(local.shape):
        text = ", ".join(map(str, placements))
        return Part(local, trouble=f"where the part lies cannot be told: {tuple(local.shape)} by {text}")
    return Part(local, found[1])


def _reduction(placement: Any) -> str:
    """The operation of a Partial, "norm_<p>" of a norm, and for any other kind its name."""
    kind = type(placement).__name__
    power = getattr(placement, "norm_type", None)
    if kind == "_NormPartial" and isinstance(power, (int, float)):
        return f"{NORM_OF}{float(power):g}"
    return str(placement.reduce_op) if kind == "Partial" else kind.strip("_")


def _ready(tensor: Any) -> Any:
    """The tensor behind an AsyncCollectiveTensor that was waited for; any other as it is."""
    if is_a(tensor, *_ASYNC):
        return tensor.elem if getattr(tensor, "completed", False) else tensor
    return tensor
