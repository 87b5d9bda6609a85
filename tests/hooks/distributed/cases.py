"""The ways in which the model is trained on four ranks, one function for each. The ranks import this module.

Each function gets `watch`, which attaches a hook to a model (or does nothing, in the run without capture),
and returns the losses of its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tdcore.hooks.pytorch import Hook

from .models import STEPS, Net, batch, loss_of
from .series import SERIES, train_series

__all__ = ["CASES"]

Watch = Callable[[nn.Module], Hook | None]
Losses = list[torch.Tensor]


@cache  # every mesh creates process groups, which connect every rank with every other
def _mesh(*shape: int) -> Any:
    names = ("dp", "tp")[-len(shape) :]
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def _train(
    model: nn.Module, *, whole_batch: bool = False, after_step: Callable[[], object] = lambda: None
) -> Losses:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses = []
    for step in range(STEPS):
        x, y = batch(step, None if whole_batch else dist.get_rank())
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        after_step()
        losses.append(loss.detach())
    return losses


def ddp(watch: Watch) -> Losses:
    """DistributedDataParallel; the wrapper is registered."""
    model = DistributedDataParallel(Net())
    watch(model)
    return _train(model)


def ddp_inside(watch: Watch) -> Losses:
    """DistributedDataParallel; the model is registered, and wrapped later."""
    model = Net()
    watch(model)
    return _train(DistributedDataParallel(model))


def fsdp2(watch: Watch) -> Losses:
    """FSDP2 with uneven shards: of 10 rows the last rank has one, of 3 rows it has none."""
    model, mesh = Net(), _mesh(4)
    for module in (model.fc1, model.fc2, model):
        fully_shard(module, mesh=mesh)
    watch(model)
    return _train(model)


def fsdp2_registered_first(watch: Watch) -> Losses:
    """FSDP2; the hook is registered before fully_shard(); parameters are unsharded until backward ends."""
    model, mesh = Net(), _mesh(4)
    watch(model)
    managed: list[Any] = [model.fc1, model.fc2, model]
    for module in managed:
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
        module.set_reshard_after_backward(False)
    return _train(model, after_step=lambda: [module.reshard() for module in managed])


def fsdp1(watch: Watch) -> Losses:
    """FSDP1: flattened parameters, captured as views of them."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(Net(), use_orig_params=True, device_id=torch.device("cpu"))
    watch(model)
    return _train(model)


def fsdp2_outlier(watch: Watch) -> Losses:
    """FSDP2; the inputs of rank 2 are a hundred times as large."""
    model, mesh, rank = Net(), _mesh(4), dist.get_rank()
    for module in (model.fc1, model.fc2, model):
        fully_shard(module, mesh=mesh)
    watch(model)
    losses = []
    for step in range(STEPS):
        x, y = batch(step, rank)
        loss = loss_of(model(x * (100 if rank == 2 else 1)), y)
        loss.backward()
        losses.append(loss.detach())
    return losses


def fsdp2_series(watch: Watch) -> Losses:
    """FSDP2 with a gradient scaler, clipping, and the opt-in series."""
    model, mesh = Net(), _mesh(4)
    for module in (model.fc1, model.fc2, model):
        fully_shard(module, mesh=mesh)
    watch(model)
    return train_series(model, lambda step: batch(step, dist.get_rank()), fused=False)


def _spread(_: nn.Module, inputs: Any, mesh: Any) -> Any:
    return DTensor.from_local(inputs[0], mesh, [Replicate()])


def tensor_parallel_series(watch: Watch) -> Losses:
    """Tensor parallelism; the optimizer unscales inside its step, and every rank has one layer in full."""
    model, mesh = Net(8, 8), _mesh(4)
    _parallel(model, mesh)
    distribute_module(model.head, mesh, input_fn=_spread, output_fn=lambda _, output, mesh: output.to_local())
    watch(model)
    return train_series(model, batch, fused=True)


def hsdp(watch: Watch) -> Losses:
    """FSDP2 on a two-dimensional mesh: sharded over two ranks, replicated over two pairs."""
    model, mesh = Net(), _mesh(2, 2)
    for module in (model.fc1, model.fc2, model):
        fully_shard(module, mesh=mesh)
    watch(model)
    return _train(model)


def _parallel(model: Net, mesh: Any, **output: Any) -> None:
    parallelize_module(model, mesh, {"fc1": ColwiseParallel(), "fc2": RowwiseParallel(**output)})


def tensor_parallel(watch: Watch) -> Losses:
    """Tensor parallelism by columns of one layer and rows of the next; every rank gets the whole batch."""
    model = Net(8, 8)
    _parallel(model, _mesh(4))
    watch(model)
    return _train(model, whole_batch=True)


def fsdp2_over_tp(watch: Watch) -> Losses:
    """FSDP2 over tensor parallelism: FSDP2 shards the shards of tensor parallelism."""
    model, mesh = Net(8, 8), _mesh(2, 2)
    _parallel(model, mesh["tp"])
    for module in (model.fc1, model.fc2, model):
        fully_shard(module, mesh=mesh["dp"])
    watch(model)
    rank = mesh["dp"].get_local_rank()
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for step in range(STEPS):
        x, y = batch(step, rank, ranks=2)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def fsdp2_over_tp_series(watch: Watch) -> Losses:
    """FSDP2 over tensor parallelism; autograd computes gradients of DTensors that FSDP2 has created."""
    model, mesh = Net(8, 8), _mesh(2, 2)
    _parallel(model, mesh["tp"])
    parallelize_module(model, mesh["tp"], {"head": ColwiseParallel(output_layouts=Replicate())})
    for module in (model.fc1, model.fc2, model):
        fully_shard(module, mesh=mesh["dp"])
    watch(model)
    rank = mesh["dp"].get_local_rank()
    return train_series(model, lambda step: batch(step, rank, ranks=2), fused=True)


