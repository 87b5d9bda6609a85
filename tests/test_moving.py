"""Scripts in the style of smdebug: names, configuration and the hook (docs/moving.md)."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
import tdcore.smd as smd
from tdcore.config.built_in_collections import CollectionKeys
from tdcore.errors import ConfigError
from tests.moving import Net, fit


def test_every_older_name_is_in_one_module() -> None:
    assert list(smd.__all__) == sorted(smd.__all__)
    assert all(getattr(smd, name) is not None for name in smd.__all__)


def test_the_module_loads_no_framework_before_a_hook_is_asked_for() -> None:
    code = "import sys, tdcore.smd as smd; smd.modes, smd.SaveConfig; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out == "False\n"


def test_a_name_that_the_module_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"tdcore\.smd.*'KerasHook'"):
        smd.KerasHook  # noqa: B018


def test_the_keys_of_collections_are_there() -> None:
    assert smd.CollectionKeys is CollectionKeys
    assert smd.CollectionKeys.LOSSES == "losses"


def test_save_config_takes_its_arguments_by_position() -> None:
    config = smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode(2, 4, 9, [1])}, 10, 20, 30, [5])
    assert config.get_save_config(smd.modes.TRAIN) == smd.SaveConfigMode(
        save_interval=2, start_step=4, end_step=9, save_steps=[1]
    )
    assert config.get_save_config(smd.modes.EVAL) == smd.SaveConfigMode(10, 20, 30, [5])


def test_numbers_of_a_save_config_may_be_text() -> None:
    assert smd.SaveConfig(save_interval="10") == smd.SaveConfig(save_interval=10)  # type: ignore[arg-type]  # as smdebug allows
    with pytest.raises(ConfigError, match="save_interval must be a whole number, got 'often'"):
        smd.SaveConfig(save_interval="often")  # type: ignore[arg-type]  # the mistake under test


def test_modes_that_a_collection_does_not_name_follow_the_hook(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True, save_config=smd.SaveConfig(save_interval=7))
    when = smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode(3)})
    hook.add_collection(smd.Collection("mine", save_config=when))
    found = when.completed(hook.save_config)
    assert found.get_save_config(smd.modes.EVAL) == smd.SaveConfigMode(7)
    assert found.get_save_config(smd.modes.TRAIN) == smd.SaveConfigMode(3)


def test_reduction_config_takes_its_arguments_by_position() -> None:
    assert smd.ReductionConfig(["mean"], ["max"], ["l1"], ["l2"], True) == smd.ReductionConfig(
        reductions=["mean"], abs_reductions=["max"], norms=["l1"], abs_norms=["l2"], save_raw_tensor=True
    )


@pytest.mark.parametrize(
    "config",
    [
        smd.SaveConfig(),
        smd.SaveConfig(save_interval=11, start_step=10, save_steps=[50]),
        smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode(3)}),
        smd.SaveConfig({smd.modes.EVAL: smd.SaveConfigMode(3)}, save_interval=5),
        smd.ReductionConfig(),
        smd.ReductionConfig(["min"], norms=["l2"], save_raw_tensor=True),
    ],
)
def test_configurations_come_back_from_json(config: Any) -> None:
    assert type(config).from_json(config.to_json()) == config


def test_a_collection_comes_back_from_json() -> None:
    collection = smd.Collection(
        "mine",
        include_regex=["relu"],
        tensor_names=["a"],
        reduction_config=smd.ReductionConfig(["mean"]),
        save_config=smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode(10)}),
        save_histogram=False,
    )
    assert smd.Collection.from_json(collection.to_json()) == collection
    assert smd.Collection("mine", "relu") != smd.Collection("mine", "tanh")


def test_the_json_of_the_older_library_is_read() -> None:
    reductions = '{"save_raw_tensor": false, "reductions": "mean,abs_max,l2_norm"}'
    assert smd.ReductionConfig.from_json(reductions) == smd.ReductionConfig(["mean"], ["max"], ["l2"])
    when = (
        '{"TRAIN": {"save_interval": 3, "save_steps": [], "start_step": 0, "end_step": null}, "EVAL": null}'
    )
    assert smd.SaveConfig.from_json(when) == smd.SaveConfig({smd.modes.TRAIN: smd.SaveConfigMode(3)})
    collection = (
        '{"name": "x", "include_regex": ["a"], "tensor_names": [], "reduction_config": null, '
        '"save_config": null, "save_histogram": true}'
    )
    assert smd.Collection.from_json(collection).include_regex == ["a"]


@pytest.mark.parametrize("kind", [smd.SaveConfig, smd.ReductionConfig, smd.Collection])
@pytest.mark.parametrize("text", ["{", "[]", '{"intervall": 3}'])
def test_json_that_does_not_fit_is_a_configuration_error(kind: Any, text: str) -> None:
    with pytest.raises(ConfigError):
        kind.from_json(text)


def test_hook_step_is_a_number(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    model = Net()
    hook.register_module(model)
    assert hook.step == -1
    fit(hook, model, nn.CrossEntropyLoss(), steps=4)
    assert (hook.step, hook.step % 3, f"{hook.step:03d}", [0] * hook.step) == (4, 1, "004", [0, 0, 0, 0])


def test_hook_step_called_starts_a_step(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    hook.register_module(Net())
    hook.step()
    hook.step()
    assert hook.step == 1


def test_a_copy_of_the_step_is_a_plain_number_and_holds_no_hook(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    for copied in (copy.deepcopy(hook.step), pickle.loads(pickle.dumps(hook.step))):
        assert type(copied) is int
    assert json.dumps({"step": hook.step}) == '{"step": -1}'


def test_the_hook_answers_what_it_was_told(tmp_path: Path) -> None:
    hook = smd.Hook(
        tmp_path / "run",
        dry_run=True,
        save_config=smd.SaveConfig(save_interval=3),
        reduction_config=smd.ReductionConfig(["mean"]),
        include_collections=["weights"],
    )
    hook.add_collection(smd.Collection("mine", "relu"))
    assert hook.save_config == smd.SaveConfig(save_interval=3)
    assert hook.reduction_config == smd.ReductionConfig(["mean"])
    assert sorted(hook.include_collections) == ["losses", "mine", "weights"]
    assert hook.collection_manager.get("mine").include_regex == ["relu"]


def test_mode_steps_count_each_mode(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    model = Net()
    hook.register_module(model)
    fit(hook, model, nn.CrossEntropyLoss(), steps=3)
    assert hook.mode_steps == {
        smd.modes.TRAIN: 2,
        smd.modes.EVAL: 0,
        smd.modes.PREDICT: -1,
        smd.modes.GLOBAL: -1,
    }


def test_save_scalar_takes_the_arguments_of_the_service_and_says_once_that_it_sends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hook = smd.Hook(tmp_path / "run", flusher="thread")
    hook.save_scalar("accuracy", 0.5, sm_metric=True, timestamp=1700000000.0)
    hook.save_scalar("accuracy", 0.6, True)
    hook.close()
    assert td.create_trial(tmp_path / "run").tensor("scalar/accuracy").value(0, call=1) == 0.6
    assert caplog.text.count("tdcore sends no metrics") == 1


def test_the_gradient_of_any_tensor_is_recorded_by_a_hook_on_it(tmp_path: Path) -> None:
    hook = smd.Hook(
        tmp_path / "run",
        save_config=smd.SaveConfig(save_interval=1),
        include_collections=["gradients"],
        flusher="thread",
    )
    model = Net()
    hook.register_module(model)
    image = torch.ones(2, 4, requires_grad=True)
    image.register_hook(hook.backward_hook("image"))
    model(image).sum().backward()
    hook.close()
    assert image.grad is not None
    found = smd.create_trial(str(tmp_path / "run")).tensor("gradient/image").value(0)
    assert np.array_equal(found, image.grad.numpy())


def test_a_collection_may_ask_for_histograms(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path / "run", dry_run=True)
    hook.add_collection(smd.Collection("mine", "relu", save_histogram=False))
    assert hook.get_collection("mine").has_tensor_name("relu_output_0") is False
