"""Weight updates of an optimizer's step and their ratio to the weights, if requested.

    weight_update/<parameter>   weight after the step minus weight before it
    update_ratio/<parameter>    norm of the update / norm of the weight before it; L2 norms, summed in float64

In a saved step, the weights are copied before the optimizer steps, and the updates are computed in these
copies afterwards. During the step the copies need as much memory as the requested weights. The difference is
computed in the precision of the weights; for half precision in float32. On the CPU the native statistics
compute the norms; on a device the norms are computed there, without waiting for the device.

The ratio of a weight of zeros is infinite (NaN if the weight does not change). The ratio of a weight with NaN
or Inf is NaN. An optimizer with a closure may evaluate the model several times; the update is that of the
whole step.

The update of a DTensor is the update of this rank's shard. No rank has the norm of a tensor that is sharded
over several ranks, so such a parameter has no ratio, and a warning is logged once. Sparse and 8-bit
parameters have neither update nor ratio.

Threads: the thread that runs the optimizer. Keeps copies of weights until the step has ended, and no
parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from tdcore import _core
from tdcore.format.shard import ShardPosition
from tdcore.hooks.clock import StepId
from tdcore.hooks.faults import FaultHandler
from tdcore.hooks.plan import CaptureSpec, Plan, TensorSpec
from tdcore.hooks.pytorch.distributed.sharding import LocalShard, local_shard_of
from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.pytorch.model.opt_in_series import RATIO, UPDATE, requested
from tdcore.hooks.pytorch.parameters.optimizers import owned_by
from tdcore.hooks.recorder import Recorder
from tdcore.stats import STATS_DTYPE

__all__ = ["Updates"]

_HALF = (torch.float16, torch.bfloat16)
_TYPES = frozenset({*_HALF, torch.float32, torch.float64, torch.complex64, torch.complex128})
_REFUSED = "weight_update and update_ratio are not captured for sparse parameters, nor for {}"
_SPREAD = (
    "update_ratio is not captured for parameters that are sharded over ranks, because no rank has the whole "
    "norm: divide the merged l2 of weight_update by the merged l2 of the weight"
)
_REPLACED = (
    "weight_update and update_ratio are missing at steps of {}, and perhaps of other parameters, because no "
    "optimizer has the parameter: the script has replaced it, or has passed it to no optimizer"
)


class Watched(NamedTuple):
    """One weight while its optimizer steps.

    before: copy of this rank's shard. shard: place of the shard in the whole weight.
    """

    parameter: weakref.ref[nn.Parameter]
    before: torch.Tensor
    shard: ShardPosition | None
    update: TensorSpec | None
    ratio: TensorSpec | None


class PendingUpdate(NamedTuple):
    """Parameters that an optimizer is about to change."""

    step_id: StepId
    weights: list[Watched]


class Updates:
    """Weight updates of one model. fault: BaseHook._fault. warn: logs a message once."""

    def __init__(self, recorder: Recorder, fault: FaultHandler, warn: Callable[[str], None]) -> None:
        self.pending: dict[
            int, PendingUpdate
        ] = {}  # by id of the optimizer; an entry exists only during the optimizer's step
        self._recorder = recorder
        self._fault = fault
        self._warn = warn
        self._off = False
        self._step: StepId | None = None  # the last step in which an optimizer changed a weight
        self._done: set[int] = set()  # positions of the changed parameters
        self._gone = False  # a parameter was replaced within its optimizer's step
        self._replaced: str | None = None  # the first parameter that was replaced

    def prepare(
        self,
        step_id: StepId,
        plan: Plan,
        view: ModelView,
        optimizer: Optimizer,
        parameters: list[nn.Parameter],
    ) -> None:
        """Copy the weights before an optimizer changes them, or calls its closure, in a saved step."""
        self._guarded(self._copy, step_id, plan, view, optimizer, parameters)

    def after(self, optimizer: Optimizer) -> None:
        """Capture the updates after the optimizer's step."""
        pending = self.pending.pop(id(optimizer), None)
        if pending is not None:
            self._guarded(self._compare, pending)

    def end_step(
        self, plan: Plan, view: ModelView, optimizers: Sequence[Optimizer], parameters: list[nn.Parameter]
    ) -> None:
        """Log once that a parameter has no update, after a step in which an optimizer has stepped.

        A parameter that the script replaces before its optimizer steps is in no optimizer's groups.
        """
        self._guarded(self._note_replaced, plan, view, optimizers, parameters)

    def switch_off(self) -> None:
        """Stop the capture."""
        self._off = True
        self.pending.clear()

    def _copy(
        self,
        step_id: StepId,
        plan: Plan,
        view: ModelView,
        optimizer: Optimizer,
        parameters: list[nn.Parameter],
    ) -> None:
        updates, ratios = requested(plan, view, UPDATE), requested(plan, view, RATIO)
        if not (updates or ratios):
            return
        if step_id is not self._step:
            self._step, self._done = step_id, set()
        owned = set(map(id, owned_by(optimizer)))
        weights = []
        for position in sorted(updates.keys() | ratios.keys()):
            parameter = parameters[position]
            if id(parameter) not in owned or not parameter.requires_grad:
                continue
            part, ratio = local_shard_of(parameter), ratios.get(position)
            if not _is_plain(part.tensor):
                self._warn(_REFUSED.format(parameter.dtype))
                continue
            if ratio is not None and not _is_whole(part, parameter):
                self._warn(_SPREAD)
                ratio = None
            before = _values(part.tensor, copy=True)
            whole = ratio.whole if ratio is not None else None
            watched = Watched(weakref.ref(parameter), before, part.shard, updates.get(position), whole)
            weights.append(watched)
            self._done.add(position)
        if weights:
            self.pending[id(optimizer)] = PendingUpdate(step_id, weights)

    def _compare(self, pending: PendingUpdate) -> None:
        held = [(one, one.parameter()) for one in pending.weights]
        there = [(one, parameter) for one, parameter in held if parameter is not None]
        self._gone = self._gone or len(there) < len(held)
        before = _norms([one.before for one, _ in there])
        with torch.no_grad():
            changes = [one.before.neg_().add_(_values(local_shard_of(held).tensor)) for one, held in there]
        tensors: list[Any] = []
        specs: list[TensorSpec] = []
        for (one, _), change, norm, size in zip(there, changes, _norms(changes), before, strict=True):
            if one.update is not None:
                tensors.append(change if one.shard is None else LocalShard(change, one.shard))
                specs.append(one.update)
            if one.ratio is not None:
                with np.errstate(divide="ignore", invalid="ignore"):
                    tensors.append(norm / size)
                specs.append(one.ratio)
        self._recorder.capture(tensors, CaptureSpec(specs), pending.step_id)

    def _note_replaced(
        self,
        plan: Plan,
        view: ModelView,
        optimizers: Sequence[Optimizer],
        parameters: list[nn.Parameter],
    ) -> None:
        asked = requested(plan, view, UPDATE).keys() | requested(plan, view, RATIO).keys()
        owned = {id(one) for optimizer in optimizers for one in owned_by(optimizer)}
        lacking = [
            position
            for position in sorted(asked - self._done)
            if parameters[position].requires_grad and id(parameters[position]) not in owned
        ]
        if self._replaced is None and (lacking or self._gone):
            self._replaced = view.parameters[lacking[0]].name if lacking else "one"
            self._warn(_REPLACED.format(self._replaced))

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._off:
            return
        try:
            call(*arguments)
        except Exception as error:
            self.switch_off()
            fault = self._fault()
            if fault is not None:
                fault("weight updates", error)