def dtensors(watch: Watch) -> Losses:
    """DTensors as outputs, as a loss and as tensors of the script; one of them is a partial sum."""
    model, mesh = Net(8, 8), _mesh(4)
    parallelize_module(
        model, mesh, {"fc1": ColwiseParallel(use_local_output=False, output_layouts=Shard(-1))}
    )
    hook = watch(model.fc1)
    summand = DTensor.from_local(torch.full((2, 3), float(dist.get_rank())), mesh, [Partial()])
    shifted = distribute_tensor(torch.arange(10.0), mesh, [Shard(0)])
    losses = []
    for step in range(STEPS):
        out = model.fc1(batch(step)[0])
        loss = out.redistribute(mesh, [Replicate()]).square().mean()
        if hook is not None:
            hook.save_tensor("summand", summand)
            hook.save_tensor("shifted", shifted)
            hook.record_tensor_value("whole_loss", loss)
            hook.save_scalar("scalar_loss", loss)
        loss.backward()
        losses.append(loss.to_local().detach())
    return losses


class Hasty(nn.Module):
    """Changes one output of a collective in place, and returns another one before any code waits for it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.changed = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layers one after the other; nothing reads the output of the second."""
        x = self.changed(x).relu_()
        last: torch.Tensor = self.last(x)
        return last


def unfinished(watch: Watch) -> Losses:
    """Outputs of collectives that cannot be read as the modules returned them."""
    model = Hasty()
    rows = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model, _mesh(4), {"changed": rows, "last": rows})
    watch(model)
    losses = []
    with torch.no_grad():  # with gradients, PyTorch forbids the change in place
        for step in range(STEPS):
            x, y = batch(step)
            losses.append(loss_of(model(x), y))
    return losses


def pipeline(watch: Watch) -> Losses:
    """Pipeline of four stages with one layer each; the schedule mixes forwards and backwards."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, model = dist.get_rank(), Net()
    for index, name in enumerate(("fc1", "act", "fc2", "head")):
        if index != rank:
            setattr(model, name, None)
    hook = watch(model)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False) if parameters else None
    stage = PipelineStage(model, rank, 4, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    losses = []
    for step in range(STEPS):
        if hook is not None:
            hook.step()
        x, y = batch(step)
        parts: list[torch.Tensor] = []
        schedule.step(*([x] if rank == 0 else []), target=y if rank == 3 else None, losses=parts)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(torch.stack(parts).detach().mean() if parts else torch.zeros(()))
    return losses


class Experts(nn.Module):
    """One expert on each rank. Rank r gets the rows whose index modulo 3 is r, so the last rank gets none."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        rank = dist.get_rank()
        each = [nn.Linear(6, 3) for _ in range(4)]
        self.spare = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))  # no forward uses it
        self.experts = nn.ModuleDict({str(rank): each[rank]})
        self.scale = nn.Parameter(distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run this rank's expert on its rows; without rows the expert does not run."""
        rank = dist.get_rank()
        mine = [row for row in range(len(x)) if row % 3 == rank]
        whole: Any = self.scale
        own: torch.Tensor = whole.to_local()
        if not mine:
            return own.sum() * 0.0
        rows: torch.Tensor = self.experts[str(rank)](x[mine])
        return (rows * own).sum()


def experts(watch: Watch) -> Losses:
    """Expert parallelism; the rank without rows takes part in the collectives of the others."""
    model = Experts(_mesh(4))
    watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    losses = []
    for step in range(STEPS):
        loss = model(batch(step)[0])
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@cache
def _pairs() -> list[Any]:
    return [dist.new_group([0, 1]), dist.new_group([2, 3])]


def groups(watch: Watch) -> Losses:
    """Two process groups of two ranks, each with its own model."""
    model = Net()
    with torch.no_grad():
        model.head.bias.add_(dist.get_rank() // 2)
    wrapper = DistributedDataParallel(model, process_group=_pairs()[dist.get_rank() // 2])
    watch(wrapper)
    return _train(wrapper)


# name -> (function, options of the hook)
CASES: dict[str, tuple[Callable[[Watch], Losses], dict[str, Any]]] = {
    "ddp": (ddp, {}),
    "ddp_inside": (ddp_inside, {}),
    "fsdp2": (fsdp2, {}),
    "fsdp2_registered_first": (fsdp2_registered_first, {}),
    "fsdp2_first_rank": (fsdp2, {"include_workers": "one"}),
    "fsdp2_outlier": (fsdp2_outlier, {}),
    "fsdp2_series": (fsdp2_series, {"include_collections": SERIES}),
    "fsdp2_over_tp_series": (fsdp2_over_tp_series, {"include_collections": SERIES}),
    "tensor_parallel_series": (tensor_parallel_series, {"include_collections": SERIES}),
    "fsdp2_some_ranks": (fsdp2, {"include_workers": [1, "worker_3"]}),
    "fsdp1": (fsdp1, {}),
    "hsdp": (hsdp, {}),
    "tensor_parallel": (tensor_parallel, {}),
    "fsdp2_over_tp": (fsdp2_over_tp, {}),
    "dtensors": (dtensors, {}),
    "unfinished": (unfinished, {}),
    "pipeline": (pipeline, {}),
    "experts": (experts, {}),
    "groups": (groups, {}),
}
