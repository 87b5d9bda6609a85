"""The differences of meaning in docs/moving.md: tdcore behaves as its column of the table describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
import tdcore.smd as smd
from tests.moving import SMALL_RING


class Twice(nn.Module):
    """Calls its layer and its ReLU twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.relu(self.fc(self.relu(self.fc(x))))
        return y


class Training:
    """One model with a hook that saves every step."""

    def __init__(self, place: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.place = place
        self.model = Twice()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hook = smd.Hook(
            place,
            save_config=smd.SaveConfig(save_interval=1),
            include_collections=["weights", "biases", "gradients", "outputs"],
            flusher="thread",
            ring=SMALL_RING,
            **options,
        )
        self.hook.register_module(self.model)

    def backward(self, scale: float = 1.0) -> None:
        self.model(torch.ones(4, 3) * scale).square().mean().backward()

    def read(self) -> smd.Trial:
        self.hook.close()
        return smd.create_trial(str(self.place))


def gradient(model: Twice) -> Any:
    assert model.fc.weight.grad is not None
    return model.fc.weight.grad.clone().numpy()


def test_gradients_are_those_after_clipping(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.backward()
    nn.utils.clip_grad_norm_(training.model.parameters(), 0.01)
    clipped = gradient(training.model)
    training.optimizer.step()
    assert np.array_equal(training.read().tensor("gradient/Twice_fc.weight").value(0), clipped)


def test_gradients_of_accumulated_micro_batches_are_one_sum_in_one_step(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.backward()
    training.backward(2.0)
    total = gradient(training.model)
    training.optimizer.step()
    trial = training.read()
    assert trial.steps() == [0]
    assert np.array_equal(trial.tensor("gradient/Twice_fc.weight").value(0), total)


def test_std_divides_by_the_number_of_elements(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    weight = training.model.fc.weight.detach().numpy().astype(np.float64)
    expected = weight.std(), weight.var()
    training.backward()
    tensor = training.read().tensor("Twice_fc.weight")
    found = tensor.reduction_value(0, "std"), tensor.reduction_value(0, "variance")
    assert found == pytest.approx(expected, rel=1e-12)
    assert {type(value) for value in found} == {float}


def test_the_second_call_of_a_module_is_call_1_of_the_same_name(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.backward()
    trial = training.read()
    assert trial.tensor_names(regex="^relu_output") == ["relu_output_0"]
    first, second = (trial.tensor("relu_output_0").value(0, call=call) for call in (0, 1))
    assert not np.array_equal(first, second)


def test_a_scalar_that_is_saved_twice_in_a_step_is_there_twice(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.backward()
    training.hook.save_scalar("accuracy", 3)
    training.hook.save_scalar("accuracy", 4)
    scalar = training.read().tensor("scalar/accuracy")
    assert (scalar.value(0)[0], scalar.value(0, call=1)[0]) == (3, 4)


def test_a_step_of_an_open_hook_can_be_read_once_it_was_written(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    for _ in range(2):
        training.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    trial = smd.create_trial(str(tmp_path / "run"))
    trial.wait_for_steps([0])
    assert trial.tensor("Twice_fc.weight").value(0).shape == (3, 3)
    training.hook.close()


def test_all_reductions_are_there_whichever_were_asked_for(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", reduction_config=smd.ReductionConfig(["mean"]))
    training.backward()
    found = training.read().tensor("Twice_fc.weight").reduction_values(0)
    assert {("std", False), ("l2", False), ("max", True)} <= set(found)


def test_a_frozen_parameter_is_listed_and_has_no_gradient(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.model.fc.bias.requires_grad_(False)
    training.backward()
    trial = training.read()
    assert trial.notes()["frozen"] == ["Twice_fc.bias"]
    assert not trial.has_tensor("gradient/Twice_fc.bias")


def test_settings_are_values_that_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        smd.SaveConfig().save_interval = 3  # type: ignore[misc]  # the mistake under test


def test_the_run_is_not_overwritten_by_a_hook_in_the_same_place(tmp_path: Path) -> None:
    for _ in range(2):
        training = Training(tmp_path / "run")
        training.backward()
        training.hook.close()
    assert td.create_trial(tmp_path / "run").attempts == [0, 1]