def _is_plain(part: torch.Tensor | None) -> bool:
    """Whether a tensor is dense in memory, with numbers that can be subtracted."""
    if part is None or part.layout is not torch.strided or hasattr(part, "to_local"):
        return False
    return part.dtype in _TYPES


def _is_whole(part: LocalShard, parameter: nn.Parameter) -> bool:
    """Whether this rank holds the full parameter, and neither a shard nor a summand of it."""
    plain = part.tensor is parameter
    return plain or (
        part.shard == ShardPosition.whole(tuple(parameter.shape)) and part.tensor.shape == parameter.shape
    )


def _values(parameter: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
    """The values of a parameter as a real tensor; complex numbers as pairs."""
    values = parameter.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    wide = torch.float32 if copy and values.dtype in _HALF else values.dtype
    return values.to(wide, copy=True) if copy else values


def _norms(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """L2 norms: float64 numbers for tensors in host memory; float64 tensors on the device for others."""
    norms: list[Any] = [None] * len(tensors)
    host = [position for position, tensor in enumerate(tensors) if tensor.device.type == "cpu"]
    if host:
        packed = _core.stats([tensors[position] for position in host])
        rows = np.frombuffer(packed, STATS_DTYPE)
        bad = rows["nan_count"] + rows["pos_inf_count"] + rows["neg_inf_count"]
        for position, norm in zip(host, np.where(bad == 0, np.sqrt(rows["square_sum"]), np.nan), strict=True):
            norms[position] = norm
    for position, tensor in enumerate(tensors):
        if norms[position] is None:
            norms[position] = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norms
