"""Nested outputs: which tensors are taken out of them, and the names of these tensors."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from .conftest import Captured, MakeHook, ReadRun


@dataclass
class Result:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, torch.Tensor]
    note: str = "x"


Pair = namedtuple("Pair", ["one", "two"])


def tensor(value: float) -> torch.Tensor:
    return torch.full((1,), value)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (lambda: tensor(1), {"0": 1}),
        (lambda: (tensor(1),), {"0": 1}),
        (lambda: (tensor(1), None, 3, tensor(2)), {"0": 1, "3": 2}),
        (lambda: [tensor(1), (tensor(2), [tensor(3)])], {"0": 1, "1": 2, "2": 3}),
        (
            lambda: {"logits": tensor(1), "hidden": (tensor(2), tensor(3))},
            {"logits": 1, "hidden.0": 2, "hidden.1": 3},
        ),
        (lambda: Result(tensor(1), (tensor(2), tensor(3))), {"logits": 1, "hidden.0": 2, "hidden.1": 3}),
        (lambda: Pair(tensor(1), tensor(2)), {"0": 1, "1": 2}),
        (lambda: (tensor(1), {"cache": tensor(2)}), {"0": 1, "cache": 2}),
        (lambda: None, {}),
        (lambda: "text", {}),
    ],
)
def test_nested_outputs_are_captured_element_by_element(
    make_hook: MakeHook, read_run: ReadRun, output: Any, expected: dict[str, float]
) -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return output()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            return x

    hook, model = make_hook(include_collections=["outputs"]), Outer()
    hook.register_module(model)
    for _ in range(2):
        hook.step()
        model(torch.zeros(1))
    run = read_run(hook)
    found = {
        name.removeprefix("inner_output_"): run.value(name, 1)[0] for name in run.names(1) if "inner" in name
    }
    assert found == expected


def test_a_container_that_holds_itself_does_not_hang(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Endless(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            held: list[Any] = [x]
            held.append(held)
            return held

    hook, model = make_hook(include_collections=["outputs"]), Endless()
    hook.register_module(model)
    model(torch.zeros(1))
    assert "Endless_output_0" in read_run(hook).names()


def outputs_of(make_hook: MakeHook, read_run: ReadRun, output: Callable[[torch.Tensor], Any]) -> Captured:
    class Gives(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return output(x)

    hook, model = make_hook(include_collections=["outputs"]), Gives()
    hook.register_module(model)
    model(torch.ones(1))
    return read_run(hook)


def test_a_tensor_behind_a_million_numbers_is_captured(make_hook: MakeHook, read_run: ReadRun) -> None:
    run = outputs_of(make_hook, read_run, lambda x: (list(range(1_000_000)), {"ids": ["a"] * 100_000}, x))
    assert run.names() == ["Gives_output_1000000"]


def test_what_is_beyond_the_most_parts_is_told_by_a_skipped_row(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.hooks.pytorch.model.flatten._MAX_PARTS", 3)
    run = outputs_of(make_hook, read_run, lambda x: [x] * 5)
    ends = {row["name"].removeprefix("Gives_output_"): row["status"] for row in run.rows}
    assert ends == {"0": "ok", "1": "ok", "2": "ok", "more": "skipped"}


def test_a_nested_tensor_after_a_plain_one_is_told_apart(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Gives(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1

    hook, model = make_hook(include_collections=["outputs"]), Gives()
    hook.register_module(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for x in (torch.ones(2), torch.ones(2), nested, torch.ones(2)):
        hook.step()
        model(x)
    run = read_run(hook)
    assert run.steps("Gives_output_0") == [0, 1, 3]
    assert run.steps("Gives_output_0.values") == [2]
