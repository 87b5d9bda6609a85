"""Pickles, copies and replicas of a model with a hook equal those of a model without a hook."""

from __future__ import annotations

import copy
import copyreg
import functools
import importlib
import io
import pickle
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td

from .conftest import MakeHook
from .models import Net
from .test_pytorch_lifetime import hooks_on, watched
from .test_survive import replicate


def saved(model: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


def pickled(value: object, protocol: int = pickle.DEFAULT_PROTOCOL) -> bytes:
    """Return the pickle, with the addresses of storages replaced by numbers in order of occurrence.

    Addresses have 14 or 15 digits, so lengths that include addresses are left out.
    """
    known: dict[bytes, bytes] = {}
    number = lambda found: known.setdefault(found[0], b"%015d" % len(known))  # noqa: E731
    text = re.sub(rb"X[\x0e\x0f]\0\0\0\d{14,15}", number, pickle.dumps(value, protocol))
    return re.sub(rb"\x95.{8}|B.{3}\0(?=\x80\x02\x8a)", b"", text, flags=re.DOTALL)


WAYS: dict[str, Callable[[nn.Module], object]] = {
    **{
        f"pickle, protocol {protocol}": functools.partial(pickled, protocol=protocol)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "torch.save": saved,
    "copy.deepcopy": lambda model: pickled(vars(copy.deepcopy(model))),
    "copy.copy": lambda model: pickled(vars(copy.copy(model))),
    "state_dict": lambda model: pickled(model.state_dict()),
}


def trained(model: nn.Module, hook: Any, steps: int, *, compiles: bool) -> nn.Module:
    """Train for `steps` steps, then run one step without optimizer.step(); every second step is saved."""
    if hook is not None:
        hook.register_module(model)
    forward: Any = torch.compile(model, backend="eager") if compiles else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps + 1):
        torch.manual_seed(step)
        loss = forward(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step < steps:
            optimizer.step()
    return model


def twins(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return copy.deepcopy(model), copy.deepcopy(model)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_model_is_pickled_to_the_bytes_of_one_without_a_hook(
    make_hook: MakeHook, steps: int, compiles: bool
) -> None:
    bare, model = twins(Net())
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=2))
    trained(bare, None, steps, compiles=compiles)
    trained(model, hook, steps, compiles=compiles)
    assert [way for way, of in WAYS.items() if of(bare) != of(model)] == []
    assert not hook._faults


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("library", ["joblib", "cloudpickle"])
def test_a_library_s_pickle_of_a_compiled_model_loads_in_a_process_without_tdcore(
    make_hook: MakeHook, tmp_path: Path, library: str
) -> None:
    pytest.importorskip(library)
    code = (
        f"import sys, torch, {library}; sys.modules['tdcore'] = None; "
        f"model = {library}.load(open({str(tmp_path / 'model')!r}, 'rb')); "
        "print('forward' in vars(model[0]), model(torch.ones(1, 4)).shape)"
    )
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    trained(model, make_hook(save_all=True), 1, compiles=True)
    with open(tmp_path / "model", "wb") as file:
        importlib.import_module(library).dump(model, file)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False torch.Size([1, 3])", done.stderr


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("steps", [0, 1])
def test_a_forward_that_a_script_has_replaced_is_pickled_as_without_a_hook(
    make_hook: MakeHook, steps: int
) -> None:
    model = Net()
    bare = copy.deepcopy(model)
    for one in (bare, model):
        vars(one.relu)["forward"] = torch.relu
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=2))
    expected = pickled(trained(bare, None, steps, compiles=True))
    assert pickled(trained(model, hook, steps, compiles=True)) == expected
    hook.close()
    assert model.relu.forward is torch.relu


class Slotted(nn.Module):
    """A class with its own pickle methods, whose state has two parts."""

    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 3), 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) * self.scale
        return result

    def __getstate__(self) -> Any:
        return dict(vars(self)), {"scale": self.scale}

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state[0])
        self.scale = state[1]["scale"]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_class_with_a_state_of_its_own_is_pickled_as_without_a_hook(make_hook: MakeHook) -> None:
    bare, model = twins(nn.Sequential(Slotted()))
    expected = pickled(trained(bare, None, 1, compiles=True))
    assert pickled(trained(model, make_hook(save_all=True), 1, compiles=True)) == expected
    assert pickle.loads(pickle.dumps(model))(torch.ones(1, 4)).shape == (1, 3)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("steps", [0, 1])
def test_a_replica_of_a_module_in_a_process_that_compiles_computes_with_its_own_parameters(
    make_hook: MakeHook, steps: int
) -> None:
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=2))
    model = trained(Net(), hook, steps, compiles=True)
    replica = replicate(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for one in replica.modules():
            for name in ("weight", "bias"):
                if isinstance(getattr(one, name, None), torch.Tensor):
                    setattr(one, name, torch.ones_like(getattr(one, name)))
    assert replica(torch.ones(2, 4)).count_nonzero() > 0
    assert not hook._faults


def test_a_pickled_model_loads_and_runs_unhooked(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=True)
    model = watched(hook)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    x, step = torch.randn(2, 4), hook.global_step
    for twin in (pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(twin(x), model.forward(x))
    assert hook.global_step == step


def test_a_saved_model_needs_no_tdcore_to_load(make_hook: MakeHook, tmp_path: Path) -> None:
    hook = make_hook(save_all=True)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    hook.register_module(model)
    model(torch.randn(2, 4))
    torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys, torch; sys.modules['tdcore'] = None; "
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False); "
        "print(model(torch.ones(1, 4)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch.Size([1, 3])", done.stderr


def test_a_saved_model_loads_with_weights_only_as_without_a_hook(make_hook: MakeHook) -> None:
    allowed: list[Any] = [Net, nn.Linear, nn.ReLU]
    bare, hook = Net(), make_hook(save_all=True)
    model = copy.deepcopy(bare)
    seen: list[int] = []
    hook.register_module(model)
    files = [io.BytesIO()]
    torch.save(model, files[0])  # before the first forward every module carries a hook
    model(torch.randn(2, 4)).sum().backward()
    files.append(io.BytesIO())
    torch.save(model, files[1])  # within a saved step
    with torch.serialization.safe_globals(allowed):
        for file in files:
            file.seek(0)
            twin = torch.load(file, weights_only=True)
            assert hooks_on(twin) == 0
            assert torch.equal(twin(torch.ones(2, 4)), bare(torch.ones(2, 4)))
    model.register_forward_hook(lambda *_: seen.append(1))
    model(torch.randn(2, 4))
    copy.deepcopy(model)(torch.randn(2, 4))
    assert len(seen) == 2  # hooks of the user are copied


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_other_dictionaries_are_pickled_to_the_same_bytes(make_hook: MakeHook, protocol: int) -> None:
    state = nn.BatchNorm1d(2).state_dict()
    others: list[Any] = [OrderedDict(), OrderedDict({1: "one"}), OrderedDict(a=OrderedDict({2: [3]}))]
    dispatch = copyreg.dispatch_table.pop(OrderedDict, None)
    expected = [pickle.dumps(one, protocol) for one in others]
    if dispatch is not None:
        copyreg.dispatch_table[OrderedDict] = dispatch
    watched(make_hook(save_all=True))
    assert [pickle.dumps(one, protocol) for one in others] == expected
    assert pickle.loads(pickle.dumps(state, protocol))._metadata == state._metadata  # type: ignore[attr-defined]
