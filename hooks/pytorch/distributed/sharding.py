"""Local shards of distributed tensors, and their place in the whole tensor.

A DTensor (FSDP2, tensor and expert parallel) is captured as its local shard. The id of the shard refers to
the tensor's name and the place of the shard (tdcore/format/shard.py). Parameters of a model under
DistributedDataParallel, their gradients and optimizer state are complete on every rank, and are marked as
copies. Every other tensor belongs to its rank alone.

No operator of a DTensor is called here, because any operator may communicate. Only attributes are read, and
the place is computed from the mesh. tdcore does not wait for an unfinished collective (an
AsyncCollectiveTensor), because the collective may depend on a later communication of this rank. Its output is
read after the training has waited (async_outputs.py); otherwise the row has no values.
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
from tdcore.format.shard import NORM_OF, ShardPosition
from tdcore.hooks.plan import CaptureSpec, NameTable
from tdcore.hooks.pytorch.distributed.async_outputs import AsyncOutputs
from tdcore.hooks.pytorch.model.introspection import isinstance_if_imported
from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.pytorch.model.opt_in_series import BACKWARD, RATIO, UPDATE
from tdcore.hooks.pytorch.model.wrappers import active_ddp, ddp_ranks, ignored_by_ddp
from tdcore.hooks.recorder import Recorder

__all__ = ["LocalShard", "LocalShards", "local_shard_of", "match_sharding", "shard_box"]

_PLAIN = frozenset({torch.Tensor, nn.Parameter, type(None), np.ndarray, np.float64})
_OF_PARAMETERS = frozenset(
    {TensorKind.WEIGHT, TensorKind.BIAS, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE}
)
# Microbatch gradients belong to each rank alone.
_COPIED_SERIES = tuple(f"{series}/" for series in (BACKWARD, UPDATE, RATIO))
_ASYNC = ("torch.distributed._functional_collectives", "AsyncCollectiveTensor")
_FLAT = (
    "FullyShardedDataParallel: a rank has a piece of flattened parameters, whose position is not available"
)
_NOT_FINISHED = (
    "was not finished: it is read later, or not at all if the training did not wait for it in the forward"
)
_PLACES = 1 << 16  # number of stored places of tensors


class LocalShard(NamedTuple):
    """The part of a tensor that this rank holds.

    Attributes:
        tensor: The local values.
        shard: The place of the values in the whole tensor; None for a tensor that belongs to this rank alone.
        trouble: Reason why the place of a sharded tensor is unknown.
    """

    tensor: Any
    shard: ShardPosition | None = None
    trouble: str = ""


class LocalShards:
    """Replacement of the tensors of a capture by this rank's shards.

    Attributes:
        copied: Names of the parameters that every rank holds in full.
    """

    def __init__(self, names: NameTable, notes: dict[str, Any], recorder: Recorder) -> None:
        self.async_outputs = AsyncOutputs(recorder.native)
        self.copied: frozenset[str] = frozenset()
        self._names = names
        self._notes = notes
        self._copies: dict[tuple[int, torch.Size], int] = {}
        self._view: ModelView | None = None  # the model of `copied`
        # Parameters that a DDP around the root does not synchronize.
        self._outer: frozenset[str] | None = None

    def look_at(self, root: nn.Module, view: ModelView) -> None:
        """Find the parameters that every rank holds in full, when the root's forward begins."""
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
        """Note the ranks of a group of copies. Another group may train other values with the same names."""
        ranks = ddp_ranks(module)
        if ranks is not None and self._notes.get("copied_over") != [ranks]:
            # A list of groups, to which the groups of other workers are added.
            self._notes["copied_over"] = [ranks]

    def __call__(
        self, tensors: list[Any], capture_spec: CaptureSpec, when: tuple[int, int, int, int]
    ) -> tuple[list[Any], CaptureSpec]:
        """Return the capture with local shards and their ids; unchanged if all tensors are plain.

        Tensors that are stored for a later capture are not in the result.

        Args:
            tensors: The tensors.
            capture_spec: Ids and flags of the tensors.
            when: Step, mode, mode step, call.
        """
        if self.async_outputs.pending:
            self.async_outputs.take(last=False)
        copied = self.copied
        if not copied and _PLAIN.issuperset(map(type, tensors)):
            return tensors, capture_spec
        found = list(tensors)
        ids = array("I", capture_spec.ids)
        for position, tensor in enumerate(tensors):
            if type(tensor) not in _PLAIN:
                found[position], ids[position] = self._local_shard(tensor, ids[position])
            elif copied and isinstance(tensor, torch.Tensor):
                ids[position] = self._whole_copy(ids[position], tensor.shape)
        placed = capture_spec.with_ids(ids)
        if len(found) == 1 and self._keep(tensors[0], found[0], placed, when):
            return [], placed
        return found, placed

    def end_forward(self) -> None:
        """Release all stored tensors at the end of the root's forward."""
        self.async_outputs.take(last=True)

    def _keep(
        self, whole: Any, local: Any, capture_spec: CaptureSpec, when: tuple[int, int, int, int]
    ) -> bool:
        if not isinstance_if_imported(local, *_ASYNC) or isinstance(whole, LocalShard):
            return False
        _, kind = self._names.name_and_kind(capture_spec.ids[0])
        return kind is TensorKind.OUTPUT and self.async_outputs.keep(whole, local, capture_spec, when)

    def _local_shard(self, tensor: Any, tensor_id: int) -> tuple[Any, int]:
        shard = local_shard_of(tensor)
        if shard.trouble:
            name, _ = self._names.name_and_kind(tensor_id)
            notes = self._notes.setdefault("unplaced", {})
            if notes.get(name) != shard.trouble:
                notes[name] = shard.trouble
                self._names.changed = True
        if shard.shard is not None:
            tensor_id = self._names.intern_shard(tensor_id, shard.shard)
        return shard.tensor, tensor_id

    def _whole_copy(self, tensor_id: int, shape: torch.Size) -> int:
        found = self._copies.get((tensor_id, shape))
        if found is None:
            name, kind = self._names.name_and_kind(tensor_id)
            found = tensor_id
            of_one = kind in _OF_PARAMETERS or name.startswith(_COPIED_SERIES)
            if of_one and name.rpartition("/")[2] in self.copied:
                found = self._names.intern_shard(tensor_id, ShardPosition.whole(tuple(shape)))
            if len(self._copies) >= _PLACES:
                self._copies.clear()
            self._copies[tensor_id, shape] = found
        return found


