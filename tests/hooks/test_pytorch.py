"""The public interface of the hook: which tensors are saved, under which name, step and mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tdcore import modes
from tdcore.config.collection import Collection
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError

from .conftest import MakeHook, ReadRun
from .models import Net, train


def test_tensors_carry_the_older_librarys_names(make_hook: MakeHook, read_run: ReadRun) -> None:
    model, criterion = Net(), nn.CrossEntropyLoss()
    hook = make_hook(include_collections=["weights", "biases", "gradients", "inputs", "outputs"])
    hook.register_module(model)
    hook.register_loss(criterion)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion=criterion)
    assert set(read_run(hook).names()) == {
        *("Net_input_0", "Net_output_0", "fc1_input_0", "fc1_output_0", "relu_input_0", "relu_output_0"),
        *("fc2_input_0", "fc2_output_0"),
        *("Net_fc1.weight", "Net_fc1.bias", "Net_fc2.weight", "Net_fc2.bias"),
        *(
            "gradient/Net_fc1.weight",
            "gradient/Net_fc1.bias",
            "gradient/Net_fc2.weight",
            "gradient/Net_fc2.bias",
        ),
        *("CrossEntropyLoss_input_0", "CrossEntropyLoss_input_1", "CrossEntropyLoss_output_0"),
    }


def test_rows_say_kind_and_class_of_the_module(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(save_all=True)
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    found = {name: (run.of(name)[0]["kind"], run.of(name)[0]["origin"]) for name in run.names()}
    assert found["relu_output_0"] == ("output", "ReLU")
    assert found["fc1_input_0"] == ("input", "Linear")
    assert found["Net_fc1.weight"] == ("weight", "Linear")
    assert found["Net_fc1.bias"] == ("bias", "Linear")
    assert found["gradient/Net_fc1.bias"] == ("gradient", "Linear")


def test_values_are_those_of_the_moment(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(include_collections=["weights", "gradients"])
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.randn(5, 4)
    before = model.fc2.weight.detach().clone()
    model(x).square().sum().backward()
    assert model.fc2.weight.grad is not None
    gradient = model.fc2.weight.grad.clone()
    optimizer.step()
    run = read_run(hook)
    assert np.array_equal(run.value("Net_fc2.weight", 0), before.numpy())
    assert np.array_equal(run.value("gradient/Net_fc2.weight", 0), gradient.numpy())


def test_only_losses_are_saved_by_default(make_hook: MakeHook, read_run: ReadRun) -> None:
    model, criterion = Net(), nn.CrossEntropyLoss()
    hook = make_hook()
    hook.register_module(model)
    hook.register_loss(criterion)
    losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3, criterion=criterion)
    run = read_run(hook)
    assert set(run.names()) == {"CrossEntropyLoss_output_0"}
    assert [run.value("CrossEntropyLoss_output_0", step) for step in range(3)] == [float(x) for x in losses]


def test_steps_are_saved_as_the_save_config_says(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(
        include_collections=["gradients"],
        save_config=SaveConfig(save_interval=4, start_step=1, save_steps=[3]),
    )
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=10)
    assert read_run(hook).steps("gradient/Net_fc1.weight") == [3, 4, 8]


def test_a_collection_has_its_own_interval(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(include_collections=["weights"], save_config=SaveConfig(save_interval=3))
    hook.add_collection(CollectionConfig(name="gradients", save_config=SaveConfig(save_interval=2)))
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=7)
    run = read_run(hook)
    assert run.steps("Net_fc1.weight") == [0, 3, 6]
    assert run.steps("gradient/Net_fc1.weight") == [0, 2, 4, 6]


def test_modes_count_their_own_steps_and_share_the_global_ones(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = Net()
    hook = make_hook(
        include_collections=["outputs"],
        save_config={
            modes.TRAIN: SaveConfigMode(save_interval=2),
            modes.EVAL: SaveConfigMode(save_interval=1),
        },
    )
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, steps=2)  # global 0 and 1, TRAIN 0 and 1
    model.eval()
    model(torch.randn(2, 4))  # global 2, EVAL 0
    model.train()
    train(model, optimizer)  # global 3, TRAIN 2
    found = [(row["step"], row["mode"], row["mode_step"]) for row in read_run(hook).of("Net_output_0")]
    assert found == [(0, "TRAIN", 0), (2, "EVAL", 0), (3, "TRAIN", 2)]


def test_set_mode_wins_over_the_models_own_from_then_on(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(include_collections=["outputs"])
    hook.register_module(model)
    x = torch.randn(2, 4)
    model(x)
    hook.set_mode(modes.PREDICT)
    model(x)
    model.eval()
    model(x)
    assert [row["mode"] for row in read_run(hook).of("Net_output_0")] == ["TRAIN", "PREDICT", "PREDICT"]
    with pytest.raises(ConfigError, match="mode must be one of"):
        hook.set_mode("train")  # type: ignore[arg-type]


def test_step_by_hand_takes_over_from_the_forward(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(include_collections=["outputs"])
    hook.register_module(model)
    x = torch.randn(2, 4)
    for _ in range(2):
        hook.step()
        model(x)
        model(x)
    assert hook.global_step == 1
    found = [(row["step"], row["call"]) for row in read_run(hook).of("Net_output_0")]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_step_by_hand_after_the_first_forward_ends_step_0(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(include_collections=["outputs"])
    hook.register_module(model)
    for _ in range(3):
        model(torch.randn(2, 4))
        hook.step()
    assert read_run(hook).steps("Net_output_0") == [0, 1, 2]


def test_include_regex_fills_the_default_collection(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(include_regex=["relu_output", "fc2.bias$"])
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    assert set(run.names()) == {"relu_output_0", "Net_fc2.bias", "gradient/Net_fc2.bias"}
    assert set(run.trial.tensor_names(collection="default")) == set(run.names())


def test_a_custom_collection_is_filled_before_or_while_training(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = Net()
    hook = make_hook(include_collections=["mine"])
    hook.get_collection("mine").include("fc1_output")
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    hook.get_collection("mine").include("fc2_output")
    train(model, optimizer)
    run = read_run(hook)
    assert run.steps("fc1_output_0") == [0, 1]
    assert run.steps("fc2_output_0") == [1]


def test_a_module_of_a_collection_is_captured_whatever_its_name(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = Net()
    hook = make_hook()
    hook.register_module(model)
    mine = hook.add_collection(Collection("mine"))
    mine.add_module_tensors(model.relu, inputs=True)
    model(torch.randn(2, 4))
    assert set(read_run(hook).names()) == {"relu_input_0", "relu_output_0"}


def test_statistics_without_payload_when_only_reductions_are_asked(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = Net()
    hook = make_hook(include_collections=["weights"], reduction_config=ReductionConfig(norms=["l2"]))
    hook.register_module(model)
    weight = model.fc1.weight.detach().clone().double()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    (row,) = run.of("Net_fc1.weight")
    assert row["segment"] is None
    assert row["mean"] == pytest.approx(float(weight.mean()), rel=1e-12)
    assert run.trial.tensor("Net_fc1.weight").reduction_value(0, "l2") == pytest.approx(
        float(weight.norm()), rel=1e-12
    )


def test_the_payload_is_kept_when_one_of_the_collections_wants_it(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = Net()
    hook = make_hook(include_collections=["weights"], reduction_config=ReductionConfig())
    hook.add_collection(
        Collection("whole", "fc2.weight$", reduction_config=ReductionConfig(save_raw_tensor=True))
    )
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    assert run.of("Net_fc1.weight")[0]["segment"] is None
    assert run.value("Net_fc2.weight", 0).shape == (3, 8)


def test_a_product_without_payload_is_a_row_of_its_own(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(
        include_collections=["biases"],
        reduction_config=ReductionConfig(reductions=["prod"], abs_reductions=["prod"]),
    )
    hook.register_module(model)
    bias = model.fc2.bias.detach().clone().double()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    assert run.value("Net_fc2.bias/prod", 0) == pytest.approx(float(bias.prod()))
    assert run.value("Net_fc2.bias/abs_prod", 0) == pytest.approx(float(bias.abs().prod()))
    assert run.of("Net_fc2.bias/prod")[0]["kind"] == "reduction"
    assert run.of("Net_fc2.bias/prod")[0]["origin"] == "Net_fc2.bias"


def test_a_loss_of_one_element_keeps_its_value_when_only_statistics_are_asked(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model, criterion = Net(), nn.CrossEntropyLoss()
    hook = make_hook(reduction_config=ReductionConfig())
    hook.register_module(model)
    hook.register_loss(criterion)
    (loss,) = train(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion=criterion)
    assert read_run(hook).value("CrossEntropyLoss_output_0", 0) == float(loss)


def test_scalars_are_recorded_at_every_call(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook(save_config=SaveConfig(save_interval=100))
    hook.register_module(model)
    hook.save_scalar("before", 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        train(model, optimizer)
        hook.save_scalar("accuracy", torch.tensor(0.5))
        hook.save_scalar("accuracy", np.float32(0.75))
    run = read_run(hook)
    assert run.value("scalar/before", 0) == 1.0
    assert [(row["step"], row["call"]) for row in run.of("scalar/accuracy")] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert run.value("scalar/accuracy", 1, call=1) == 0.75
    assert run.trial.tensor_names(collection="scalars") == ["scalar/accuracy", "scalar/before"]


def test_scalars_with_a_save_config_follow_it(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = Net()
    hook = make_hook()
    hook.add_collection(CollectionConfig(name="scalars", save_config=SaveConfig(save_interval=2)))
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        train(model, optimizer)
        hook.save_scalar("x", 1.0)
    assert read_run(hook).steps("scalar/x") == [0, 2]


def test_a_tensor_of_the_script_goes_to_the_collections_it_names(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = Net()
    hook = make_hook(save_config=SaveConfig(save_interval=2))
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        train(model, optimizer)
        hook.save_tensor("attention", torch.full((2, 2), float(step)))
        hook.save_tensor("mask", np.array([True, False]), collections_to_write=["mine", "other"])
    run = read_run(hook)
    assert run.steps("attention") == [0, 2]
    assert np.array_equal(run.value("attention", 2), np.full((2, 2), 2.0, dtype=np.float32))
    assert run.of("attention")[0]["kind"] == "custom"
    assert run.trial.tensor_names(collection="other") == ["mask"]


def test_a_functional_loss_is_recorded_by_hand(
    make_hook: MakeHook, read_run: ReadRun, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    hook = make_hook(save_config=SaveConfig(save_interval=2))
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(2, 4)).square().mean()
        hook.record_tensor_value("mse_loss", loss)
        hook.record_tensor_value("accuracy", torch.tensor(1.0))
        loss.backward()
        optimizer.step()
    run = read_run(hook)
    assert run.steps("mse_loss_output_0") == [0, 2]
    assert run.of("mse_loss_output_0")[0]["kind"] == "loss"
    assert "accuracy_output_0" not in run.names()
    assert sum("accuracy_output_0" in message for message in caplog.messages) == 1
