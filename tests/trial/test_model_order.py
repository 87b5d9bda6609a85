"""Names of tensors in the order of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.text.natural_order import natural_key
from tdcore.trial import create_trial
from tdcore.trial.model_order import FirstRow, in_model_order
from tests.trial.writer import RunWriter

KINDS = ("weight", "bias", "gradient", "output", "loss", "optimizer_state", "custom", "unknown")


class Net(nn.Module):
    """Twelve blocks, and modules whose alphabetical order differs from their order in the model."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(12))
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        out: torch.Tensor = self.head(x)
        return out


LAYERS = ["stem", *(f"blocks.{number}" for number in range(12)), "head"]


def record(path: Path, *collections: str) -> None:
    torch.manual_seed(0)
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    with Hook(
        path,
        save_config=td.SaveConfig(save_interval=1),
        include_collections=list(collections),
        flusher="thread",
    ) as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        for _ in range(2):
            optimizer.zero_grad()
            criterion(model(torch.randn(4, 3)), torch.tensor([0, 1, 1, 0])).backward()
            optimizer.step()


def test_tensors_of_a_training_are_in_the_order_of_its_modules(tmp_path: Path) -> None:
    record(tmp_path, "losses", "weights", "biases", "gradients", "optimizer_variables")
    names = create_trial(str(tmp_path)).in_model_order()
    parameters = [f"Net_{layer}.{which}" for layer in LAYERS for which in ("weight", "bias")]
    assert names == [
        "CrossEntropyLoss_output_0",
        *parameters,
        *(f"gradient/{name}" for name in parameters),
        *(f"optimizer/{slot}/{name}" for slot in ("exp_avg", "exp_avg_sq", "step") for name in parameters),
    ]


def test_gradients_without_weights_are_in_the_reverse_order_of_the_backward_pass(
    tmp_path: Path,
) -> None:
    record(tmp_path, "gradients")
    trial = create_trial(str(tmp_path))
    names = trial.tensor_names(regex="^gradient/")
    layers = [name.removeprefix("gradient/Net_").rpartition(".")[0] for name in trial.in_model_order(names)]
    assert list(dict.fromkeys(layers)) == LAYERS


def test_a_tensor_that_first_appears_later_is_next_to_its_module(run: RunWriter) -> None:
    for name in ("b.weight", "a.2.weight", "a.10.weight"):
        run.add(name, np.ones(2), step=0, kind="weight")
    run.add("b.bias", np.ones(2), step=1, kind="bias")
    run.add("a.9.weight", np.ones(2), step=1, kind="weight")
    run.flush()
    run.end()
    names = create_trial(str(run.root)).in_model_order()
    assert names == ["b.weight", "b.bias", "a.2.weight", "a.9.weight", "a.10.weight"]


def test_names_without_rows_are_sorted_to_the_end(run: RunWriter) -> None:
    run.add("z", np.ones(2), step=0, kind="weight")
    run.flush()
    assert create_trial(str(run.root)).in_model_order(["x10", "x9", "z"]) == ["z", "x9", "x10"]


@example({"9/": ("gradient", 0, 0), "9/_": ("gradient", 0, 0)})
@given(
    st.dictionaries(
        st.text("ab./019_"), st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 50))
    )
)
def test_the_order_is_a_permutation_that_does_not_depend_on_the_order_of_its_input(
    rows: dict[str, tuple[str, int, int]],
) -> None:
    first_rows = {name: FirstRow(*row) for name, row in rows.items()}
    found = in_model_order(first_rows, first_rows)
    assert sorted(found) == sorted(first_rows)
    assert in_model_order(reversed(found), first_rows) == found


@given(st.text("ab09"), st.integers(0, 10**30), st.integers(0, 10**30))
def test_natural_order_compares_numbers_by_their_value(head: str, one: int, other: int) -> None:
    head += "x"
    limit = 10**18
    if one < limit and other < limit:
        assert (natural_key(f"{head}{one}") < natural_key(f"{head}{other}")) == (one < other)
    assert (natural_key(f"{head}{one}") == natural_key(f"{head}{other}")) == (one == other)


@given(st.text(), st.text())
def test_natural_order_distinguishes_all_texts(one: str, other: str) -> None:
    assert (natural_key(one) == natural_key(other)) == (one == other)
