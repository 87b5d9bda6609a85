"""Creating a hook: arguments, JSON, attempts, workers, td.watch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.config.save_config import SaveConfig
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook, create_from_json_file

from .conftest import MakeHook, ReadRun
from .models import Net, train


def test_a_dry_run_counts_and_writes_nothing(make_hook: MakeHook, tmp_path: Path) -> None:
    model = Net()
    hook = make_hook(dry_run=True, include_collections=["weights"], out_dir=tmp_path / "dry")
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    counters = hook.counters()
    assert hook.close() is None
    assert (counters.tensors, counters.payload_bytes) == (4, 2 * 4 * (4 * 8 + 8 * 3))
    assert not (tmp_path / "dry").exists()


def test_a_run_in_the_same_place_is_a_new_attempt(make_hook: MakeHook, read_run: ReadRun) -> None:
    for _ in range(2):
        model = Net()
        hook = make_hook(include_collections=["weights"])
        hook.register_module(model)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        run = read_run(hook)
    assert run.trial.attempts == [0, 1]
    assert run.trial.tensor("Net_fc1.weight").steps() == [0]
    assert len(run.trial.rows("Net_fc1.weight", attempt=0)) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"include_workers": "some"}, "include_workers must be 'one' or 'all', or a list"),
        ({"include_regex": "("}, "not a regular expression"),
        ({"save_config": 5}, "save_config must be a SaveConfig"),
        ({"reduction_config": {"mean": True}}, "reduction_config must be a ReductionConfig"),
        ({"save_all": "yes"}, "save_all must be True or False"),
        ({"flusher": "fiber"}, "flusher must be"),
        ({"export_tensorboard": "yes"}, "export_tensorboard must be True or False"),
        ({"tensorboard_dir": ""}, "tensorboard_dir must be a local folder"),
    ],
)
def test_wrong_arguments_are_refused_when_given(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Hook(tmp_path / "run", **options)


def test_what_is_registered_must_be_what_it_is_for(make_hook: MakeHook) -> None:
    hook, model = make_hook(), Net()
    with pytest.raises(ConfigError, match="register_optimizer needs the model first"):
        hook.register_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=r"needs a torch\.nn\.Module, got function"):
        hook.register_module(train)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="record_tensor_value"):
        hook.register_loss(nn.functional.cross_entropy)  # type: ignore[arg-type]
    hook.register_module(model)
    hook.register_module(model)
    with pytest.raises(ConfigError, match="holds no parameter of the registered Net"):
        hook.register_optimizer(torch.optim.SGD(Net().parameters(), lr=0.1))


def test_collections_that_would_save_nothing_are_said_once(
    make_hook: MakeHook, caplog: pytest.LogCaptureFixture
) -> None:
    hook, model = make_hook(include_collections=["empty"]), Net()
    hook.get_collection("forgotten").include("relu")
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)
    assert [message.split("'")[1] for message in caplog.messages] == ["empty", "forgotten"]


def test_a_hook_is_made_from_the_older_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {
        "LocalPath": str(tmp_path / "json run"),
        "HookParameters": {"save_interval": "3"},
        "CollectionConfigurations": [
            {"CollectionName": "gradients", "CollectionParameters": {"save_interval": "2"}},
            {"CollectionName": "mine", "CollectionParameters": {"include_regex": "relu_output"}},
        ],
    }
    (tmp_path / "hook.json").write_text(json.dumps(document))
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "hook.json"))
    ring = td.RingConfig(ring_bytes=1 << 22, slots=1024)
    with create_from_json_file(flusher="thread", ring=ring) as hook:
        model = Net()
        hook.register_module(model)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=5)
    run = td.create_trial(str(tmp_path / "json run"))
    assert run.tensor("gradient/Net_fc1.weight").steps() == [0, 2, 4]
    assert run.tensor("relu_output_0").steps() == [0, 3]


def test_a_subclass_of_the_hook_made_from_json_runs_its_own_init(tmp_path: Path) -> None:
    class Mine(Hook):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.added = self.add_collection(td.CollectionConfig(name="mine", include_regex="relu_output"))

    document = {"LocalPath": str(tmp_path / "run"), "HookParameters": {"save_interval": "3"}}
    (tmp_path / "hook.json").write_text(json.dumps(document))
    with Mine.create_from_json_file(tmp_path / "hook.json", flusher="thread") as hook:
        assert isinstance(hook, Mine)
        assert hook.added.name == "mine"
        assert hook.config.save_config.save_interval == 3


def test_the_collections_of_the_run_list_their_tensors_and_settings(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["weights"], save_config=SaveConfig(save_interval=3)), Net()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    read_run(hook)
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    weights = document["attempts"]["0"]["collections"]["weights"]
    assert weights["tensor_names"] == ["Net_fc1.weight", "Net_fc2.weight"]
    assert weights["include_regex"] == [".*"]
    assert weights["save_config"]["TRAIN"]["save_interval"] == 3
    assert weights["included"] is True


def test_only_rank_0_captures_unless_all_workers_are_included(
    make_hook: MakeHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    hook, model = make_hook(out_dir=tmp_path / "one"), Net()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    hook.save_scalar("x", 1)
    assert hook.close() is None
    assert not (tmp_path / "one").exists()
    hook = make_hook(out_dir=tmp_path / "all", include_workers="all")
    hook.save_scalar("x", 1)
    hook.close()
    assert td.create_trial(str(tmp_path / "all")).workers() == ["worker_1"]


def test_watch_captures_a_model_in_one_line(tmp_path: Path) -> None:
    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ring = td.RingConfig(ring_bytes=1 << 22, slots=1024)
    hook = td.watch(
        model, out=tmp_path / "run", loss=criterion, optimizer=optimizer, flusher="thread", ring=ring
    )
    train(model, optimizer, steps=11, criterion=criterion)
    hook.close()
    run = td.create_trial(str(tmp_path / "run"))
    assert run.steps() == [0, 10]
    table = run.stats("gradient/.*")
    assert len(table) == 8
    assert run.tensor("CrossEntropyLoss_output_0").value(10).shape == ()


def test_watch_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"watch\(\) needs a torch.nn.Module, got dict"):
        td.watch({}, out=tmp_path / "run")