def match_sharding(gradients: list[Any], parameters: Sequence[Any]) -> list[Any]:
    """Return the gradients. An absent gradient of a sharded parameter gets the place of its shard."""
    if not any(map(is_, gradients, repeat(None))):
        return gradients
    return [
        LocalShard(None, local_shard_of(parameter).shard)
        if gradient is None and type(parameter) not in _PLAIN
        else gradient
        for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


def local_shard_of(tensor: Any) -> LocalShard:
    """Return the local shard of a tensor; a tensor that is not a DTensor is its own shard."""
    if isinstance(tensor, LocalShard):
        return tensor
    if isinstance_if_imported(tensor, "torch.distributed.tensor", "DTensor"):
        local = getattr(tensor, "_local_tensor", None)
        if local is None:
            with torch.no_grad():  # with gradients to_local() would add a node to the graph
                local = tensor.to_local()
        shard = _placed(tensor, _ready(local))
    else:
        shard = LocalShard(_ready(tensor))
    return shard._replace(trouble=_NOT_FINISHED) if isinstance_if_imported(shard.tensor, *_ASYNC) else shard


def shard_box(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Any]
) -> tuple[tuple[int, ...], ShardPosition] | None:
    """Return shape and place of the shard at a coordinate of a mesh; None if it is not a box, or is unknown.

    FSDP2 splits last, although its mesh dimension is the first. Its strided placement contains the number of
    earlier splits by other mesh dimensions (split_factor).
    """
    sizes, offset = list(shape), [0] * len(shape)

    def cut(at: int, dim: int) -> None:
        piece = -(-sizes[dim] // mesh[at])  # as torch.chunk: the last pieces may be smaller, or empty
        start = min(piece * coordinate[at], sizes[dim])
        offset[dim] += start
        sizes[dim] = min(piece, sizes[dim] - start)

    waiting: list[tuple[int, int, int]] = []  # (mesh dimension, tensor dimension, earlier splits)
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
            return None  # the interleaved result of an operator
        cut(at, dim)
    if partial is not None and copy:
        partial = f"copy of {partial}"  # other ranks have the same summand
    return tuple(sizes), ShardPosition(tuple(shape), tuple(offset), partial)


def _placed(whole: Any, local: Any) -> LocalShard:
    placements = tuple(whole.placements)
    coordinate = whole.device_mesh.get_coordinate()
    if coordinate is None:
        return LocalShard(None)  # the mesh has other ranks only
    found = shard_box(tuple(whole.shape), tuple(whole.device_mesh.shape), tuple(coordinate), placements)
    if found is None or found[0] != tuple(local.shape):
        text = ", ".join(map(str, placements))
        return LocalShard(
            local, trouble=f"the position of the part cannot be computed: {tuple(local.shape)} by {text}"
        )
    return LocalShard(local, found[1])


def _reduction(placement: Any) -> str:
    """The operation of a Partial; "norm_<p>" for a norm; the class name of any other placement."""
    kind = type(placement).__name__
    power = getattr(placement, "norm_type", None)
    if kind == "_NormPartial" and isinstance(power, (int, float)):
        return f"{NORM_OF}{float(power):g}"
    return str(placement.reduce_op) if kind == "Partial" else kind.strip("_")


def _ready(tensor: Any) -> Any:
    """The tensor inside an AsyncCollectiveTensor that has finished; any other tensor unchanged."""
    if isinstance_if_imported(tensor, *_ASYNC):
        return tensor.elem if getattr(tensor, "completed", False) else tensor
    return tensor
